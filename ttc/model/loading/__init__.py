"""Loading a model and its tokenizer, from whatever files it lies in."""
