"""Running searches over data sets, and measuring them."""
