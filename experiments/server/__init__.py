"""An OpenAI-compatible server whose models think before they answer: every search by the model's
name."""
