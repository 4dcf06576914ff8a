"""One pass over the tree: which rows attend which runs of KV, and how."""
