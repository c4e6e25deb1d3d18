"""Tiered storage: the segments of a partition that are in an object store, and what is known of them."""
