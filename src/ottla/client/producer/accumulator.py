"""Records wait here, in batches by partition, until their batch is full or has lingered long enough.

The order of a partition's batches is the order in which they were opened; a batch that comes back for
another try goes to the place that its sequence number gives it. Bytes that wait or are under way are
counted against `buffer.memory`; who would go beyond has to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ottla.client.producer.batch import Delivery, ProducerBatch
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.identity import ProducerIdentity
from ottla.client.view import TopicPartition
from ottla.records.builder import record_size_bound

__all__ = ["Accumulator", "PartitionQueue", "is_before"]

MAX_SEQUENCE = 2**31 - 1


class PartitionQueue:
    """The batches of one partition, and where it stands in its sequence of numbered records."""

    __slots__ = (
        "batches",
        "epoch",
        "in_flight",
        "lost_place",
        "next_sequence",
        "partition",
        "producer_id",
        "ratio",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        # Not under way; those that were sent before come first.
        self.batches: deque[ProducerBatch] = deque()
        # Sent and not answered, in the order of sending.
        self.in_flight: list[ProducerBatch] = []
        # The sequence number of the next record that is sent for the first time, in this id and epoch.
        self.next_sequence = 0
        self.producer_id = -1
        self.epoch = -1
        # A record before those that are waiting will never come: they need a new epoch, numbered from zero.
        self.lost_place = False
        # Compressed share of what was sent last, to guess how much fits into the next batch.
        self.ratio = 1.0

    @property
    def has_numbered(self) -> bool:
        return bool(self.in_flight) or (bool(self.batches) and self.batches[0].base_sequence >= 0)

    def number(self, batch: ProducerBatch, identity: ProducerIdentity) -> None:
        """Gives a batch that is sent for the first time its place. A new epoch begins only once nothing of
        the old one is left, so that a retry keeps the numbers it had.
        """
        if batch.base_sequence >= 0:
            return
        if (self.producer_id, self.epoch) != (identity.producer_id, identity.epoch) and not self.has_numbered:
            self.producer_id, self.epoch = identity.producer_id, identity.epoch
            self.next_sequence = 0
        batch.producer_id, batch.producer_epoch = self.producer_id, self.epoch
        batch.base_sequence = self.next_sequence
        self.next_sequence = (self.next_sequence + batch.count) & MAX_SEQUENCE

    def begin_new_epoch(self, identity: ProducerIdentity) -> None:
        """Nothing is under way, and the brokers refused what waits for its place in the sequence: start
        over.
        """
        assert not self.in_flight, f"{self.partition}: a new epoch with batches under way"
        if (self.producer_id, self.epoch) == (identity.producer_id, identity.epoch):
            identity.begin_new_epoch()
        for batch in self.batches:
            batch.base_sequence = -1
        self.producer_id = self.epoch = -1
        self.lost_place = False

    def put_back(self, batches: Sequence[ProducerBatch]) -> None:
        """Back into the queue, before all that was sent after them or not at all."""
        first = batches[0].base_sequence
        position = 0
        if first >= 0:
            for waiting in self.batches:
                if waiting.base_sequence < 0 or not is_before(waiting.base_sequence, first):
                    break
                position += 1
        for batch in reversed(batches):
            self.batches.insert(position, batch)


def is_before(sequence: int, other: int) -> bool:
    """Whether one sequence number comes before another, given that numbers start again after 2^31 - 1."""
    return 0 < (other - sequence) & MAX_SEQUENCE < MAX_SEQUENCE // 2


class Accumulator:
    """Belongs to one event loop. `on_ready` is called when a batch may be sent earlier than known so far."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._codec = config.codec
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        # Queues that hold a batch; others cost nothing when the sender looks for work.
        self.waiting: dict[TopicPartition, PartitionQueue] = {}
        self.used_bytes = 0
        self._room = asyncio.Event()
        self._unsettled: set[ProducerBatch] = set()
        self.flushing = 0

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(partition)
        return queue

    def has_room(self) -> bool:
        return self.used_bytes < self._config.buffer_memory

    async def room(self) -> None:
        """Waits until some memory is free."""
        while not self.has_room():
            self._room.clear()
            await self._room.wait()

    def append(
        self,
        queue: PartitionQueue,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
        now: float,
    ) -> tuple[Delivery, bool]:
        """Adds a record; True if there is now something to send that was not there before."""
        batch = queue.batches[-1] if queue.batches else None
        opened = False
        bound = record_size_bound(key, value, headers)
        if batch is None or batch.attempts or not batch.builder.has_room_for(bound):
            opened = True
            batch = self.open(queue, now)
        before = batch.size
        delivery = batch.append(timestamp, key, value, headers)
        self.used_bytes += batch.size - before
        return delivery, opened or batch.size >= self._config.batch_size

    def open(self, queue: PartitionQueue, now: float) -> ProducerBatch:
        batch = ProducerBatch(
            queue.partition,
            limit_bytes=self._config.batch_size,
            codec=self._codec,
            level=self._config.compression_level,
            ratio=queue.ratio,
            created_at=now,
        )
        self.enqueue(queue, batch)
        return batch

    def enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.batches.append(batch)
        self.waiting[queue.partition] = queue
        self._unsettled.add(batch)

    def ready_at(self, queue: PartitionQueue) -> float:
        """The loop time from which the first batch of the queue may be sent."""
        batch = queue.batches[0]
        if batch.attempts:
            return batch.not_before
        is_full = len(queue.batches) > 1 or batch.size >= self._config.batch_size
        if is_full or self.flushing or not self.has_room():
            return 0.0
        return batch.created_at + self._config.linger_ms / 1000

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        batch = queue.batches.popleft()
        if not queue.batches:
            del self.waiting[queue.partition]
        return batch

    def put_back(self, batches: Sequence[ProducerBatch]) -> None:
        queue = self.queue(batches[0].partition)
        queue.put_back(batches)
        self.waiting[queue.partition] = queue

    def settled(self, batch: ProducerBatch) -> None:
        """The batch is over: its memory is free."""
        self._unsettled.discard(batch)
        self.used_bytes -= batch.size
        self._room.set()

    def split(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """The parts carry on in the place of the batch, and with its memory."""
        self._unsettled.discard(batch)
        self._unsettled.update(parts)
        self.put_back(parts)

    def unsettled(self) -> list[ProducerBatch]:
        """All batches that wait or are under way."""
        return list(self._unsettled)

    def expired(self, now: float) -> Iterator[ProducerBatch]:
        """Takes out the waiting batches whose delivery time is over."""
        limit = now - self._config.delivery_timeout_ms / 1000
        for queue in list(self.waiting.values()):
            while queue.batches and queue.batches[0].created_at < limit:
                yield self.take(queue)
