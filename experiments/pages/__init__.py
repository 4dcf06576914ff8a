"""Pages about finished runs: their trees, and leaderboards."""
