"""Collect records from completed fetches, and keep the positions equal to what the user has received.

`async for` takes the records of one poll at a time. Those that were not yielded yet are the `leftover`:
positions are reported as if they had not been read, and another poll returns them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ottla.client.consumer.fetcher import Fetcher
from ottla.client.consumer.subscription_state import SubscriptionState
from ottla.client.group_offsets import CommittedOffset
from ottla.client.serialization import Deserializer, RecordSerde, SchemaNeeded
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import ConsumerRecord
from ottla.runtime.pool import Pool

if TYPE_CHECKING:
    import pyarrow as pa


K = TypeVar("K")
V = TypeVar("V")

DECODED_ASIDE_BYTES = 16 * 1024 * 1024
"""Data that takes some milliseconds to decode. For less, a thread costs more than it gains."""
COMPRESSED_EFFORT = 16
"""The cost of a compressed byte, in plain bytes."""


class FetchCollector(Generic[K, V]):
    """Decodes completed fetches to records or columns."""

    def __init__(
        self,
        fetcher: Fetcher,
        subscriptions: SubscriptionState,
        key_deserializer: Deserializer | RecordSerde | None,
        value_deserializer: Deserializer | RecordSerde | None,
        on_seek: Callable[[], object],
        pool: Pool,
    ) -> None:
        self._fetcher = fetcher
        self._subscriptions = subscriptions
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._on_seek = on_seek
        self._pool = pool
        self._leftover: list[ConsumerRecord[Any, Any]] = []
        self._at = 0

    def take(self, most: int, max_inflated_bytes: int) -> list[ConsumerRecord[K, V]]:
        """Decode up to `most` records, and no further batch once compressed ones have inflated to so many
        bytes. An error is raised only when there are no records before it.
        """
        taken: list[ConsumerRecord[K, V]] = []
        inflated = 0
        while len(taken) < most and inflated < max_inflated_bytes:
            fetch = self._fetcher.first_readable()
            if fetch is None:
                break
            inflated -= fetch.inflated_bytes
            try:
                taken += fetch.take(most - len(taken), self._key_deserializer, self._value_deserializer)
            except (KafkaError, SchemaNeeded):
                if taken:
                    break
                raise
            inflated += fetch.inflated_bytes
            if fetch.is_empty:
                self._fetcher.finish(fetch)
        return taken

    async def take_arrow(self, columns: Sequence[str], max_bytes: int | None) -> list[pa.RecordBatch]:
        """Decode whole fetches to columns until they hold `max_bytes`, in the pool if they are large:
        meanwhile the loop receives more. Nothing is consumed before all is decoded, so a cancelled call loses
        nothing.
        """
        from ottla.client.consumer.arrow import decode_fetches

        fetches = self._fetcher.readable(max_bytes)
        if not fetches:
            return []
        work = [(fetch, fetch.state.position or 0) for fetch in fetches]
        effort = sum(fetch.size * (COMPRESSED_EFFORT if fetch.is_compressed else 1) for fetch in fetches)
        if effort < DECODED_ASIDE_BYTES:
            decoded, error = decode_fetches(work, columns)
        else:
            decoded, error = await self._pool.run(decode_fetches, work, columns)
        batches: list[pa.RecordBatch] = []
        for fetch, batch in zip(fetches, decoded, strict=False):
            # The user may have called `seek` or `pause` meanwhile.
            if fetch.is_readable:
                fetch.taken_arrow()
                self._fetcher.finish(fetch)
                if batch.num_rows:
                    batches.append(batch)
        if error is not None and not batches:
            raise error
        return batches

    async def wait(self, deadline: float | None) -> bool:
        """Wait for new data or an error; False at the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._fetcher.arrived.wait()
        except TimeoutError:
            return False
        return True

    # Records one by one.

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
        """Return the position of each partition as it would be committed."""
        unread = self.unread()
        return {
            s.partition: CommittedOffset(unread.get(s.partition, s.position), s.position_epoch)
            for s in self._subscriptions
            if s.position is not None
        }

    def unread(self) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first record that was polled and not yielded."""
        first: dict[TopicPartition, int] = {}
        for record in self._leftover[self._at :]:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return first

    def rewind(self, only: Collection[TopicPartition] | None = None) -> None:
        """Make records that were not yielded readable again, by fetching them again."""
        if not self.has_next:
            return
        for partition, offset in self.unread().items():
            state = self._subscriptions.get(partition)
            if state is not None and (only is None or partition in only):
                state.seek(offset, state.position_epoch)
                self._on_seek()
        self.drop(only)

    def drop(self, only: Collection[TopicPartition] | None) -> None:
        """Forget records that were not yielded, of these partitions or of all."""
        rest = self._leftover[self._at :]
        self._at = 0
        self._leftover = [] if only is None else [r for r in rest if (r.topic, r.partition) not in only]
