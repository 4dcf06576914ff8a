"""Residency policies: what of the tree is in which tier, and when it moves. All of them are
exact."""
