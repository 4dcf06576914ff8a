"""Layers that are compiled: decoders of the kind of Llama on a CPU without their modules."""
