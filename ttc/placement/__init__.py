"""Which layers run where, for models that are larger than the device."""
