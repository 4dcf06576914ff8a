"""What stands in for models, devices and weights in tests and benchmarks; not in the wheel."""
