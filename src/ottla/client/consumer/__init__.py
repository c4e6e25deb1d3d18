"""The consumer: records of partitions, one by one or as columns.

async with Consumer("localhost:9092", auto_offset_reset="earliest") as consumer:
    consumer.assign([("orders", 0)])
    async for record in consumer:
        print(record.offset, record.value)
"""

from ottla.client.consumer.completed_fetch import SerializationFailed
from ottla.client.consumer.config import ConsumerConfig
from ottla.client.consumer.consumer import ARROW_COLUMNS, Consumer, ConsumerInterceptor
from ottla.client.consumer.group_membership import RebalanceListener, Stalled
from ottla.client.group_offsets import CommittedOffset
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import ConsumerRecord

__all__ = [
    "ARROW_COLUMNS",
    "CommittedOffset",
    "Consumer",
    "ConsumerConfig",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "RebalanceListener",
    "SerializationFailed",
    "Stalled",
    "TopicPartition",
]
