"""Running programs that nobody has read, and testing them."""
