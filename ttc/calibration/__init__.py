"""Settings for what is approximate, found on held-out data."""
