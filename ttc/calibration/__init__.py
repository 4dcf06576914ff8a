"""Settings for what is approximate, from held-out data; and measuring a machine."""
