"""Segments: a file of record batches, the indexes beside it, and the handles that keep few files open."""
