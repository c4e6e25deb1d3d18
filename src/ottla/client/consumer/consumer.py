"""The consumer: from assigned partitions to records (Java's `AsyncKafkaConsumer`).

Three tasks run behind it: `MetadataUpdater` keeps metadata fresh, `OffsetFetcher` finds the positions to
begin at, and `Fetcher` fetches ahead. A call of the user only takes what they have prepared. Invariant: the
records that were returned are exactly those below the positions. In a group, a `GroupMembership` decides
which partitions are assigned; it does so within `poll`, and partitions are revoked nowhere else.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from ottla.client.admin.offsets import FoundOffset, OffsetSpec, all_or_raise
from ottla.client.consumer.commit_request_manager import CommitRequestManager
from ottla.client.consumer.config import ConsumerConfig, Reset, ResetPolicy
from ottla.client.consumer.consumer_coordinator import ClassicConsumerCoordinator
from ottla.client.consumer.consumer_membership_manager import ConsumerMembershipManager
from ottla.client.consumer.consumer_metrics import ConsumerMetrics
from ottla.client.consumer.fetch_collector import FetchCollector
from ottla.client.consumer.fetcher import Fetcher
from ottla.client.consumer.group_membership import GroupMembership, OnStalled, RebalanceListener, Subscription
from ottla.client.consumer.heartbeat_thread import HeartbeatThread
from ottla.client.consumer.offset_fetcher import OffsetFetcher
from ottla.client.consumer.subscription_state import SubscriptionState, TopicPartitionState
from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.group_offsets import CommittedOffset, GroupOffsets
from ottla.client.metrics import ClientMetrics, MetricName
from ottla.client.network_client import CoordinatorType, MetadataUpdater, NetworkClient
from ottla.client.producer.transaction_manager import GroupMember
from ottla.client.serialization import Deserializer, RecordSerde, SchemaNeeded, deserializer
from ottla.client.settings import Servers, connection_config, settings_of
from ottla.client.telemetry_reporter import ClientTelemetryReporter
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import ConsumerRecord
from ottla.runtime import process
from ottla.runtime.loop import check_loop, run_to_end
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    import pyarrow as pa


class ConsumerInterceptor(Protocol):
    """Called by `poll` and `async for`, not by `poll_arrow`."""

    def on_consume(self, records: list[ConsumerRecord[Any, Any]]) -> list[ConsumerRecord[Any, Any]]: ...

    def on_commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None: ...


K = TypeVar("K")
V = TypeVar("V")

ARROW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The columns of `poll_arrow`, those of Spark's Kafka source."""
_WHERE = ("topic", "partition", "offset")
Partition = TopicPartition | tuple[str, int]


class Consumer(Generic[K, V]):
    """Reads records. All settings of `ConsumerConfig` can be given as keywords, or by Kafka's names as a
    mapping in the first argument.

    Keys and values are bytes unless deserializers are given: a callable, "str", "json", "int", or one of
    `ottla.serdes`. `subscribe` shares topics with the other members of `group.id`; `assign` takes partitions
    without a group.

    `on_stalled` is called when the user has not polled for `max.poll.interval.ms` and the member leaves its
    group: at once, in the thread of the heartbeats, as the user's loop may be what is blocked.
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        key_deserializer: Deserializer | RecordSerde | str | None = None,
        value_deserializer: Deserializer | RecordSerde | str | None = None,
        interceptors: Iterable[ConsumerInterceptor] = (),
        on_stalled: OnStalled | None = None,
        runtime: Runtime | None = None,
        **settings: Any,
    ) -> None:
        self.config = settings_of(ConsumerConfig, bootstrap_servers, settings)
        self._interceptors = tuple(interceptors)
        self._on_stalled = on_stalled
        self._own_runtime = runtime is None
        self._runtime = runtime if runtime is not None else Runtime.real(pool_workers=1)
        self._cluster = NetworkClient(self._runtime, connection_config(self.config))
        self._subscriptions = SubscriptionState()
        self._metrics = ClientMetrics("consumer", self.config.client_id, self._cluster)
        self._sensors = ConsumerMetrics(
            self._metrics, self._subscriptions, read_committed=self.config.read_committed
        )
        self._telemetry = ClientTelemetryReporter(self._cluster, self._metrics, self._resource)
        self._metadata_updater = MetadataUpdater(self._cluster, self._on_metadata_update)
        self._commit_manager: CommitRequestManager | None = None
        if self.config.group_id is not None:
            coordinator = CoordinatorClient(
                self._cluster,
                CoordinatorType.GROUP,
                self.config.group_id,
                timeout_ms=self.config.default_api_timeout_ms,
            )
            offsets = GroupOffsets(self._cluster, self.config.group_id, coordinator)
            self._commit_manager = CommitRequestManager(self.config, offsets, self.positions, self._sensors)
        self._offset_fetcher = OffsetFetcher(
            self._cluster,
            self.config,
            self._subscriptions,
            self._on_position_change,
            self._commit_manager.fetch if self._commit_manager is not None else None,
        )
        self._fetcher = Fetcher(
            self._cluster,
            self.config,
            self._subscriptions,
            self._metadata_updater,
            self._offset_fetcher.wake,
            self._sensors,
        )
        self._fetch_collector: FetchCollector[K, V] = FetchCollector(
            self._fetcher,
            self._subscriptions,
            deserializer(key_deserializer),
            deserializer(value_deserializer),
            self._on_metadata_update,
            self._runtime.pool,
        )
        self._membership: GroupMembership | None = None
        self._starting_membership: Subscription | None = None
        self._listener: RebalanceListener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = process.pid()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_tasks", None) and not self._closed and self._pid == process.pid():
            warnings.warn(f"{type(self).__name__} was not closed", ResourceWarning, source=self, stacklevel=2)

    async def start(self) -> None:
        """Connect to the cluster; BootstrapFailed says why it cannot."""
        if self._tasks or self._closed:
            raise RuntimeError("a consumer starts once")
        try:
            await self._cluster.start()
        except BaseException:
            self._closed = True
            await self._release()
            raise
        loop = self._loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(part.run(), name=f"ottla-consumer-{type(part).__name__.lower()}")
            for part in (self._metadata_updater, self._offset_fetcher, self._fetcher)
        ]
        self._telemetry.start()

    async def close(self) -> None:
        """Commit if commits are automatic, leave the group, and disconnect."""
        if self._closed:
            return
        if self._tasks:
            check_loop(self._loop, "the consumer")
        self._closed = True
        self._fetcher.arrived.set()  # a poll of another task that waits
        try:
            if self._commit_manager is not None and self._tasks:
                await self._commit_manager.wait_for_async_commits()
                await self._commit_manager.maybe_auto_commit_sync()
            if self._membership is not None:
                await self._membership.leave()
        finally:
            await run_to_end(self._release())

    async def _release(self) -> None:
        await self._telemetry.close()
        if self._commit_manager is not None:
            await self._commit_manager.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.close()
        if self._own_runtime:
            self._runtime.close()

    # What to read.

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions, without a group. Replaces the previous assignment; a partition that
        stays keeps its position.
        """
        self._check_open()
        if self._membership is not None or self._starting_membership is not None:
            raise RuntimeError("this consumer has subscribed to topics: its group assigns the partitions")
        self.assign_from_subscribed(TopicPartition(*partition) for partition in partitions)

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Share these topics, or those whose whole name matches `pattern`, with the other members of the
        group. Replaces the previous subscription. `poll` joins the group and calls `listener`.
        """
        self._check_open()
        if self.config.group_id is None:
            raise ValueError("subscribe needs a group.id; without one, assign partitions")
        names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe to topics or to a pattern, one of the two")
        text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        subscription = Subscription(names, text)
        self._listener = listener
        self._metadata_updater.request_update(names)
        if self._membership is not None:
            self._membership.subscribe(subscription, listener)
        else:
            self._starting_membership = subscription
        self.wake()

    async def unsubscribe(self) -> None:
        """Leave the group; partitions are revoked as in any rebalance."""
        self._starting_membership = None
        if self._membership is not None:
            membership, self._membership = self._membership, None
            await self.commit_before_revocation()
            await membership.leave()
            if self._commit_manager is not None:
                self._commit_manager.membership = None
        self.assign_from_subscribed([])

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return self._subscriptions.partitions

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these partitions, but keep them and their positions."""
        for state in self._states(partitions):
            state.paused = True
            self._fetch_collector.rewind({state.partition})

    def resume(self, *partitions: Partition) -> None:
        """Return records of paused partitions again."""
        for state in self._states(partitions):
            state.paused = False
        self._on_position_change()

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return [state.partition for state in self._subscriptions if state.paused]

    # Where to read.

    def seek(self, partition: Partition, offset: int, *, leader_epoch: int = -1) -> None:
        """Continue this partition with the record at `offset`, or the first one after it."""
        if offset < 0:
            raise ValueError(f"offset {offset} is negative; use seek_to_beginning or seek_to_end")
        state = self._subscriptions.of(TopicPartition(*partition))
        self._fetch_collector.drop({state.partition})
        state.seek(offset, leader_epoch)
        self._on_metadata_update()

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Continue with the first record of these partitions, or of all that are assigned."""
        self._seek_by(partitions, ResetPolicy(Reset.EARLIEST))

    def seek_to_end(self, *partitions: Partition) -> None:
        """Continue after the last record; with read_committed, after the last one of a completed
        transaction.
        """
        self._seek_by(partitions, ResetPolicy(Reset.LATEST))

    def seek_to_committed(self) -> None:
        """Return to the committed offsets of the group in all partitions, as after an aborted transaction."""
        self._seek_by((), None)

    def _seek_by(self, partitions: Sequence[Partition], policy: ResetPolicy | None) -> None:
        states = self._states(partitions) if partitions else list(self._subscriptions)
        self._fetch_collector.drop({state.partition for state in states})
        for state in states:
            state.seek_by(policy)
        self._offset_fetcher.wake()

    async def seek_to_timestamp(self, timestamp_ms: int, *partitions: Partition) -> None:
        """Continue with the first record at or after a time, or at the end if there is none."""
        wanted = [TopicPartition(*p) for p in partitions] or self.assignment()
        found = await self.offsets_for_times(dict.fromkeys(wanted, timestamp_ms))
        for partition, offset in found.items():
            if offset is None:
                self.seek_to_end(partition)
            else:
                self.seek(partition, offset.offset, leader_epoch=offset.leader_epoch)

    async def position(self, partition: Partition) -> int:
        """Return the offset of the next record that `poll` returns; wait until it is known."""
        state = self._subscriptions.of(TopicPartition(*partition))
        deadline = self._deadline(self.config.default_api_timeout_ms)
        while state.position is None:
            if state.error is not None:
                error, state.error = state.error, None
                raise error
            self._fetcher.arrived.clear()
            self._offset_fetcher.wake()
            if not await self._fetch_collector.wait(deadline):
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{state.partition}: no position within "
                    f"default.api.timeout.ms={self.config.default_api_timeout_ms}",
                )
        return self._fetch_collector.unread().get(state.partition, state.position)

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """All known positions, as `commit` would commit them."""
        return self._fetch_collector.positions()

    def lag(self, partition: Partition) -> int | None:
        """The number of records between the position and the end, as of the last fetch; None before the
        first.
        """
        state = self._subscriptions.of(TopicPartition(*partition))
        end = state.last_stable_offset if self.config.read_committed else state.high_watermark
        position = self._fetch_collector.unread().get(state.partition, state.position)
        return max(end - position, 0) if end is not None and position is not None else None

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets of the first records of any partitions, assigned or not."""
        return await self._ends(partitions, OffsetSpec.EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets after the last records; with read_committed, after those of completed transactions."""
        return await self._ends(partitions, OffsetSpec.LATEST)

    async def _ends(self, partitions: Iterable[TopicPartition], spec: int) -> dict[TopicPartition, int]:
        found = await self._list(dict.fromkeys(partitions, spec))
        return {partition: result.offset for partition, result in found.items()}

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | None]:
        """For each partition the first record at or after a time; None where there is none."""
        found = await self._list(times_ms)
        return {partition: result if result.offset >= 0 else None for partition, result in found.items()}

    async def _list(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        found = await self._offset_fetcher.offsets.list(wanted, read_committed=self.config.read_committed)
        return all_or_raise(found)

    async def partitions_for(self, topic: str, *, timeout_ms: int | None = None) -> list[TopicPartition]:
        """The partitions of a topic; waits for the topic to be created, up to `default.api.timeout.ms` or
        this long.
        """
        if timeout_ms is None:
            timeout_ms = self.config.default_api_timeout_ms
        info = await self._cluster.topic(topic, timeout_ms=timeout_ms)
        return [TopicPartition(topic, p.partition) for p in info.partitions]

    # Reading.

    async def poll(
        self, max_records: int | None = None, *, timeout_ms: float | None = 1_000
    ) -> list[ConsumerRecord[K, V]]:
        """Return records as soon as there are any, up to `max_records` (default: `max.poll.records`), or none
        after `timeout_ms`, or when another task closes the consumer; None waits without limit. Raises an
        error that stops a partition, once; the other partitions continue.
        """
        self._fetch_collector.rewind()
        return await self._poll(max_records or self.config.max_poll_records, timeout_ms)

    async def _poll(self, most: int, timeout_ms: float | None) -> list[ConsumerRecord[K, V]]:
        deadline = self._deadline(timeout_ms)
        self._sensors.on_poll()
        while True:
            await self._turn()
            try:
                records = self._fetch_collector.take(most, self.config.fetch_max_bytes)
            except SchemaNeeded as needed:
                await self._runtime.pool.run(needed.load)
                continue
            if records:
                self._sensors.on_poll_done(len(records))
                for interceptor in self._interceptors:
                    records = interceptor.on_consume(records)
                return records
            self._raise_error()
            if not await self._fetch_collector.wait(deadline) or self._closed:
                self._sensors.on_poll_done(0)
                return []

    async def poll_arrow(
        self,
        *,
        max_bytes: int | None = None,
        timeout_ms: float | None = 1_000,
        columns: Sequence[str] = ARROW_COLUMNS,
    ) -> pa.Table:
        """Return all fetched records as one table with the columns of Spark's Kafka source, without a Python
        object for each record; an empty table after `timeout_ms`. Takes whole fetches until they hold
        `max_bytes`, if it is given.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ImportError('poll_arrow needs pyarrow: pip install "ottla[arrow]"') from error

        from ottla.client.consumer.arrow import arrow_schema

        self._fetch_collector.rewind()
        schema = arrow_schema(tuple(columns))
        deadline = self._deadline(timeout_ms)
        self._sensors.on_poll()
        while True:
            await self._turn()
            batches = await self._fetch_collector.take_arrow(columns, max_bytes)
            if batches:
                self._sensors.on_poll_done(sum(batch.num_rows for batch in batches))
                return pa.Table.from_batches(batches, schema)
            self._raise_error()
            if not await self._fetch_collector.wait(deadline) or self._closed:
                self._sensors.on_poll_done(0)
                return schema.empty_table()

    async def read_arrow(
        self, until: Mapping[Partition, int] | None = None, *, columns: Sequence[str] = ARROW_COLUMNS
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield tables, as `poll_arrow` does, until the positions of assigned partitions are at these
        offsets, or at the ends that all of them have at the call. Ends also where the last offsets have no
        records, such as markers of transactions. Other partitions are paused meanwhile. Raises
        REQUEST_TIMED_OUT if nothing comes for `default.api.timeout.ms`.
        """
        if self._membership is not None or self._starting_membership is not None:
            raise RuntimeError("read_arrow reads assigned partitions: this consumer has subscribed to topics")
        self._check_open()
        given = await self.end_offsets(self.assignment()) if until is None else until
        ends = {TopicPartition(*partition): offset for partition, offset in given.items()}
        decoded = (*columns, *(name for name in _WHERE if name not in columns))
        resumed = [partition for partition in self.assignment() if partition not in self.paused()]
        self.pause(*(partition for partition in resumed if partition not in ends))
        try:
            for partition in ends:
                await self.position(partition)
            async with aclosing(self._tables_until(ends, decoded)) as tables:
                async for table in tables:
                    yield table.select(columns)
        finally:
            self.resume(*(partition for partition in resumed if partition in self.assignment()))

    async def _tables_until(
        self, ends: Mapping[TopicPartition, int], columns: Sequence[str]
    ) -> AsyncGenerator[pa.Table, None]:
        import pyarrow as pa

        left = list(ends)
        before: dict[TopicPartition, int | None] = {}
        while True:
            now = {partition: self._subscriptions.of(partition).position for partition in left}
            done = [partition for partition, at in now.items() if at is not None and at >= ends[partition]]
            left = [partition for partition in left if partition not in done]
            self.pause(*done)
            if not left:
                return
            if now != before:
                before, deadline = now, self._deadline(self.config.default_api_timeout_ms)
            await self._turn()
            batches = await self._fetch_collector.take_arrow(columns, None)
            found = [batch for batch in map(partial(self._rows_before, ends), batches) if batch.num_rows]
            if found:
                yield pa.Table.from_batches(found)
                continue
            self._raise_error()
            if any(self._subscriptions.of(partition).position != now[partition] for partition in left):
                continue  # what was read has no rows
            if not await self._fetch_collector.wait(deadline):
                first = left[0]
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{first}: no records from offset {now[first]} on, and the end is {ends[first]}, within "
                    f"default.api.timeout.ms={self.config.default_api_timeout_ms}",
                )

    def _rows_before(self, ends: Mapping[TopicPartition, int], batch: pa.RecordBatch) -> pa.RecordBatch:
        """Cut a batch of one partition at its end, and leave the rest to be read again."""
        if not batch.num_rows:
            return batch
        names = batch.schema.names
        topic, number = (batch.column(names.index(name))[0].as_py() for name in ("topic", "partition"))
        partition, offsets = TopicPartition(topic, number), batch.column(names.index("offset"))
        end = ends[partition]
        if offsets[-1].as_py() < end:
            return batch
        self.seek(partition, end)
        return batch.slice(0, bisect_left(range(batch.num_rows), end, key=lambda row: offsets[row].as_py()))

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        reader = self._fetch_collector
        while not reader.has_next:
            if self._closed:
                raise StopAsyncIteration
            reader.refill([])
            reader.refill(await self._poll(self.config.max_poll_records, None))
        return reader.next()

    async def _turn(self) -> None:
        """Begin a poll: make commits that are due, and let the group membership work."""
        self._check_open()
        # A loop that only polls must not keep the event loop from receiving data and from its other tasks.
        await asyncio.sleep(0)
        if self._closed:
            return
        self._fetcher.arrived.clear()
        if self._commit_manager is not None:
            self._commit_manager.maybe_auto_commit()
        if self._starting_membership is not None:
            subscription, self._starting_membership = self._starting_membership, None
            await self._join(subscription)
        if self._membership is not None:
            self._membership.on_poll()
            await self._membership.poll()
            if self._membership.is_stable:
                self._sensors.on_rebalance_done()
            else:
                self._sensors.on_rebalance_begins()

    def metrics(self) -> dict[MetricName, float]:
        """The consumer's metrics, by Kafka's names; an average without values is NaN."""
        return self._metrics.values()

    def _resource(self) -> dict[str, str]:
        config = self.config
        member = self._membership.member.member_id if self._membership is not None else ""
        found = {
            "group_id": config.group_id,
            "group_instance_id": config.group_instance_id,
            "group_member_id": member,
            "client_rack": config.client_rack,
        }
        return {name: value for name, value in found.items() if value}

    # Committed offsets.

    async def committed(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The committed offsets of the group for these partitions, or for all assigned; None where there is
        none.
        """
        wanted = self.assignment() if partitions is None else [TopicPartition(*p) for p in partitions]
        found = await self._commits().fetch(wanted)
        return {partition: found.get(partition) for partition in wanted}

    async def commit(
        self, offsets: Mapping[Partition, CommittedOffset | int] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Commit these offsets, or the positions: all records that were returned. Returns the committed
        offsets; KafkaError names a partition that was refused.
        """
        return await self._commit(self._to_commit(offsets))

    def _to_commit(
        self, offsets: Mapping[Partition, CommittedOffset | int] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        if offsets is None:
            return self.positions()
        return {
            TopicPartition(*partition): CommittedOffset(offset) if isinstance(offset, int) else offset
            for partition, offset in offsets.items()
        }

    async def _commit(
        self, wanted: dict[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, CommittedOffset]:
        if wanted:
            await self._commits().commit(wanted)
            for interceptor in self._interceptors:
                interceptor.on_commit(wanted)
        return wanted

    def commit_nowait(
        self, offsets: Mapping[Partition, CommittedOffset | int] | None = None
    ) -> asyncio.Task[dict[TopicPartition, CommittedOffset]]:
        """Commit in the background. Such commits are made one after the other, in the order of the calls,
        with the positions at the time of the call; closing waits for them. Await the returned task, or add a
        callback, for the result; a failure is logged in any case.
        """
        self._check_open()
        wanted = self._to_commit(offsets)
        return self._commits().commit_in_turn(partial(self._commit, wanted))

    def group_member(self) -> GroupMember:
        """The member in whose name a transaction commits this consumer's offsets. KafkaError
        UNKNOWN_MEMBER_ID if it is not in its group, as its partitions may belong to another member.
        """
        if self.config.group_id is None:
            raise ValueError("committed offsets belong to a group; set group.id")
        return GroupMember(self.config.group_id, self._commits().require_member())

    def _commits(self) -> CommitRequestManager:
        if self._commit_manager is None:
            raise ValueError("committed offsets belong to a group; set group.id")
        return self._commit_manager

    # `MembershipOwner`.

    async def _join(self, subscription: Subscription) -> None:
        assert self._commit_manager is not None
        assert self.config.group_id is not None
        thread = HeartbeatThread(
            self._runtime,
            connection_config(self.config),
            self.config.group_id,
            timeout_ms=self.config.default_api_timeout_ms,
            threaded=self._own_runtime,
        )
        membership: GroupMembership
        if self.config.group_protocol == "consumer":
            membership = ConsumerMembershipManager(self._cluster, self.config, thread, self, self._on_stalled)
        else:
            membership = ClassicConsumerCoordinator(
                self._cluster, self.config, thread, self, self._on_stalled
            )
        await membership.start()
        self._membership = self._commit_manager.membership = membership
        membership.subscribe(subscription, self._listener)

    def owned_partitions(self) -> list[TopicPartition]:
        return self._subscriptions.partitions

    def assign_from_subscribed(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions from now on."""
        wanted = list(partitions)
        gone = [p for p in self._subscriptions.partitions if p not in set(wanted)]
        self._fetch_collector.drop(gone)
        if self._commit_manager is not None:
            self._commit_manager.forget(gone)
        self._subscriptions.replace(wanted)
        unknown = {p.topic for p in wanted if self._cluster.metadata.leader(p) is None}
        if unknown:
            self._metadata_updater.request_update(unknown)
        self._on_metadata_update()

    async def commit_before_revocation(self) -> None:
        if self._commit_manager is not None:
            await self._commit_manager.maybe_auto_commit_sync()

    def wake(self) -> None:
        self._fetcher.arrived.set()

    # Internals.

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the consumer is closed")
        if not self._tasks:
            raise RuntimeError(
                "the consumer has not been started: use `async with` (blocking: `with`), or start()"
            )
        check_loop(self._loop, "the consumer")

    def _states(self, partitions: Iterable[Partition]) -> list[TopicPartitionState]:
        return [self._subscriptions.of(TopicPartition(*partition)) for partition in partitions]

    def _on_metadata_update(self) -> None:
        self._offset_fetcher.wake()
        self._fetcher.wake()
        if self._membership is not None:
            self._membership.on_metadata_update()

    def _on_position_change(self) -> None:
        self._fetcher.wake()
        self._fetcher.arrived.set()

    def _raise_error(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
                raise failure
        error = self._subscriptions.take_error()
        if error is not None:
            self._on_metadata_update()
            raise error

    def _deadline(self, timeout_ms: float | None) -> float | None:
        return None if timeout_ms is None else asyncio.get_running_loop().time() + timeout_ms / 1000
