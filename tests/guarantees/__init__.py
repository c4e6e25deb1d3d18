"""What a node promises of groups, offsets and transactions, held against real clients and real deaths."""
