"""Producer state: the state of each producer id on a partition, its rules, and its snapshots on disk."""
