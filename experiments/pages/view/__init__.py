"""`python -m experiments.view outputs/NAME`: a run and its search trees as one page of HTML."""
