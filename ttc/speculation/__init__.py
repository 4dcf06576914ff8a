"""Drafts: tokens that are guessed, so that one pass of the model checks several of them."""
