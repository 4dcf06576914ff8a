"""Formulas of the papers: bytes moved, memory needed, time of a pass, where layers run."""
