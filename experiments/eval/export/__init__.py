"""`python -m experiments.export outputs/NAME`: a run's trees as training data."""
