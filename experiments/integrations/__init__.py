"""Other projects' harnesses and clusters that run the searches."""
