"""What is measured or trained on held-out data: thresholds, verifiers, heads, profiles."""
