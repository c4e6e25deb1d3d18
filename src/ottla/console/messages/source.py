"""Where messages are read from: a topic, by a consumer; and the metadata log, from its files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol

from ottla.client.admin import Admin
from ottla.client.admin.offsets import FoundOffset, OffsetSpec, all_or_raise
from ottla.client.consumer import Consumer
from ottla.client.consumer.completed_fetch import UnreadableBatch
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import ConsumerRecord
from ottla.records.types import MAX_DECOMPRESSED_BYTES

POLL_RECORDS: Final = 500
POLL_MS: Final = 500
_BRIEF_MS: Final = 10
# What a fetch brings at once, and a poll decompresses, unless a single batch is larger.
FETCH_BYTES: Final = 4 * 1024 * 1024
# What a batch may decompress to in a list, of which many are made at once.
LISTED_BATCH_BYTES: Final = 16 * 1024 * 1024
MAX_PROBLEMS: Final = 20
Bounds = dict[int, tuple[int, int]]


class RecordReader(Protocol):
    """Reads on from a position in each partition. `problems` says what was passed over, and why."""

    problems: list[str]

    async def poll(self) -> list[ConsumerRecord[bytes, bytes]]:
        """Return the next messages; empty if there are none for a while."""
        ...

    def positions(self) -> Mapping[int, int]:
        """The offset that is read next, of each partition where it is known."""
        ...

    def seek(self, positions: Mapping[int, int]) -> None:
        """Read exactly these partitions, from these offsets on."""
        ...


class RecordSource(Protocol):
    @property
    def topic(self) -> str: ...

    async def bounds(self, partitions: Iterable[int] | None) -> Bounds:
        """The first offset and the end of these partitions, or of all. KafkaError if one does not exist."""
        ...

    async def offsets_at(self, partitions: Iterable[int], time_ms: int) -> dict[int, int | None]:
        """The first offset at or after a time; None where there is none."""
        ...

    def open(self, *, live: bool = False, whole: bool = False) -> AbstractAsyncContextManager[RecordReader]:
        """Read messages that are there or, if it is `live`, wait for further ones as well. Batches that are
        too large for a list are passed over, unless they are read `whole`.
        """
        ...


class TopicSource:
    """A topic of the cluster. `new_consumer` makes a consumer that acts as the principal of the session."""

    def __init__(
        self,
        topic: str,
        admin: Admin,
        new_consumer: Callable[..., Consumer[bytes, bytes]],
        *,
        committed: bool,
    ) -> None:
        self.topic: Final = topic
        self._admin = admin
        self._new_consumer = new_consumer
        self._committed = committed

    async def bounds(self, partitions: Iterable[int] | None) -> Bounds:
        info = await self._admin.topics.describe(self.topic)
        known = {each.partition for each in info.partitions}
        wanted = sorted(known) if partitions is None else list(partitions)
        if missing := [each for each in wanted if each not in known]:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {self.topic!r} has no partition {missing[0]}"
            )
        first = await self._list(wanted, OffsetSpec.EARLIEST)
        end = await self._list(wanted, OffsetSpec.LATEST)
        return {each: (first[each].offset, end[each].offset) for each in wanted}

    async def offsets_at(self, partitions: Iterable[int], time_ms: int) -> dict[int, int | None]:
        found = await self._list(partitions, time_ms)
        return {each: at.offset if at.offset >= 0 else None for each, at in found.items()}

    async def _list(self, partitions: Iterable[int], spec: int) -> dict[int, FoundOffset]:
        wanted = {TopicPartition(self.topic, each): int(spec) for each in partitions}
        found = await self._admin.offsets.list(wanted, read_committed=self._committed)
        return {each.partition: at for each, at in all_or_raise(found).items()}

    @asynccontextmanager
    async def open(self, *, live: bool = False, whole: bool = False) -> AsyncIterator[RecordReader]:
        consumer = self._new_consumer(
            isolation_level="read_committed" if self._committed else "read_uncommitted",
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            enable_auto_commit=False,
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=FETCH_BYTES // 4,
            prefetch_max_bytes=FETCH_BYTES,
            max_decompressed_bytes=MAX_DECOMPRESSED_BYTES if whole else LISTED_BATCH_BYTES,
            # A fetch that waits at the end would delay the next window, as a broker answers in order.
            fetch_max_wait_ms=POLL_MS if live else _BRIEF_MS,
        )
        async with consumer:
            yield _TopicReader(self.topic, consumer)


class _TopicReader:
    def __init__(self, topic: str, consumer: Consumer[bytes, bytes]) -> None:
        self._topic = topic
        self._consumer = consumer
        self.problems: list[str] = []

    async def poll(self) -> list[ConsumerRecord[bytes, bytes]]:
        try:
            return await self._consumer.poll(POLL_RECORDS, timeout_ms=POLL_MS)
        except UnreadableBatch as error:
            self._pass_over(error)
            return []

    def _pass_over(self, error: UnreadableBatch) -> None:
        self._consumer.seek(error.partition, error.next_offset)
        last = error.next_offset - 1
        which = f"offset {last}" if last == error.offset else f"offsets {error.offset} to {last}"
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(
                f"partition {error.partition.partition}: {which} cannot be listed: {error.message}"
            )

    def positions(self) -> dict[int, int]:
        return {each.partition: at.offset for each, at in self._consumer.positions().items()}

    def seek(self, positions: Mapping[int, int]) -> None:
        self._consumer.assign([TopicPartition(self._topic, each) for each in positions])
        for partition, offset in positions.items():
            self._consumer.seek(TopicPartition(self._topic, partition), offset)
