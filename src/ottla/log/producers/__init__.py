"""Producer state: what a partition remembers of each producer id, its rules, and its snapshots on disk."""
