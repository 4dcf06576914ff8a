"""First contact with a GPU: what is right, and how fast it is, as one file to send."""
