"""A log directory: its checkpoints, its identity, how new logs become durable in it, and its shutdown."""
