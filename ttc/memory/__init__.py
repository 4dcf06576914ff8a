"""Where KV lies: buffers in two tiers, and the link between them."""
