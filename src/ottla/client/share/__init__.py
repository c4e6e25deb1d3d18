"""The share consumer: a queue over topics, whose records are acknowledged one by one.

async with ShareConsumer("localhost:9092", group_id="mailers") as consumer:
    consumer.subscribe("letters")
    async for record in consumer:
        print(record.value, record.delivery_count)
"""

from ottla.client.share.config import ShareConsumerConfig
from ottla.client.share.share_completed_fetch import DamagedBatch, RecordDeserializationFailed, ShareRecord
from ottla.client.share.share_consumer import (
    SHARE_ARROW_COLUMNS,
    AcknowledgementCommitCallback,
    ShareConsumer,
)
from ottla.client.share.worker_pool import WorkerResults
from ottla.protocol.share import AcknowledgeType

__all__ = [
    "SHARE_ARROW_COLUMNS",
    "AcknowledgeType",
    "AcknowledgementCommitCallback",
    "DamagedBatch",
    "RecordDeserializationFailed",
    "ShareConsumer",
    "ShareConsumerConfig",
    "ShareRecord",
    "WorkerResults",
]
