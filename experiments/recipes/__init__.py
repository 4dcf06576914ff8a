"""Published figures, made again: recipes, and ProcessBench."""
