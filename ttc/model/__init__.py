"""The model itself: loading it, checking that it is served exactly, running it."""
