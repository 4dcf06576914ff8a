"""Formulas of the papers: bytes moved, memory needed."""
