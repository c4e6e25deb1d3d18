"""Records wait here, in batches by partition, until their batch is full or has lingered for `linger.ms`.

The order of a partition's batches is the order in which they were opened; a batch that is retried returns to
its place. Bytes that wait or are in flight count against `buffer.memory`; callers that would exceed it have
to wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.identity import ProducerIdentity
from ottla.client.producer.producer_batch import Delivery, ProducerBatch
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import Encoder

MAX_SEQUENCE = 2**31 - 1


class PartitionQueue:
    """The batches of one partition, and its sequence numbers."""

    __slots__ = (
        "batches",
        "epoch",
        "in_flight",
        "is_established",
        "lost_place",
        "next_sequence",
        "opened",
        "partition",
        "producer_id",
        "ratio",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        # Not in flight; batches that were sent before come first.
        self.batches: deque[ProducerBatch] = deque()
        # Sent and without response, in the order of sending.
        self.in_flight: list[ProducerBatch] = []
        # The number of batches so far; a batch keeps its place in this order.
        self.opened = 0
        # The sequence number of the next record that is sent for the first time, for this id and epoch.
        self.next_sequence = 0
        self.producer_id = -1
        self.epoch = -1
        # Whether the broker has accepted a batch of this id and epoch. It accepts any number as the first, so
        # until then no second batch may be in flight: it could be taken for the first.
        self.is_established = False
        # A record before the waiting ones was given up: they need a new epoch, numbered from zero.
        self.lost_place = False
        # The compression ratio of the last batch, to estimate how much fits into the next one.
        self.ratio = 1.0

    @property
    def has_numbered(self) -> bool:
        return bool(self.in_flight) or (bool(self.batches) and self.batches[0].base_sequence >= 0)

    def number(self, batch: ProducerBatch, identity: ProducerIdentity) -> None:
        """Assign sequence numbers to a batch that is sent for the first time. A new epoch begins only when
        nothing of the old one is left, so that a retry keeps its numbers.
        """
        if batch.base_sequence >= 0:
            return
        if (self.producer_id, self.epoch) != (identity.producer_id, identity.epoch) and not self.has_numbered:
            self.producer_id, self.epoch = identity.producer_id, identity.epoch
            self.next_sequence = 0
            self.is_established = False
        batch.producer_id, batch.producer_epoch = self.producer_id, self.epoch
        batch.base_sequence = self.next_sequence
        self.next_sequence = (self.next_sequence + batch.count) & MAX_SEQUENCE

    def begin_new_epoch(self, identity: ProducerIdentity) -> None:
        """Start over with a new epoch: nothing is in flight, and the brokers refused the waiting batches as
        out of sequence.
        """
        assert not self.in_flight, f"{self.partition}: a new epoch with batches in flight"
        if (self.producer_id, self.epoch) == (identity.producer_id, identity.epoch):
            identity.begin_new_epoch()
        for batch in self.batches:
            batch.base_sequence = -1
        self.producer_id = self.epoch = -1
        self.lost_place = False

    def reenqueue(self, batch: ProducerBatch) -> None:
        """Return a batch to its place among those that wait."""
        position = 0
        for waiting in self.batches:
            if batch.order < waiting.order:
                break
            position += 1
        self.batches.insert(position, batch)


class RecordAccumulator:
    """Belongs to one event loop. `on_ready` is called when a batch may be sent earlier than known so far."""

    def __init__(
        self, config: ProducerConfig, loop_time: Callable[[], float], on_ready: Callable[[], object]
    ) -> None:
        self._config = config
        self._loop_time = loop_time
        self._on_ready = on_ready
        self._codec = config.codec
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        # Queues with a batch; empty ones cost nothing when the sender looks for work.
        self.waiting: dict[TopicPartition, PartitionQueue] = {}
        self.used_bytes = 0
        self._room = asyncio.Event()
        self._incomplete: dict[ProducerBatch, None] = {}  # the oldest first
        self.flushing = 0

    def queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(partition)
        return queue

    def has_room(self) -> bool:
        return self.used_bytes < self._config.buffer_memory

    async def wait_for_room(self) -> None:
        """Wait until some memory is free."""
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
    ) -> Delivery:
        """Add a record to the partition's last batch, or to a new one."""
        if queue.batches:
            batch = queue.batches[-1]
            # A batch that was sent before must not change, and a batch of Arrow rows is complete. (This is
            # `try_append`, inlined: it runs for every record.)
            if not batch.is_closed and (
                added := batch.encode(timestamp, key, value, headers, None, batch.limit)
            ):
                batch.size += added
                index = batch.count
                batch.count = index + 1
                batch.timestamps.append(timestamp)
                self.used_bytes += added
                return Delivery(batch, index)
        batch = self.open(queue, self._loop_time())
        try:
            self.used_bytes += batch.try_append(timestamp, key, value, headers)
        except BaseException:
            self.withdraw(queue, batch)
            raise
        return Delivery(batch, 0)

    def open(self, queue: PartitionQueue, now: float) -> ProducerBatch:
        batch = ProducerBatch(
            queue.partition,
            limit_bytes=self._config.batch_size,
            codec=self._codec,
            level=self._config.level,
            ratio=queue.ratio,
            created_at=now,
        )
        self.enqueue(queue, batch)
        return batch

    def enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        batch.order = (queue.opened,)
        queue.opened += 1
        queue.batches.append(batch)
        self.waiting[queue.partition] = queue
        self._incomplete[batch] = None
        self._on_ready()

    def enqueue_encoded(self, queue: PartitionQueue, encoder: Encoder, limit_bytes: int) -> ProducerBatch:
        """Add a batch whose records are encoded already."""
        batch = ProducerBatch(
            queue.partition,
            limit_bytes=limit_bytes,
            codec=self._codec,
            level=self._config.level,
            ratio=queue.ratio,
            created_at=self._loop_time(),
            encoder=encoder,
        )
        self.used_bytes += batch.size
        self.enqueue(queue, batch)
        return batch

    def withdraw(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Remove a batch that was just opened and got no record."""
        queue.batches.pop()
        if not queue.batches:
            del self.waiting[queue.partition]
        self._incomplete.pop(batch, None)

    def ready_at(self, queue: PartitionQueue) -> float:
        """Return the loop time from which the first batch of the queue may be sent."""
        batch = queue.batches[0]
        if batch.attempts:
            return batch.not_before
        is_full = batch.is_closed or len(queue.batches) > 1 or batch.size >= self._config.batch_size
        if is_full or self.flushing or not self.has_room():
            return 0.0
        return batch.created_at + self._config.linger_ms / 1000

    def take(self, queue: PartitionQueue) -> ProducerBatch:
        batch = queue.batches.popleft()
        if not queue.batches:
            del self.waiting[queue.partition]
        return batch

    def reenqueue(self, batch: ProducerBatch) -> None:
        queue = self.queue(batch.partition)
        queue.reenqueue(batch)
        self.waiting[queue.partition] = queue

    def deallocate(self, batch: ProducerBatch) -> None:
        """Free the memory of a completed batch."""
        self._incomplete.pop(batch, None)
        self.used_bytes -= batch.size
        assert self.used_bytes >= 0, f"{self.used_bytes} bytes of buffer.memory in use"
        self._room.set()

    def split_and_reenqueue(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Put the parts in the place of the batch, with its share of memory."""
        self._incomplete.pop(batch, None)
        self._incomplete.update(dict.fromkeys(parts))
        self.used_bytes += sum(part.size for part in parts) - batch.size
        for part in parts:
            self.reenqueue(part)

    def incomplete_batches(self) -> list[ProducerBatch]:
        """Return all batches that wait or are in flight."""
        return list(self._incomplete)

    def abort_undrained_batches(self) -> list[ProducerBatch]:
        """Remove and return all batches that are not in flight."""
        dropped: list[ProducerBatch] = []
        for queue in list(self.waiting.values()):
            while queue.batches:
                dropped.append(self.take(queue))
        return dropped

    def take_expired(self, now: float) -> Iterator[ProducerBatch]:
        """Remove and yield the waiting batches whose `delivery.timeout.ms` is over."""
        limit = now - self._config.delivery_timeout_ms / 1000
        for queue in list(self.waiting.values()):
            while queue.batches and queue.batches[0].created_at < limit:
                yield self.take(queue)
