"""The servers of a node: what all nodes share, the broker, the controller, and what may attach to them."""
