"""The same clients for code that is not asyncio: scripts, notebooks, Spark workers.

from ottla.blocking import Producer

with Producer("localhost:9092") as producer:
    producer.send("orders", b"a value")
"""

from ottla.client.blocking import (
    Admin,
    Consumer,
    Future,
    Producer,
    ShareConsumer,
    Transaction,
    read_topic,
    write_topic,
)

__all__ = [
    "Admin",
    "Consumer",
    "Future",
    "Producer",
    "ShareConsumer",
    "Transaction",
    "read_topic",
    "write_topic",
]
