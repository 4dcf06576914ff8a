"""The laboratory: the project's own benchmarks and the papers' experiments. Its commands are files
beside `experiments/run.py`, so that nothing has to look for it."""
