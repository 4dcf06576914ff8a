"""Data sets whose answers are programs."""
