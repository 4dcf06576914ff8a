"""The project's own benchmarks and the papers' experiments. A clone has it, the wheel does not."""
