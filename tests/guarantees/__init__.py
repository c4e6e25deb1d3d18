"""What a node promises of groups, offsets and transactions, tested with real clients and killed processes."""
