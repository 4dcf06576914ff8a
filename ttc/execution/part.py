"""Programs: a sandbox for what a model wrote, verifiers that run it, data sets of programs."""

HANDLES = {
    "reader": {
        "code": "experiments.programs.data:read_code",
        "evalplus": "experiments.programs.data:read_evalplus",
        "livecodebench": "experiments.programs.data:read_livecodebench",
    },
    "tools": {"python": "ttc.tools.python:PythonTools"},
    "grader": {"code": "experiments.programs.data:grader_of"},
}
