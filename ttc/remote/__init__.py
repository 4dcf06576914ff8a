"""A model that another program serves: where it is, what it can do, and a backend over it."""
