"""Settings of the approximate verifiers, found on held-out problems."""
