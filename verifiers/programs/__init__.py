"""Verifiers that run programs that a model wrote."""
