"""HTTP of a node: the listener, who may ask, and health."""
