"""Settings for what is approximate, found on held-out data; and a machine measured for the cost model."""
