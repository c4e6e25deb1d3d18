"""The same clients for code that is not asyncio: scripts, notebooks, Spark workers.

from ottla import blocking

with blocking.Producer("localhost:9092") as producer:
    producer.send("orders", b"a value")
"""

from ottla.client.blocking.clients import Admin, Consumer, Future, Producer, Transaction

__all__ = ["Admin", "Consumer", "Future", "Producer", "Transaction"]
