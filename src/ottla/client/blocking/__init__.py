"""The same clients for code that is not asyncio. Users import them from `ottla.blocking`."""

from ottla.client.blocking.clients import (
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
