"""Whole topics as Arrow tables, and tables as records.

table = await read_topic("localhost:9092", "orders")
await write_topic("localhost:9092", "orders-copy", table)
"""

from ottla.client.bulk.whole_topics import read_topic, write_topic

__all__ = ["read_topic", "write_topic"]
