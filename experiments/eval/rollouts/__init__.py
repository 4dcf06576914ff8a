"""`python -m experiments.rollouts`: a data set's samples, as data to train on."""
