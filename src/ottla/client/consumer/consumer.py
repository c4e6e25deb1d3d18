"""The consumer's face: from partitions to records in the user's hands.

Three tasks work behind it, each on its own: `Refresher` keeps metadata, `Positions` finds where to begin, and
`Fetcher` keeps bytes ready. A call of the user only takes what they have prepared, so records that were
handed out are exactly those below the positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ottla.client.admin.offsets import FoundOffset, OffsetSpec
from ottla.client.cluster import Cluster, CoordinatorType
from ottla.client.consumer.config import ConsumerConfig, Reset, ResetPolicy
from ottla.client.consumer.fetcher import Fetcher
from ottla.client.consumer.positions import Positions
from ottla.client.consumer.state import Assignment, PartitionState
from ottla.client.coordinator import Coordinator
from ottla.client.group_offsets import CommittedOffset, GroupOffsets
from ottla.client.refresher import Refresher
from ottla.client.serialization import Deserializer, deserializer
from ottla.client.settings import Servers, connection_config, settings_of
from ottla.client.view import TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records._kernel import ConsumerRecord
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ARROW_COLUMNS", "Consumer"]

K = TypeVar("K")
V = TypeVar("V")

ARROW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The columns of `poll_arrow`, those of Spark's Kafka source."""


class Consumer(Generic[K, V]):
    """Reads records. All settings of `ConsumerConfig` can be given as keywords, or by Kafka's names as a
    mapping in the first argument.

    Keys and values are bytes unless deserializers are given: a callable, or "str", "json", "int".
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        key_deserializer: Deserializer | str | None = None,
        value_deserializer: Deserializer | str | None = None,
        runtime: Runtime | None = None,
        **settings: Any,
    ) -> None:
        self.config = settings_of(ConsumerConfig, bootstrap_servers, settings)
        self._key_deserializer = deserializer(key_deserializer)
        self._value_deserializer = deserializer(value_deserializer)
        self._own_runtime = runtime is None
        self._runtime = runtime if runtime is not None else Runtime.real(pool_workers=1)
        self._cluster = Cluster(self._runtime, connection_config(self.config))
        self._assignment = Assignment()
        self._refresher = Refresher(self._cluster, self._metadata_changed)
        self._offsets: GroupOffsets | None = None
        if self.config.group_id is not None:
            coordinator = Coordinator(
                self._cluster,
                CoordinatorType.GROUP,
                self.config.group_id,
                timeout_ms=self.config.default_api_timeout_ms,
            )
            self._offsets = GroupOffsets(self._cluster, self.config.group_id, coordinator)
        self._positions = Positions(
            self._cluster,
            self.config,
            self._assignment,
            self._positions_changed,
            self._offsets.fetch if self._offsets is not None else None,
        )
        self._fetcher = Fetcher(
            self._cluster, self.config, self._assignment, self._refresher, self._positions.wake
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        # Polled for `async for` and not given out yet.
        self._leftover: list[ConsumerRecord[K, V]] = []
        self._leftover_at = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reaches the cluster; BootstrapFailed says why it cannot."""
        if self._tasks or self._closed:
            raise RuntimeError("a consumer starts once")
        try:
            await self._cluster.start()
        except BaseException:
            await self._release()
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(part.run(), name=f"ottla-consumer-{type(part).__name__.lower()}")
            for part in (self._refresher, self._positions, self._fetcher)
        ]

    async def close(self) -> None:
        """Leaves the group, if there is one, and disconnects."""
        if self._closed:
            return
        self._closed = True
        await self._release()

    async def _release(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.close()
        if self._own_runtime:
            self._runtime.close()

    # What to read.

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions, in no group's name. Replaces what was assigned before; a partition
        that stays keeps its position.
        """
        self._check_open()
        wanted = [TopicPartition(*partition) for partition in partitions]
        self._forget_leftover(keep=set(wanted))
        self._assignment.replace(wanted)
        unknown = {p.topic for p in wanted if self._cluster.view.leader(p) is None}
        if unknown:
            self._refresher.ask(unknown)
        self._positions.wake()
        self._fetcher.wake()

    def assignment(self) -> list[TopicPartition]:
        return self._assignment.partitions

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Keeps the partitions and their positions, and gives no records of them."""
        for state in self._states(partitions):
            state.paused = True
            self._rewind_leftover({state.partition})

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        for state in self._states(partitions):
            state.paused = False
        self._fetcher.wake()
        self._fetcher.arrived.set()

    def paused(self) -> list[TopicPartition]:
        return [state.partition for state in self._assignment if state.paused]

    # Where to read.

    def seek(
        self, partition: TopicPartition | tuple[str, int], offset: int, *, leader_epoch: int = -1
    ) -> None:
        """The next record from this partition is the one at `offset`, or the first after it."""
        if offset < 0:
            raise ValueError(f"offset {offset} is negative; use seek_to_beginning or seek_to_end")
        state = self._assignment.of(TopicPartition(*partition))
        self._drop_leftover({state.partition})
        state.seek(offset, leader_epoch)
        self._positions.wake()
        self._fetcher.wake()

    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """To the first record of these partitions, or of all that are assigned."""
        self._seek_by(partitions, ResetPolicy(Reset.EARLIEST))

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Behind the last record; with read_committed, behind the last one of an ended transaction."""
        self._seek_by(partitions, ResetPolicy(Reset.LATEST))

    def _seek_by(self, partitions: Sequence[TopicPartition | tuple[str, int]], policy: ResetPolicy) -> None:
        states = self._states(partitions) if partitions else list(self._assignment)
        self._drop_leftover({state.partition for state in states})
        for state in states:
            state.seek_by(policy)
        self._positions.wake()

    async def seek_to_timestamp(
        self, timestamp_ms: int, *partitions: TopicPartition | tuple[str, int]
    ) -> None:
        """To the first record at or after a time; to the end where there is none."""
        wanted = [TopicPartition(*p) for p in partitions] or self.assignment()
        found = await self.offsets_for_times(dict.fromkeys(wanted, timestamp_ms))
        for partition, offset in found.items():
            if offset is None:
                self.seek_to_end(partition)
            else:
                self.seek(partition, offset.offset, leader_epoch=offset.leader_epoch)

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record that the user gets; waits until it is known."""
        state = self._assignment.of(TopicPartition(*partition))
        async with self._within(f"the position of {state.partition}"):
            while state.position is None:
                if state.error is not None:
                    error, state.error = state.error, None
                    self._positions.wake()
                    raise error
                self._fetcher.arrived.clear()
                self._positions.wake()
                await self._fetcher.arrived.wait()
        return self._leftover_positions().get(state.partition, state.position)

    def lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """Records between the position and the end, as of the last fetch; None before the first."""
        state = self._assignment.of(TopicPartition(*partition))
        end = state.last_stable_offset if self.config.read_committed else state.high_watermark
        position = self._leftover_positions().get(state.partition, state.position)
        return max(end - position, 0) if end is not None and position is not None else None

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {
            p: f.offset for p, f in (await self._list(dict.fromkeys(partitions, OffsetSpec.EARLIEST))).items()
        }

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {
            p: f.offset for p, f in (await self._list(dict.fromkeys(partitions, OffsetSpec.LATEST))).items()
        }

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """For each partition the first record at or after a time, None where there is none."""
        found = await self._list(times_ms)
        return {partition: result if result.offset >= 0 else None for partition, result in found.items()}

    async def _list(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        results = await self._positions.offsets.list(wanted, read_committed=self.config.read_committed)
        found: dict[TopicPartition, FoundOffset] = {}
        for partition, result in results.items():
            if isinstance(result, KafkaError):
                raise result
            found[partition] = result
        return found

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        info = await self._cluster.topic(topic, timeout_ms=self.config.default_api_timeout_ms)
        return [TopicPartition(topic, p.partition) for p in info.partitions]

    async def topics(self) -> list[str]:
        """All topics that this client may see, internal ones left out."""
        view = await self._cluster.refresh(all_topics=True)
        return sorted(name for name, info in view.topics.items() if not info.is_internal and not info.error)

    # Reading.

    async def poll(
        self, max_records: int | None = None, *, timeout_ms: float | None = 1_000
    ) -> list[ConsumerRecord[K, V]]:
        """Records as soon as there are any, up to `max_records` (default: `max.poll.records`); none after
        `timeout_ms`. None waits for ever. Raises what stops a partition, once; the others go on.
        """
        self._rewind_leftover()
        return await self._poll(max_records or self.config.max_poll_records, timeout_ms)

    async def _poll(self, most: int, timeout_ms: float | None) -> list[ConsumerRecord[K, V]]:
        self._check_open()
        deadline = self._deadline(timeout_ms)
        while True:
            self._fetcher.arrived.clear()
            records = self._take(most)
            if records:
                return records
            self._raise_error()
            if not await self._data(deadline):
                return []

    def _take(self, most: int) -> list[ConsumerRecord[K, V]]:
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

    async def poll_arrow(
        self,
        *,
        max_bytes: int | None = None,
        timeout_ms: float | None = 1_000,
        columns: Sequence[str] = ARROW_COLUMNS,
    ) -> pa.Table:
        """All records that wait, as one table with the columns of Spark's Kafka source, without a Python
        object for each record; an empty table after `timeout_ms`. Takes whole fetches until they hold
        `max_bytes`, if that is given.
        """
        import pyarrow as pa

        from ottla.client.consumer.arrow import arrow_schema, with_source

        self._check_open()
        self._rewind_leftover()
        schema = arrow_schema(tuple(columns))
        deadline = self._deadline(timeout_ms)
        while True:
            self._fetcher.arrived.clear()
            batches: list[pa.RecordBatch] = []
            size = 0
            while max_bytes is None or size < max_bytes:
                chunk = self._fetcher.first_readable()
                if chunk is None:
                    break
                try:
                    batch = chunk.take_arrow([c for c in columns if c not in ("topic", "partition")])
                except KafkaError:
                    if batches:
                        break
                    raise
                size += chunk.size
                self._fetcher.finish(chunk)
                if batch.num_rows:
                    batches.append(with_source(batch, chunk.state.partition, schema))
            if batches:
                return pa.Table.from_batches(batches, schema)
            self._raise_error()
            if not await self._data(deadline):
                return schema.empty_table()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        while self._leftover_at >= len(self._leftover):
            self._leftover, self._leftover_at = [], 0
            if self._closed:
                raise StopAsyncIteration
            self._leftover = await self._poll(self.config.max_poll_records, None)
        record = self._leftover[self._leftover_at]
        self._leftover_at += 1
        return record

    # Committed offsets.

    async def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed for these partitions, None where it has nothing."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        found = await self._group_offsets().fetch(wanted)
        return {partition: found.get(partition) for partition in wanted}

    async def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Commits these offsets, or the positions: everything that was handed out. Gives what was committed;
        KafkaError names a partition that was refused.
        """
        wanted = (
            self._to_commit()
            if offsets is None
            else {
                TopicPartition(*partition): offset
                if isinstance(offset, CommittedOffset)
                else CommittedOffset(offset)
                for partition, offset in offsets.items()
            }
        )
        if wanted:
            results = await self._group_offsets().commit(wanted)
            for error in results.values():
                if error is not None:
                    raise error
        return wanted

    def _to_commit(self) -> dict[TopicPartition, CommittedOffset]:
        unread = self._leftover_positions()
        return {
            state.partition: CommittedOffset(
                unread.get(state.partition, state.position), state.position_epoch
            )
            for state in self._assignment
            if state.position is not None
        }

    def _group_offsets(self) -> GroupOffsets:
        if self._offsets is None:
            raise ValueError("committed offsets belong to a group; set group.id")
        return self._offsets

    # Inside.

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the consumer is closed")
        if not self._tasks:
            raise RuntimeError("the consumer has not been started: use `async with`, or await start()")

    def _states(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> list[PartitionState]:
        return [self._assignment.of(TopicPartition(*partition)) for partition in partitions]

    def _metadata_changed(self) -> None:
        self._positions.wake()
        self._fetcher.wake()

    def _positions_changed(self) -> None:
        self._fetcher.wake()
        self._fetcher.arrived.set()

    def _raise_error(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        error = self._assignment.take_error()
        if error is not None:
            self._positions.wake()
            self._fetcher.wake()
            raise error

    def _deadline(self, timeout_ms: float | None) -> float | None:
        return None if timeout_ms is None else asyncio.get_running_loop().time() + timeout_ms / 1000

    async def _data(self, deadline: float | None) -> bool:
        """Waits for something new; False when the time is over."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._fetcher.arrived.wait()
        except TimeoutError:
            return False
        return True

    def _within(self, what: str) -> _Limit:
        return _Limit(self.config.default_api_timeout_ms, what)

    # Records of an iteration that was left.

    def _leftover_positions(self) -> dict[TopicPartition, int]:
        """The offset of each partition's first record that was polled and not given out."""
        first: dict[TopicPartition, int] = {}
        for record in self._leftover[self._leftover_at :]:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return first

    def _rewind_leftover(self, only: set[TopicPartition] | None = None) -> None:
        """Makes what was not given out readable again, by fetching it again."""
        if self._leftover_at >= len(self._leftover):
            return
        for partition, offset in self._leftover_positions().items():
            state = self._assignment.get(partition)
            if state is not None and (only is None or partition in only):
                state.seek(offset, state.position_epoch)
                self._positions.wake()
                self._fetcher.wake()
        self._drop_leftover(only)

    def _forget_leftover(self, keep: set[TopicPartition]) -> None:
        self._drop_leftover({p for p in self._leftover_positions() if p not in keep})

    def _drop_leftover(self, only: set[TopicPartition] | None) -> None:
        rest = self._leftover[self._leftover_at :]
        self._leftover_at = 0
        self._leftover = [] if only is None else [r for r in rest if (r.topic, r.partition) not in only]


class _Limit:
    """`default.api.timeout.ms` around a call, with an error that says what did not happen."""

    def __init__(self, timeout_ms: int, what: str) -> None:
        self._timeout_ms = timeout_ms
        self._what = what
        self._timeout = asyncio.timeout(timeout_ms / 1000)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exception: Any) -> None:
        try:
            await self._timeout.__aexit__(*exception)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self._what} did not come within default.api.timeout.ms={self._timeout_ms}",
            ) from None
