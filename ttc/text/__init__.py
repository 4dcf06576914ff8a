"""From questions to prompts, and from texts to answers."""
