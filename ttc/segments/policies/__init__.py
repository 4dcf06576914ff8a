"""Where KV lies and how it is read, policy by policy."""
