"""Trials that decided a form of the code; what each decided is in docs/architecture.md."""
