"""A value head trained on a model's own solutions: rollouts, labels, training, and what it is
worth."""
