"""Takes records out of what was fetched, and keeps the positions true to what the user has in his hands.

`async for` takes a poll's worth at a time. What of it was not given out yet is the `leftover`: positions are
told as if it had not been read, and whoever polls otherwise gets it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ottla.client.consumer.fetcher import Fetcher
from ottla.client.consumer.state import Assignment
from ottla.client.group_offsets import CommittedOffset
from ottla.client.serialization import Deserializer
from ottla.client.view import TopicPartition
from ottla.protocol.errors import KafkaError
from ottla.records._kernel import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Reader"]

K = TypeVar("K")
V = TypeVar("V")


class Reader(Generic[K, V]):
    def __init__(
        self,
        fetcher: Fetcher,
        assignment: Assignment,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
        on_seek: Callable[[], object],
    ) -> None:
        self._fetcher = fetcher
        self._assignment = assignment
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._on_seek = on_seek
        self._leftover: list[ConsumerRecord[Any, Any]] = []
        self._at = 0

    def take(self, most: int) -> list[ConsumerRecord[K, V]]:
        """Decodes up to `most` records. An error waits where there are records before it."""
        taken: list[ConsumerRecord[K, V]] = []
        while len(taken) < most:
            chunk = self._fetcher.first_readable()
            if chunk is None:
                break
            try:
                taken += chunk.take(most - len(taken), self._key_deserializer, self._value_deserializer)
            except KafkaError:
                if taken:
                    break
                raise
            if chunk.is_empty:
                self._fetcher.finish(chunk)
        return taken

    def take_arrow(self, columns: Sequence[str], max_bytes: int | None) -> list[pa.RecordBatch]:
        """Decodes whole chunks to columns until they hold `max_bytes`."""
        from ottla.client.consumer.arrow import arrow_schema, with_source

        schema = arrow_schema(tuple(columns))
        inner = [name for name in columns if name not in ("topic", "partition")]
        batches: list[pa.RecordBatch] = []
        size = 0
        while max_bytes is None or size < max_bytes:
            chunk = self._fetcher.first_readable()
            if chunk is None:
                break
            try:
                batch = chunk.take_arrow(inner)
            except KafkaError:
                if batches:
                    break
                raise
            size += chunk.size
            self._fetcher.finish(chunk)
            if batch.num_rows:
                batches.append(with_source(batch, chunk.state.partition, schema))
        return batches

    async def wait(self, deadline: float | None) -> bool:
        """Waits for something new; False when the time is over."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._fetcher.arrived.wait()
        except TimeoutError:
            return False
        return True

    # One by one.

    @property
    def has_next(self) -> bool:
        return self._at < len(self._leftover)

    def next(self) -> ConsumerRecord[K, V]:
        record = self._leftover[self._at]
        self._at += 1
        return record

    def refill(self, records: list[ConsumerRecord[K, V]]) -> None:
        self._leftover, self._at = records, 0

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Where each partition goes on for the user, as it would be committed."""
        unread = self.unread()
        return {
            s.partition: CommittedOffset(unread.get(s.partition, s.position), s.position_epoch)
            for s in self._assignment
            if s.position is not None
        }

    def unread(self) -> dict[TopicPartition, int]:
        """The offset of each partition's first record that was polled and not given out."""
        first: dict[TopicPartition, int] = {}
        for record in self._leftover[self._at :]:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return first

    def rewind(self, only: Collection[TopicPartition] | None = None) -> None:
        """Makes what was not given out readable again, by fetching it again."""
        if not self.has_next:
            return
        for partition, offset in self.unread().items():
            state = self._assignment.get(partition)
            if state is not None and (only is None or partition in only):
                state.seek(offset, state.position_epoch)
                self._on_seek()
        self.drop(only)

    def drop(self, only: Collection[TopicPartition] | None) -> None:
        """Forgets what was not given out, of these partitions or of all."""
        rest = self._leftover[self._at :]
        self._at = 0
        self._leftover = [] if only is None else [r for r in rest if (r.topic, r.partition) not in only]
