"""The share consumer: records of a queue, each acknowledged on its own (KIP-932).

Several consumers of a share group read the same partitions; a record goes to one of them at a time, which
holds it for the lock duration of the group and acknowledges it: accepted, released to the others, or rejected
for good. Two tasks run behind a consumer: `MetadataUpdater` keeps metadata fresh, and
`ShareConsumeRequestManager` fetches and acknowledges. Membership is the heartbeat thread's.

Invariant: a record is acknowledged at most once for each delivery, and never before the user has had it.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

from ottla.client.consumer.group_membership import OnStalled
from ottla.client.consumer.heartbeat_thread import HeartbeatThread
from ottla.client.metrics import ClientMetrics, MetricName
from ottla.client.network_client import MetadataUpdater, NetworkClient
from ottla.client.serialization import Deserializer, RecordSerde, SchemaNeeded, deserializer
from ottla.client.settings import Servers, connection_config, settings_of
from ottla.client.share.acknowledgements import AcknowledgedRange, ranges_of
from ottla.client.share.config import ShareConsumerConfig, refuse_consumer_settings
from ottla.client.share.share_completed_fetch import (
    RecordDeserializationFailed,
    ShareCompletedFetch,
    ShareRecord,
)
from ottla.client.share.share_consume_request_manager import AcknowledgementResult, ShareConsumeRequestManager
from ottla.client.share.share_membership_manager import ShareAssignment, ShareMembershipManager
from ottla.client.share.share_metrics import ShareConsumerMetrics
from ottla.client.share.worker_pool import Handler, OnReject, WorkerPool, WorkerResults
from ottla.client.telemetry_reporter import ClientTelemetryReporter
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.protocol.share import AcknowledgeType, ShareAcquireMode
from ottla.runtime import process
from ottla.runtime.loop import check_loop, run_to_end
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

SHARE_ARROW_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "deliveryCount",
)
"""The columns of `poll_arrow`: those of a consumer, and how often a record was delivered."""
AcknowledgementCommitCallback: TypeAlias = Callable[[TopicPartition, list[int], KafkaError | None], object]
"""Called with a partition, the offsets that were acknowledged there, and the error, if there was one."""
# How long records are remembered after their locks have expired: an acknowledgement that comes late is sent
# all the same, as the broker decides.
_GRACE_S = 5.0
_NEEDS_EXPLICIT = (
    "records are acknowledged implicitly, by the next poll: set share.acknowledgement.mode to explicit"
)
_ONE_POLL = (
    "another poll of this share consumer is under way: each accepts what the others have returned. Use one "
    "share consumer for each thread or task, or set share.acknowledgement.mode to explicit"
)
_Key: TypeAlias = tuple[int, TopicIdPartition]


class _Lock:
    """What records have in common that were delivered together: by which broker, and until when."""

    __slots__ = ("deadline", "key")

    def __init__(self, key: _Key, deadline: float) -> None:
        self.key = key
        self.deadline = deadline


class ShareConsumer(Generic[K, V]):
    """Reads records of a share group. All settings of `ShareConsumerConfig` can be given as keywords, or by
    Kafka's names as a mapping in the first argument.

    In the implicit mode, the default, records are accepted by the next `poll` or `commit`, as all of them
    were processed by then. With `share_acknowledgement_mode="explicit"` the user acknowledges each. What is
    not acknowledged is delivered again when its lock expires, and at once when the consumer is closed.

    `acknowledgement_commit_callback` is called with what brokers say to acknowledgements, on the consumer's
    event loop. `on_stalled` is as in `Consumer`.
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        key_deserializer: Deserializer | RecordSerde | str | None = None,
        value_deserializer: Deserializer | RecordSerde | str | None = None,
        acknowledgement_commit_callback: AcknowledgementCommitCallback | None = None,
        on_stalled: OnStalled | None = None,
        runtime: Runtime | None = None,
        **settings: Any,
    ) -> None:
        refuse_consumer_settings(settings)
        if isinstance(bootstrap_servers, Mapping):
            refuse_consumer_settings(bootstrap_servers)
        self.config = settings_of(ShareConsumerConfig, bootstrap_servers, settings)
        self._key_deserializer = deserializer(key_deserializer)
        self._value_deserializer = deserializer(value_deserializer)
        # The schema that the next record waits for.
        self._needed: SchemaNeeded | None = None
        self._callback = acknowledgement_commit_callback
        self._on_stalled = on_stalled
        self._own_runtime = runtime is None
        self._runtime = runtime if runtime is not None else Runtime.real(pool_workers=1)
        self._cluster = NetworkClient(self._runtime, connection_config(self.config))
        self._metrics = ClientMetrics("consumer-share", self.config.client_id, self._cluster)
        self._sensors = ShareConsumerMetrics(self._metrics)
        self._telemetry = ClientTelemetryReporter(self._cluster, self._metrics, self._resource)
        self._metadata_updater = MetadataUpdater(self._cluster, self._on_metadata_update)
        self._requests = ShareConsumeRequestManager(
            self._cluster, self.config, self._metadata_updater, self._sensors, self._on_result
        )
        self._membership: ShareMembershipManager | None = None
        # Held while the consumer joins or leaves its group.
        self._joining = asyncio.Lock()
        self._topics: tuple[str, ...] = ()
        # Records that the user has and that are not acknowledged: by partition and offset.
        self._held: dict[TopicPartition, dict[int, _Lock]] = {}
        self._next_purge = 0.0
        # What is acknowledged and goes out with the next poll or commit.
        self._marked: dict[_Key, tuple[TopicPartition, dict[int, AcknowledgeType]]] = {}
        self._marked_ranges: dict[_Key, tuple[TopicPartition, list[AcknowledgedRange]]] = {}
        # In the implicit mode: what the last poll has returned.
        self._delivered_ranges: list[tuple[_Key, TopicPartition, list[AcknowledgedRange]]] = []
        self._delivered: list[ShareRecord[K, V]] = []
        # Of `async for`: records that were not yielded yet.
        self._leftover: deque[ShareRecord[K, V]] = deque()
        # What polls are to raise: about records that could not be decoded.
        self._errors: deque[KafkaError] = deque()
        # Polls that are under way.
        self._polls = 0
        self._workers: WorkerPool[K, V] | None = None
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
            raise RuntimeError("a share consumer starts once")
        try:
            await self._cluster.start()
        except BaseException:
            self._closed = True
            await self._release()
            raise
        loop = self._loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(part.run(), name=f"ottla-share-consumer-{type(part).__name__.lower()}")
            for part in (self._metadata_updater, self._requests)
        ]
        self._telemetry.start()

    async def close(self) -> None:
        """Send what is acknowledged, release all other records, leave the group, and disconnect. In the
        implicit mode the records of the last poll are released: `commit` accepts them before.
        """
        if self._closed:
            return
        workers = self._workers
        if workers is not None and not workers.is_called_by_a_worker:
            workers.stop()
            await workers.ended.wait()
        self._closed = True
        # A poll that waits raises: there is nothing to wait for any longer.
        self._requests.arrived.set()
        try:
            if self._tasks:
                self._submit()
                await self._requests.end_sessions(self.config.request_timeout_ms / 1000)
            await self._leave()
        finally:
            await run_to_end(self._release())

    async def _release(self) -> None:
        await self._telemetry.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.close()
        if self._own_runtime:
            self._runtime.close()

    # What to read.

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read these topics with the other members of the group. Replaces the previous subscription. `poll`
        joins the group.
        """
        self._check_open()
        names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
        if not names or not all(names):
            raise ValueError("subscribe to one topic at least; a share group takes names, no pattern")
        self._topics = names
        self._metadata_updater.request_update(names)
        if self._membership is not None:
            self._membership.subscribe(names)
        self._requests.arrived.set()

    async def unsubscribe(self) -> None:
        """Send what is acknowledged, release all other records, and leave the group."""
        self._check_open()
        self._topics = ()
        self._submit()
        self._requests.assign({})
        await self._requests.end_sessions(self.config.request_timeout_ms / 1000)
        self._forget_delivered()
        self._held.clear()
        self._requests.arrived.set()
        await self._leave()

    def subscription(self) -> list[str]:
        """The topics that the consumer has subscribed to."""
        return list(self._topics)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that the group has this member read now; others may read them too."""
        return sorted(
            TopicPartition(topic, partition.partition)
            for partition, topic in self._requests.assignment.items()
        )

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long a record is held before it is delivered again; None before the first fetch."""
        return self._requests.acquisition_lock_timeout_ms

    # Reading.

    async def poll(
        self, max_records: int | None = None, *, timeout_ms: float | None = 1_000
    ) -> list[ShareRecord[K, V]]:
        """Return records as soon as there are any, or none after `timeout_ms`; None waits without limit. In
        the implicit mode this accepts the records of the poll before.

        There may be more than `max_records` (default: `max.poll.records`), as brokers deliver whole batches;
        with `share_acquire_mode="record_limit"` there are not. Raises an error that stops a partition or is
        about a record, once; the next poll goes on.
        """
        self._check_alone()
        self._accept_delivered()
        if self._leftover:
            # `async for` has not yielded them.
            self._delivered = list(self._leftover)
            self._leftover.clear()
            return list(self._delivered)
        most = max_records or self.config.max_poll_records
        return await self._poll(most, timeout_ms, self.config.acquire_mode, hold=self.config.is_explicit)

    async def _poll(
        self,
        most: int,
        timeout_ms: float | None,
        mode: ShareAcquireMode,
        *,
        hold: bool,
        hold_failed: bool = False,
    ) -> list[ShareRecord[K, V]]:
        """Poll; `hold` has each record acknowledged on its own, and not with the others of the poll, and
        `hold_failed` also one that cannot be deserialized.
        """
        deadline = self._deadline(timeout_ms)
        self._polls += 1
        self._sensors.on_poll()
        taken: list[ShareRecord[K, V]] = []
        try:
            while True:
                await self._turn()
                taken = self._take(most, mode, hold=hold)
                if taken:
                    return taken
                self._raise_error(hold_failed=hold_failed)
                if self._needed is not None:
                    await self._runtime.pool.run(self._needed.load)
                elif not await self._wait(most, mode, deadline):
                    return []
        finally:
            self._end_poll(len(taken))

    def _end_poll(self, records: int) -> None:
        self._polls -= 1
        self._requests.stop_requesting()
        self._sensors.on_poll_done(records)
        if self._polls:
            # The others have nothing requested now: they look, and request what they want.
            self._requests.arrived.set()

    def _take(self, most: int, mode: ShareAcquireMode, *, hold: bool) -> list[ShareRecord[K, V]]:
        """Take the records of completed fetches: whole ones, unless no more than `most` may be returned."""
        taken: list[ShareRecord[K, V]] = []
        self._needed = None
        is_limited = mode is ShareAcquireMode.RECORD_LIMIT
        while len(taken) < most and not self._errors:
            fetch = self._requests.first_fetch()
            if fetch is None:
                break
            if not fetch.is_decoded:
                fetch.decode()
                self._skip(fetch)
            begin = fetch.at
            room = most - len(taken) if is_limited else max(most, fetch.left)
            try:
                found = fetch.take(room, self._key_deserializer, self._value_deserializer)
            except RecordDeserializationFailed as error:
                self._errors.append(error)
                self._hold(fetch, [error.record])
                break
            except SchemaNeeded as needed:
                self._needed = needed
                break
            if hold:
                self._hold(fetch, found)
            else:
                ranges = fetch.taken_since(begin)
                self._delivered_ranges.append((_key(fetch), fetch.partition, ranges))
            taken += found
        return taken

    async def poll_arrow(
        self,
        *,
        timeout_ms: float | None = 1_000,
        columns: Sequence[str] = SHARE_ARROW_COLUMNS,
    ) -> pa.Table:
        """Return records as one table, as `Consumer.poll_arrow` does, with `deliveryCount`; an empty table
        after `timeout_ms`. In the implicit mode this accepts what the poll before has returned; in the
        explicit one `acknowledge_arrow` does, for whole tables or any rows of them.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ImportError('poll_arrow needs pyarrow: pip install "ottla[arrow]"') from error

        from ottla.client.share.arrow import arrow_schema

        self._check_alone()
        self._accept_delivered()
        self._release_leftover()
        schema = arrow_schema(tuple(columns))
        deadline = self._deadline(timeout_ms)
        most = self.config.max_poll_records
        self._polls += 1
        self._sensors.on_poll()
        rows = 0
        try:
            while True:
                await self._turn()
                batches = self._take_arrow(most, columns)
                if batches:
                    rows = sum(batch.num_rows for batch in batches)
                    return pa.Table.from_batches(batches, schema)
                self._raise_error()
                if not await self._wait(most, self.config.acquire_mode, deadline):
                    return schema.empty_table()
        finally:
            self._end_poll(rows)

    def _take_arrow(self, most: int, columns: Sequence[str]) -> list[pa.RecordBatch]:
        from ottla.client.share.arrow import decode_fetch

        batches: list[pa.RecordBatch] = []
        rows = 0
        while rows < most and not self._errors:
            fetch = self._requests.first_fetch()
            if fetch is None:
                break
            if fetch.is_decoded:
                # `poll` has taken some of it: the rest is delivered again.
                self._mark_ranges(_key(fetch), fetch.partition, fetch.release_rest())
                continue
            key = _key(fetch)
            for batch, offsets in decode_fetch(fetch, columns):
                batches.append(batch)
                rows += batch.num_rows
                if self.config.is_explicit:
                    held = self._held.setdefault(fetch.partition, {})
                    lock = _Lock(key, fetch.deadline)
                    for first, last in offsets:
                        held.update(dict.fromkeys(range(first, last + 1), lock))
                else:
                    accepted = [AcknowledgedRange(*each, AcknowledgeType.ACCEPT) for each in offsets]
                    self._delivered_ranges.append((key, fetch.partition, accepted))
            self._skip(fetch)
        return batches

    def __aiter__(self) -> AsyncIterator[ShareRecord[K, V]]:
        return self

    async def __anext__(self) -> ShareRecord[K, V]:
        """Return the next record. In the implicit mode this accepts the one before."""
        self._check_alone()
        self._accept_delivered()
        if not self._leftover:
            config = self.config
            while True:
                if self._closed:
                    raise StopAsyncIteration
                try:
                    found = await self._poll(config.max_poll_records, None, config.acquire_mode, hold=True)
                except RuntimeError:
                    if self._closed:
                        continue  # meanwhile
                    raise
                if found:
                    break
            self._leftover.extend(found)
        record = self._leftover.popleft()
        if not self.config.is_explicit:
            self._delivered = [record]
        return record

    async def _turn(self) -> None:
        """Begin a poll: send what is acknowledged, and let the membership work."""
        self._check_subscribed()
        # A loop that only polls must not keep the event loop from receiving data and from its other tasks.
        await asyncio.sleep(0)
        self._requests.arrived.clear()
        self._submit()
        self._purge()
        membership = self._membership or await self._join()
        membership.on_poll()
        await membership.poll()

    async def _wait(self, most: int, mode: ShareAcquireMode, deadline: float | None) -> bool:
        """Fetch, and wait for records or an error; False at the deadline."""
        self._requests.request_records(most, mode)
        try:
            async with asyncio.timeout_at(deadline):
                await self._requests.arrived.wait()
        except TimeoutError:
            return False
        return True

    # Acknowledging.

    def acknowledge(
        self, record: ShareRecord[Any, Any], type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Acknowledge a record; the next `poll` or `commit` sends it, and until then another type can replace
        it. ACCEPT: it is done. RELEASE: deliver it again, to any member. REJECT: it cannot be processed, and
        is not delivered again. RENEW: its lock begins again, and it can still be acknowledged.

        Raises KafkaError INVALID_RECORD_STATE if this consumer does not hold the record.
        """
        self._check_explicit()
        self._mark(record, type)

    def accept(self, *records: ShareRecord[Any, Any]) -> None:
        """Acknowledge records as processed."""
        self._acknowledge_all(records, AcknowledgeType.ACCEPT)

    def release(self, *records: ShareRecord[Any, Any]) -> None:
        """Have records delivered again, to any member of the group."""
        self._acknowledge_all(records, AcknowledgeType.RELEASE)

    def reject(self, *records: ShareRecord[Any, Any]) -> None:
        """Have records not delivered again, as they cannot be processed."""
        self._acknowledge_all(records, AcknowledgeType.REJECT)

    def renew(self, *records: ShareRecord[Any, Any]) -> None:
        """Have the locks on records begin again; they are still held and to be acknowledged. Needs brokers
        with Kafka 4.2 or newer.
        """
        self._acknowledge_all(records, AcknowledgeType.RENEW)

    def acknowledge_arrow(
        self, rows: pa.Table | pa.RecordBatch, type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Acknowledge the records of these rows, which have the columns topic, partition and offset."""
        self._check_explicit()
        columns = [rows.column(name).to_pylist() for name in ("topic", "partition", "offset")]
        for topic, partition, offset in zip(*columns, strict=True):
            self._mark_offset(TopicPartition(topic, partition), offset, type)

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCommitCallback | None) -> None:
        """Have results of acknowledgements given to another function, or to none."""
        self._callback = callback

    async def commit(self, *, timeout_ms: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """Send all acknowledgements, in the implicit mode of all records that were returned, and wait until
        brokers have persisted them. Returns the error of each partition, None where there is none: records
        with an error may be delivered again. Raises REQUEST_TIMED_OUT after `timeout_ms` (default:
        `default.api.timeout.ms`).
        """
        self._check_open()
        self._accept_delivered()
        return await self._results(self._submit(), timeout_ms)

    def commit_nowait(self) -> asyncio.Task[dict[TopicPartition, KafkaError | None]]:
        """Send all acknowledgements in the background. Await the returned task for the results."""
        self._check_open()
        self._accept_delivered()
        results = self._results(self._submit(), None)
        return asyncio.get_running_loop().create_task(results, name="ottla-share-consumer-commit")

    async def _results(
        self,
        submitted: list[tuple[TopicPartition, asyncio.Future[KafkaError | None]]],
        timeout_ms: float | None,
    ) -> dict[TopicPartition, KafkaError | None]:
        if not submitted:
            return {}
        limit_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        _, late = await asyncio.wait([future for _, future in submitted], timeout=limit_ms / 1000)
        if late:
            what = ", ".join(sorted(str(partition) for partition, future in submitted if future in late))
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{what}: acknowledgements are not confirmed after {limit_ms:.0f} ms; they may still be",
            )
        results: dict[TopicPartition, KafkaError | None] = {}
        for partition, future in submitted:
            # A partition whose leader has changed can be here for two brokers.
            results[partition] = results.get(partition) or future.result()
        return results

    # Workers.

    async def run_workers(
        self,
        handler: Handler[K, V],
        *,
        concurrency: int = 10,
        max_deliveries: int | None = None,
        reject_on: tuple[type[Exception], ...] = (),
        on_reject: OnReject | None = None,
        retry_backoff_ms: float = 0,
        grace_ms: float | None = None,
    ) -> WorkerResults:
        """Call `handler` with each record, up to `concurrency` at a time, until `stop_workers`. Needs the
        explicit mode. A plain function runs in a thread, a coroutine function on the event loop.

        A record is accepted when its handler returns, and released when it raises, after `retry_backoff_ms`
        (doubled with each delivery) in which it stays with this consumer. It is rejected if the error is one
        of `reject_on`, or if this was its delivery number `max_deliveries`; `on_reject` gets it before, with
        the error, and may send it to a dead-letter topic. If that fails it is called again, and the record
        stays with this consumer meanwhile. One that could not be deserialized has bytes for its value.
        `max_deliveries` should be below the group's `share.delivery.count.limit` (5), after which the broker
        archives a record without a word.

        Locks are renewed for as long as a handler works. `stop_workers` lets handlers finish, for `grace_ms`
        at most, and then cancels them; records that were not processed are released.
        """
        self._check_open()
        if not self.config.is_explicit:
            raise RuntimeError(_NEEDS_EXPLICIT)
        if self._workers is not None:
            raise RuntimeError("this consumer has workers already")
        self._workers = WorkerPool(
            self,
            handler,
            concurrency=concurrency,
            max_deliveries=max_deliveries,
            reject_on=reject_on,
            on_reject=on_reject,
            retry_backoff_ms=retry_backoff_ms,
            grace_ms=grace_ms,
            threads=self._own_runtime,
        )
        try:
            return await self._workers.run()
        finally:
            self._workers = None

    def stop_workers(self) -> None:
        """Have `run_workers` return once the handlers that run are done."""
        if self._workers is not None:
            self._workers.stop()

    # `WorkerRecordSource` of the workers.

    async def take_for_workers(self, most: int, timeout_ms: float) -> list[ShareRecord[K, V]]:
        """Return no more than `most` records."""
        return await self._poll(most, timeout_ms, ShareAcquireMode.RECORD_LIMIT, hold=True, hold_failed=True)

    def send_acknowledgements(self) -> None:
        """Send what is acknowledged, also while a poll waits."""
        self._submit()

    def note_poll(self) -> None:
        """Stay a member while all workers are busy."""
        if self._membership is not None:
            self._membership.on_poll()

    def metrics(self) -> dict[MetricName, float]:
        """The consumer's metrics, by Kafka's names; an average without values is NaN."""
        return self._metrics.values()

    # Internals.

    async def _join(self) -> ShareMembershipManager:
        async with self._joining:
            # Another poll may have joined the group meanwhile, or another task has left it.
            self._check_subscribed()
            if self._membership is not None:
                return self._membership
            thread = HeartbeatThread(
                self._runtime,
                connection_config(self.config),
                self.config.group_id,
                timeout_ms=self.config.default_api_timeout_ms,
                threaded=self._own_runtime,
            )
            membership = ShareMembershipManager(
                self._cluster,
                self.config,
                thread,
                self._on_assignment,
                self._requests.arrived.set,
                self._on_stalled,
            )
            await membership.start()
            self._membership = membership
            self._requests.member_id = membership.member_id
            membership.subscribe(self._topics)
            return membership

    async def _leave(self) -> None:
        async with self._joining:
            membership = self._membership
            if membership is None:
                return
            if not self._closed:
                self._membership = None  # the last report of a closed one still names its member
            await membership.leave()

    def _on_assignment(self, assignment: ShareAssignment) -> None:
        log.info("group %r: %d partitions", self.config.group_id, len(assignment))
        unknown = {
            topic
            for partition, topic in assignment.items()
            if self._cluster.metadata.leader(TopicPartition(topic, partition.partition)) is None
        }
        if unknown:
            self._metadata_updater.request_update(unknown)
        self._requests.assign(assignment)

    def _on_metadata_update(self) -> None:
        self._requests.wake()
        if self._membership is not None:
            self._membership.on_metadata_update()

    def _hold(self, fetch: ShareCompletedFetch, records: Iterable[ShareRecord[Any, Any]]) -> None:
        lock = _Lock(_key(fetch), fetch.deadline)
        held = self._held.setdefault(fetch.partition, {})
        for record in records:
            held[record.offset] = lock

    def _skip(self, fetch: ShareCompletedFetch) -> None:
        """Acknowledge what there is no record of, and release what cannot be read."""
        self._mark_ranges(_key(fetch), fetch.partition, [*fetch.skipped, *fetch.released])
        damage = fetch.take_damage()
        if damage is not None:
            self._errors.append(damage)

    def _acknowledge_all(self, records: Iterable[ShareRecord[Any, Any]], type: AcknowledgeType) -> None:
        self._check_explicit()
        for record in records:
            self._mark(record, type)

    def _mark(self, record: ShareRecord[Any, Any], type: AcknowledgeType) -> None:
        self._mark_offset(TopicPartition(record.topic, record.partition), record.offset, type)

    def _mark_offset(self, partition: TopicPartition, offset: int, type: AcknowledgeType) -> None:
        held = self._held.get(partition)
        lock = None if held is None else held.get(offset)
        if lock is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                f"{partition}: this consumer does not hold the record at offset {offset}: it was "
                "acknowledged before, or its lock has expired and it is delivered again",
            )
        marked = self._marked.get(lock.key)
        if marked is None:
            marked = self._marked[lock.key] = (partition, {})
        marked[1][offset] = type

    def _mark_ranges(self, key: _Key, partition: TopicPartition, ranges: list[AcknowledgedRange]) -> None:
        if ranges:
            self._marked_ranges.setdefault(key, (partition, []))[1].extend(ranges)

    def _accept_delivered(self) -> None:
        """In the implicit mode, accept what the user has had."""
        for key, partition, ranges in self._delivered_ranges:
            self._mark_ranges(key, partition, ranges)
        for record in self._delivered:
            if record.offset in self._held.get(TopicPartition(record.topic, record.partition), ()):
                self._mark(record, AcknowledgeType.ACCEPT)
        self._forget_delivered()

    def _forget_delivered(self) -> None:
        self._delivered_ranges.clear()
        self._delivered.clear()

    def _release_leftover(self) -> None:
        """Have records that `async for` has not yielded delivered again."""
        for record in self._leftover:
            if record.offset in self._held.get(TopicPartition(record.topic, record.partition), ()):
                self._mark(record, AcknowledgeType.RELEASE)
        self._leftover.clear()

    def _submit(self) -> list[tuple[TopicPartition, asyncio.Future[KafkaError | None]]]:
        """Give what is marked to the request manager."""
        if not (self._marked or self._marked_ranges):
            return []
        both: dict[_Key, tuple[TopicPartition, list[AcknowledgedRange]]] = self._marked_ranges
        for key, (partition, types) in self._marked.items():
            held = self._held.get(partition, {})
            for offset, type in types.items():
                if type is not AcknowledgeType.RENEW:
                    held.pop(offset, None)
            both.setdefault(key, (partition, []))[1].extend(ranges_of(types))
        self._marked, self._marked_ranges = {}, {}
        return self._requests.submit(both)

    def _purge(self) -> None:
        """Forget records whose locks have expired: the broker delivers them again."""
        now = asyncio.get_running_loop().time()
        if now < self._next_purge:
            return
        self._next_purge = now + _GRACE_S
        for partition, held in list(self._held.items()):
            for offset in [o for o, lock in held.items() if lock.deadline + _GRACE_S < now]:
                del held[offset]
            if not held:
                del self._held[partition]

    def _on_result(self, result: AcknowledgementResult) -> None:
        """Take the result of acknowledgements."""
        now = asyncio.get_running_loop().time()
        held = self._held.get(result.partition, {})
        lock = _Lock(
            (result.node_id, result.topic_id_partition), now + (self.acquisition_lock_timeout_ms or 0) / 1000
        )
        for first, last, type in result.ranges:
            if type is AcknowledgeType.RENEW and result.error is None:
                held.update({offset: lock for offset in range(first, last + 1) if offset in held})
        if self._workers is not None:
            self._workers.on_result(result)
        if result.error is not None:
            log.info("acknowledgements failed: %s", result.error)
        if self._callback is None:
            return
        offsets = [
            offset
            for first, last, type in result.ranges
            if type is not AcknowledgeType.GAP
            for offset in range(first, last + 1)
        ]
        if offsets:
            try:
                self._callback(result.partition, offsets, result.error)
            except Exception:
                log.exception("group %r: the acknowledgement commit callback failed", self.config.group_id)

    def _resource(self) -> dict[str, str]:
        member = self._membership.member_id if self._membership is not None else ""
        found = {
            "group_id": self.config.group_id,
            "group_member_id": member,
            "client_rack": self.config.client_rack,
        }
        return {name: value for name, value in found.items() if value}

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the share consumer is closed")
        if not self._tasks:
            raise RuntimeError(
                "the share consumer has not been started: use `async with` (blocking: `with`), or start()"
            )
        check_loop(self._loop, "the share consumer")

    def _check_subscribed(self) -> None:
        self._check_open()
        if not self._topics:
            raise RuntimeError("the share consumer has not subscribed to any topic")

    def _check_alone(self) -> None:
        if self._polls and not self.config.is_explicit:
            raise RuntimeError(_ONE_POLL)

    def _check_explicit(self) -> None:
        self._check_open()
        if not self.config.is_explicit:
            raise RuntimeError(_NEEDS_EXPLICIT)

    def _raise_error(self, *, hold_failed: bool = False) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
                raise failure
        if self._errors:
            error = self._errors.popleft()
            if isinstance(error, RecordDeserializationFailed) and not hold_failed:
                self._mark(error.record, AcknowledgeType.RELEASE)
            raise error
        stopped = self._requests.take_error()
        if stopped is not None:
            raise stopped

    def _deadline(self, timeout_ms: float | None) -> float | None:
        return None if timeout_ms is None else asyncio.get_running_loop().time() + timeout_ms / 1000


def _key(fetch: ShareCompletedFetch) -> _Key:
    return fetch.node_id, fetch.topic_id_partition
