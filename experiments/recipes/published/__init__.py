"""Published figures: what they were made with, the runs that make them here, and both side by
side."""
