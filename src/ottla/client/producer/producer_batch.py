"""A batch of records for one partition, and the handle of a caller on one of its records.

A record has no future of its own: callers await the batch, and a handle only has the index of its record.
Invariant: a batch is completed exactly once, with offsets or with an error, and all its handles show the
same.
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

NO_OFFSET = -1


class RecordMetadata(NamedTuple):
    """The partition and offset of a record. With acks=0 the offset is unknown: -1."""

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
        "last_error",
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
        # Takes no more records: it was sent before, or its records were added all at once.
        self.is_closed = encoder is not None
        self.created_at = created_at
        # Its place among the partition's batches; the parts of a split batch share its place, in order.
        self.order: tuple[int, ...] = ()
        self.not_before = 0.0  # loop time before which a failed batch is not tried again
        self.attempts = 0
        self.last_error: KafkaError | None = None  # why its last attempt failed
        self.size = self.builder.uncompressed_size if encoder is not None else 0  # against buffer.memory
        # Set when the batch is first sent, and kept for every retry, so that the broker recognises it.
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
        # The smaller batches with its records, if it was too large for the broker.
        self.parts: list[ProducerBatch] = []
        self.parent: ProducerBatch | None = None

    def try_append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Any) -> int:
        """Add a record if there is room for it; return the bytes it takes, or 0."""
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
        assert not self.is_done, f"a batch of {self.partition} was completed twice"
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
        """Return the same records in batches of at most `limit_bytes`, with the same sequence numbers. The
        handles on this batch stay valid: it is done when all its parts are.
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
        """Return a future that is done when the batch is; it never fails, the handles do."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
            if self.is_done:
                self._done.set_result(None)
        return self._done

    def sent_batches(self) -> list[ProducerBatch]:
        """Return the batches that were sent in the end: itself, or its parts."""
        return [leaf for part in self.parts for leaf in part.sent_batches()] if self.parts else [self]

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
    """The result of `send_nowait`: await it for the record's metadata, or ignore it and `flush` later."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.is_done:
            # Shielded: a caller that is cancelled must not disturb those that wait for other records.
            yield from asyncio.shield(self._batch.done()).__await__()
        return self._batch.metadata(self._index)

    def done(self) -> bool:
        """Whether the record was delivered or has failed."""
        return self._batch.is_done

    def result(self) -> RecordMetadata:
        """Return the metadata, or raise the error; InvalidStateError before the record is delivered or
        failed.
        """
        if not self._batch.is_done:
            raise asyncio.InvalidStateError("the record is neither delivered nor failed yet")
        return self._batch.metadata(self._index)

    def exception(self) -> KafkaError | None:
        """Return the error of the record; None if it was delivered, InvalidStateError before either."""
        if not self._batch.is_done:
            raise asyncio.InvalidStateError("the record is neither delivered nor failed yet")
        return self._batch.failure(self._index)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback(self)` on the event loop once the record is delivered or has failed."""
        if self._batch.is_done:
            asyncio.get_running_loop().call_soon(callback, self)
        elif self._batch.callbacks is None:
            self._batch.callbacks = [(callback, self)]
        else:
            self._batch.callbacks.append((callback, self))
