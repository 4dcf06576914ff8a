"""Is a model served exactly? Asked at load, by running it."""
