"""The tables and plots of the documents, made from the figures in experiments/lab/results."""
