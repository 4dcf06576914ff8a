"""Tools that a model calls while it answers: what they are, and how calls are written and read."""
