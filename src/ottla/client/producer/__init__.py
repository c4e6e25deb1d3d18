"""The producer: records in, batches out, each delivered once and in order.

async with Producer("localhost:9092") as producer:
    where = await producer.send("orders", b"a value", key=b"a key")
    for n in range(1000):
        producer.send_nowait("orders", str(n).encode())
    await producer.flush()
"""

from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.producer import (
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    QueuedRows,
    SentBatch,
)
from ottla.client.producer.producer_batch import Delivery, RecordMetadata
from ottla.client.producer.transaction_manager import GroupMember, PreparedTransaction, Transaction

__all__ = [
    "Delivery",
    "GroupMember",
    "PreparedTransaction",
    "Producer",
    "ProducerConfig",
    "ProducerInterceptor",
    "ProducerRecord",
    "QueuedRows",
    "RecordMetadata",
    "SentBatch",
    "Transaction",
]
