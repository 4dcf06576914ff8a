"""Models x searches x budgets x data sets x seeds: every cell a run of its own, and one row for
each."""
