"""Weights that stay as they are stored, and what multiplies by them."""
