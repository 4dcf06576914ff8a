"""Rollouts for training: samples of a policy with log-probabilities and advantages."""
