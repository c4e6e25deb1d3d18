"""Tiered storage in a running node: the topic of its metadata, and the tasks of the partitions."""
