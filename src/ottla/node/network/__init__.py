"""The network of a node: listeners, connections, their limits, and the endpoints that clients see."""
