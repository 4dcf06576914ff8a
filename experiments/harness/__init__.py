"""This project's searches as a model of other people's evaluation programs: lm-evaluation-harness and Inspect."""
