"""A running node: configuration, connections, one handler per API, and its life from start to stop."""
