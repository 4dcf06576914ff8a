"""Answers by a schema or a grammar: which tokens may follow (a part)."""
