"""A tool that runs programs."""

HANDLES = {"tools": {"python": "ttc.tools.programs.python:PythonTools"}}
