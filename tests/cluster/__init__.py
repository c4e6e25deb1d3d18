"""Three nodes as real processes: what happens to machines happens to them."""
