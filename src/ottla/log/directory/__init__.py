"""A log directory: its checkpoints, its identity, its contents, and how new logs become durable in it."""
