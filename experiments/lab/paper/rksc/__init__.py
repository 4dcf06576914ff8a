"""What `python -m experiments.paper rksc` measures: RKSC's mechanisms, each alone, on a real
model."""
