"""Which branches decode together, and when they join and leave the batch."""
