"""Committed offsets: the store of a shard, and the requests that read and change it."""
