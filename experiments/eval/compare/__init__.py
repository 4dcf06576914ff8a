"""Runs side by side: accuracy with its interval, paired differences, and what each run cost."""
