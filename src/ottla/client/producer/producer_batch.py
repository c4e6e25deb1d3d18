"""A batch on its way to a partition, and the handle that a sender of one record holds on it.

A record costs no future of its own: what is awaited is the batch, and a handle only remembers which record
of it was meant. The invariant: a batch is settled exactly once, with offsets or with an error, and every
handle then agrees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import Encoder
from ottla.records.batch import read_records
from ottla.records.builder import BatchBuilder
from ottla.records.types import Codec

__all__ = ["Delivery", "ProducerBatch", "RecordMetadata"]

NO_OFFSET = -1


class RecordMetadata(NamedTuple):
    """Where a record went. With acks=0 nobody tells the offset: it is -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ProducerBatch:
    """Records of one partition in the order they were sent; open until the sender takes it."""

    __slots__ = (
        "_done",
        "append_time_ms",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "callbacks",
        "count",
        "created_at",
        "encode",
        "error",
        "is_closed",
        "is_done",
        "limit",
        "not_before",
        "order",
        "parent",
        "partition",
        "parts",
        "producer_epoch",
        "producer_id",
        "size",
        "timestamps",
    )

    def __init__(
        self,
        partition: TopicPartition,
        *,
        limit_bytes: int,
        codec: Codec,
        level: int | None,
        ratio: float,
        created_at: float,
        encoder: Encoder | None = None,
    ) -> None:
        self.partition = partition
        self.builder = BatchBuilder(
            limit_bytes=limit_bytes, codec=codec, level=level, ratio=ratio, encoder=encoder
        )
        self.count = self.builder.count
        self.encode, self.limit = self.builder.fast_append()
        # Takes no more records: it was sent before, or its records came all at once.
        self.is_closed = encoder is not None
        self.created_at = created_at
        # Its place among the partition's batches; the parts of one that was split share its place in order.
        self.order: tuple[int, ...] = ()
        self.not_before = 0.0  # loop time before which a failed batch is not tried again
        self.attempts = 0
        self.size = self.builder.uncompressed_size if encoder is not None else 0  # against buffer.memory
        # Set when the batch is first sent, and kept for every retry, so that the broker can tell it is one.
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.is_done = False
        self.error: KafkaError | None = None
        self.base_offset = NO_OFFSET
        self.append_time_ms = -1
        self.timestamps: list[int] = []
        self._done: asyncio.Future[None] | None = None
        self.callbacks: list[tuple[Callable[[Delivery], object], Delivery]] | None = None
        # Where a batch was too large for the broker: the smaller ones that carry its records now.
        self.parts: list[ProducerBatch] = []
        self.parent: ProducerBatch | None = None

    def try_append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Any) -> int:
        """Adds a record if there is room for it; the bytes it takes, or 0."""
        added = self.encode(timestamp, key, value, headers, None, self.limit)
        if added:
            self.size += added
            self.count += 1
            self.timestamps.append(timestamp)
        return added

    def complete(self, base_offset: int, append_time_ms: int) -> None:
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self._on_done()

    def fail(self, error: KafkaError) -> None:
        self.error = error
        self._on_done()

    def _on_done(self) -> None:
        assert not self.is_done, f"a batch of {self.partition} was settled twice"
        self.is_done = True
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        if self.callbacks is not None:
            loop = asyncio.get_running_loop()
            for callback, delivery in self.callbacks:
                loop.call_soon(callback, delivery)
            self.callbacks = None
        if self.parent is not None and all(part.is_done for part in self.parent.parts):
            self.parent._on_done()

    def split(self, limit_bytes: int) -> list[ProducerBatch]:
        """The same records in batches of at most `limit_bytes`, numbered as they were. The handles on this
        batch stay good: it is settled when all its parts are.
        """
        part: ProducerBatch | None = None
        sequence = self.base_sequence
        for record in read_records(self.builder.build()):
            fields = (record.timestamp, record.key, record.value, record.headers)
            if part is None or not part.try_append(*fields):
                part = ProducerBatch(
                    self.partition,
                    limit_bytes=limit_bytes,
                    codec=self.builder.codec,
                    level=self.builder.level,
                    ratio=1.0,
                    created_at=self.created_at,
                )
                part.parent, part.attempts = self, self.attempts
                part.order = (*self.order, len(self.parts))
                part.producer_id, part.producer_epoch = self.producer_id, self.producer_epoch
                part.base_sequence = sequence
                self.parts.append(part)
                part.try_append(*fields)
            if sequence >= 0:
                sequence = (sequence + 1) & 0x7FFFFFFF
        for made in self.parts:
            made.is_closed = True
        return self.parts

    def done(self) -> asyncio.Future[None]:
        """Done when the batch is settled; it never fails, the handles do."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
            if self.is_done:
                self._done.set_result(None)
        return self._done

    def leaves(self) -> list[ProducerBatch]:
        """The batches that were sent in the end: itself, or its parts."""
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]

    def failure(self, index: int) -> KafkaError | None:
        for part in self.parts:
            if index < part.count:
                return part.failure(index)
            index -= part.count
        return self.error

    def metadata(self, index: int) -> RecordMetadata:
        for part in self.parts:
            if index < part.count:
                return part.metadata(index)
            index -= part.count
        if self.error is not None:
            raise self.error
        timestamp = self.append_time_ms
        if timestamp < 0:
            timestamp = self.timestamps[index] if self.timestamps else self.builder.max_timestamp
        offset = self.base_offset + index if self.base_offset >= 0 else NO_OFFSET
        return RecordMetadata(self.partition.topic, self.partition.partition, offset, timestamp)


class Delivery:
    """What `send_nowait` returns: await it for the record's metadata, or leave it and `flush` later."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.is_done:
            # Shielded: whoever stops waiting for one record must not disturb those who wait for the others.
            yield from asyncio.shield(self._batch.done()).__await__()
        return self._batch.metadata(self._index)

    def done(self) -> bool:
        """Whether the record was delivered or has failed."""
        return self._batch.is_done

    def result(self) -> RecordMetadata:
        """The metadata, or the error raised; InvalidStateError before the record was delivered or failed."""
        if not self._batch.is_done:
            raise asyncio.InvalidStateError("the record is still on its way")
        return self._batch.metadata(self._index)

    def exception(self) -> KafkaError | None:
        """Why the record failed; None if it was delivered, InvalidStateError before either."""
        if not self._batch.is_done:
            raise asyncio.InvalidStateError("the record is still on its way")
        return self._batch.failure(self._index)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Calls `callback(self)` on the event loop once the record was delivered or failed."""
        if self._batch.is_done:
            asyncio.get_running_loop().call_soon(callback, self)
        elif self._batch.callbacks is None:
            self._batch.callbacks = [(callback, self)]
        else:
            self._batch.callbacks.append((callback, self))
