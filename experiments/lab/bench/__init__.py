"""Measurements of speed and memory, as ratios against baselines of the same run."""
