"""What runs: prefill, decoding, scoring."""
