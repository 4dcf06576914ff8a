"""What branches share: segments of KV, the branches that end on them, and which of them stay."""
