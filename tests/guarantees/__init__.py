"""What the node promises, held against it: groups, offsets and transactions, with real clients and real deaths."""
