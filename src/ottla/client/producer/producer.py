"""The producer client: assign each record to a partition and to a batch, which the `Sender` sends."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias
from weakref import WeakKeyDictionary

from ottla.client.errors import BufferFull
from ottla.client.metrics import ClientMetrics, MetricName
from ottla.client.network_client import MetadataUpdater, NetworkClient
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.identity import IdempotentProducerIdentity, ProducerIdentity
from ottla.client.producer.partitioner import Partitioner, RecordRouter, TopicRoute, partitioner_of
from ottla.client.producer.producer_batch import Delivery, ProducerBatch, RecordMetadata
from ottla.client.producer.producer_metrics import ProducerMetrics
from ottla.client.producer.record_accumulator import RecordAccumulator
from ottla.client.producer.sender import Sender
from ottla.client.producer.transaction_manager import Transaction, TransactionManager, Transactions
from ottla.client.serialization import RecordSerde, Serializer, serializer
from ottla.client.settings import Servers, connection_config, settings_of
from ottla.client.telemetry_reporter import ClientTelemetryReporter
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.builder import record_size_bound
from ottla.runtime import process
from ottla.runtime.loop import check_loop, run_to_end
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)


@dataclass(slots=True)
class ProducerRecord:
    """A record as given by the user, before serializers."""

    topic: str
    value: Any
    key: Any
    partition: int | None
    timestamp: int | None
    headers: Any


class ProducerInterceptor(Protocol):
    """`on_send` returns the record to send, the same or another; what it raises is raised by `send`.
    `on_acknowledgement` gets the handle once it is done, on the event loop.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord: ...

    def on_acknowledgement(self, delivery: Delivery) -> None: ...


Headers: TypeAlias = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]
_HEADROOM = 61
ARROW_BATCH_BYTES = 1_000_000


class SentBatch(NamedTuple):
    """A batch of a table's rows that was delivered: `rows` of them, from `base_offset` on."""

    topic: str
    partition: int
    base_offset: int
    rows: int


class QueuedRows:
    """Rows of a table that are being sent, made by `Producer.queue_arrow`."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[ProducerBatch]) -> None:
        self._batches = batches

    async def delivered(self) -> list[SentBatch]:
        """Wait until the brokers have the rows, and return where they are. The first error is raised after
        all were tried, with a note that says how many rows were delivered.
        """
        for batch in self._batches:
            await asyncio.shield(batch.done())
        found = [part for batch in self._batches for part in batch.sent_batches()]
        for part in found:
            if part.error is not None:
                delivered = sum(each.count for each in found if each.error is None)
                part.error.add_note(f"{delivered} of {sum(each.count for each in found)} rows were delivered")
                raise part.error
        return [SentBatch(*part.partition, part.base_offset, part.count) for part in found]


def _serialized(
    chosen: Serializer | RecordSerde | None, topic: str, value: Any, headers: Headers, *, is_key: bool
) -> tuple[bytes | None, Headers]:
    """The bytes of a key or value, and the headers that the record has then."""
    if chosen is None or value is None:
        return value, headers
    if not isinstance(chosen, RecordSerde):
        return chosen(value), headers
    data, header = chosen.serialize(topic, value, is_key=is_key)
    if header is None:
        return data, headers
    return data, [*(headers.items() if isinstance(headers, Mapping) else headers), header]


class Producer:
    """Sends records. All settings of `ProducerConfig` can be given as keywords, or by Kafka's names as a
    mapping in the first argument.

    Keys and values are bytes unless serializers are given: a callable, "str", "json", "int", or one of
    `ottla.serdes`. `send` waits for the broker's acknowledgement; `send_nowait` returns at once with a handle
    that can be awaited. Closing waits for everything that was sent. With `cluster`, a `NetworkClient` that
    others use too, connections are shared; it stays open.
    """

    def __init__(
        self,
        bootstrap_servers: Servers = None,
        *,
        key_serializer: Serializer | RecordSerde | str | None = None,
        value_serializer: Serializer | RecordSerde | str | None = None,
        partitioner: Partitioner | str | None = None,
        interceptors: Iterable[ProducerInterceptor] = (),
        runtime: Runtime | None = None,
        cluster: NetworkClient | None = None,
        **settings: Any,
    ) -> None:
        self.config = settings_of(ProducerConfig, bootstrap_servers, settings)
        self._key_serializer = serializer(key_serializer)
        self._value_serializer = serializer(value_serializer)
        self._interceptors = tuple(interceptors)
        self._has_serdes = any(
            isinstance(each, RecordSerde) for each in (self._key_serializer, self._value_serializer)
        )
        self._is_plain = not (self._key_serializer or self._value_serializer or self._interceptors)
        chosen = partitioner_of(partitioner)
        if runtime is None and cluster is not None:
            runtime = cluster.runtime
        self._own_runtime = runtime is None
        self._runtime = runtime if runtime is not None else Runtime.real(pool_workers=1)
        self._clock = self._runtime.clock
        self._own_cluster = cluster is None
        self._cluster = cluster or NetworkClient(self._runtime, connection_config(self.config))
        self._buffer_memory = self.config.buffer_memory
        self._max_record_bytes = min(self.config.max_request_size, self.config.buffer_memory)
        self._accumulator = RecordAccumulator(self.config, self._loop_time, self._wake_sender)
        self._router = RecordRouter(self._cluster, self.config, self._accumulator, chosen)
        self._routes = self._router.routes
        self._keyless_stick = chosen is None
        self._metadata_updater = MetadataUpdater(self._cluster, self._wake_sender)
        self._transaction_manager: TransactionManager | None = None
        self._transactions: Transactions | None = None
        identity: ProducerIdentity
        if self.config.transactional_id is not None:
            identity = TransactionManager(self._cluster, self.config, self._wake_sender)
            self._transaction_manager = identity
            self._transactions = Transactions(identity, self._accumulator, self.flush)
        else:
            identity = IdempotentProducerIdentity(self._cluster)
        self._metrics = ClientMetrics("producer", self.config.client_id, self._cluster)
        self._sender = Sender(
            self._cluster,
            self.config,
            self._accumulator,
            identity,
            self._metadata_updater,
            ProducerMetrics(self._metrics, self._accumulator, self.config.buffer_memory),
        )
        self._telemetry = ClientTelemetryReporter(self._cluster, self._metrics, self._resource)
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
            self._warn_of_undelivered("was not closed")
            warnings.warn(f"{type(self).__name__} was not closed", ResourceWarning, source=self, stacklevel=2)

    async def start(self, *, keep_prepared: bool = False) -> None:
        """Connect to the cluster; BootstrapFailed says why it cannot. A transactional id is taken over: the
        open transaction of another producer is aborted, unless it was prepared and `keep_prepared` is given.
        """
        if self._tasks or self._closed:
            raise RuntimeError("a producer starts once")
        loop = self._loop = asyncio.get_running_loop()
        try:
            if self._own_cluster or not self._cluster.metadata.brokers:
                await self._cluster.start()
            if self._transactions is not None:
                await self._transactions.init(keep_prepared=keep_prepared)
        except BaseException:
            self._closed = True
            await self._release()
            raise
        self._tasks = [
            loop.create_task(self._sender.run(), name="ottla-producer-sender"),
            loop.create_task(self._metadata_updater.run(), name="ottla-producer-refresher"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_ended)
        self._telemetry.start(push=self._own_cluster)
        _watch_until_exit(self)

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        """Fail all records when a task of the producer dies, rather than let callers wait without end."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._fail_all(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the producer has failed: {error!r}"))

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Deliver what was sent (within `timeout_ms`, if given; the rest then fails) and disconnect. An open
        transaction is left to be aborted by its timeout, or by the next producer of its id.
        """
        if self._closed:
            return
        if self._tasks:
            check_loop(self._loop, "the producer")
        self._closed = True
        self._routes.clear()
        try:
            if self._tasks:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self.flush()
        except TimeoutError:
            pass
        finally:
            await run_to_end(self._release())

    async def _release(self) -> None:
        await self._telemetry.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._transaction_manager is not None:
            await self._transaction_manager.close()
        self._warn_of_undelivered("was closed")
        self._fail_all(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the producer was closed"))
        if self._own_cluster:
            await self._cluster.close()
        if self._own_runtime:
            self._runtime.close()

    def _warn_of_undelivered(self, event: str) -> None:
        batches = self._accumulator.incomplete_batches()
        if batches:
            log.warning(
                "the producer %s with records that are not delivered: %d, the first for %s; close it without "
                "a time-out, or use `with` or `async with`, to wait for them",
                event,
                sum(batch.count for batch in batches),
                batches[0].partition,
            )

    def _fail_all(self, error: KafkaError) -> None:
        for batch in self._accumulator.incomplete_batches():
            batch.fail(KafkaError(error.code, f"{batch.partition}: {error.message}"))
            self._accumulator.deallocate(batch)

    # Records.

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata:
        """Send one record and wait until it is acknowledged, as `acks` requires. Raises KafkaError on
        failure.
        """
        await self.ready(topic)
        return await self.send_nowait(
            topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers
        )

    async def ready(self, topic: str) -> None:
        """Wait, up to `max.block.ms`, until the topic's partitions are known and there is room for more
        records; and until serializers of `ottla.serdes` have the topic's schemas.
        """
        self._check_open()
        if self._has_serdes:
            await self._prepare_serdes(topic)
        if self._router.knows(topic) and self._accumulator.has_room():
            return
        try:
            async with asyncio.timeout(self.config.max_block_ms / 1000):
                if not self._router.knows(topic):
                    await self._cluster.topic(topic, timeout_ms=self.config.max_block_ms)
                    self._router.route(topic)
                self._sender.wake()
                await self._accumulator.wait_for_room()
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"topic {topic!r}: not ready within max.block.ms={self.config.max_block_ms}: "
                f"{self._accumulator.used_bytes} of buffer.memory={self.config.buffer_memory} bytes wait"
                f"{self._sender.why_nothing_is_sent()}",
            ) from None

    async def _prepare_serdes(self, topic: str) -> None:
        for serde, is_key in ((self._key_serializer, True), (self._value_serializer, False)):
            if isinstance(serde, RecordSerde) and not serde.is_prepared(topic, is_key=is_key):
                await self._runtime.pool.run(partial(serde.prepare, topic, is_key=is_key))

    def send_nowait(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Queue a record and return a handle. The topic must be known (`ready`), and there must be room:
        BufferFull is raised otherwise, for callers that cannot wait.
        """
        if self._is_plain:
            return self._send(topic, value, key, partition, timestamp, headers)
        return self._send_intercepted(ProducerRecord(topic, value, key, partition, timestamp, headers))

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
    ) -> Delivery:
        """Runs for every record: rare cases are handled in `_route` only."""
        route = self._routes.get(topic)
        if route is None or route.view is not self._cluster.metadata:
            route = self._route(topic)
        if self._transactions is not None:
            self._transactions.check_open()
        accumulator = self._accumulator
        if accumulator.used_bytes >= self._buffer_memory:
            raise BufferFull(
                f"topic {topic!r}: buffer.memory={self.config.buffer_memory} is full; await ready() first"
            )
        size = _HEADROOM
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if partition is not None:
            self._router.check_partition(route, partition)
        elif key is None and self._keyless_stick:
            sticky = route.sticky
            sticky.left -= size
            partition = sticky.current if sticky.left > 0 else self._router.sticky(route, 0)
        else:
            partition = self._router.choose(route, key, value)
        if size > self._max_record_bytes or headers:
            self._check_size(topic, record_size_bound(key, value, headers))
        if timestamp is None:
            timestamp = self._clock.wall_ms()
        return accumulator.append(route.queues[partition], timestamp, key, value, headers)

    def _route(self, topic: str) -> TopicRoute:
        self._check_open()
        return self._router.route(topic)

    def _send_intercepted(self, record: ProducerRecord) -> Delivery:
        """Send a record through interceptors and serializers."""
        for interceptor in self._interceptors:
            record = interceptor.on_send(record)
        headers = record.headers
        key, headers = _serialized(self._key_serializer, record.topic, record.key, headers, is_key=True)
        value, headers = _serialized(
            self._value_serializer, record.topic, record.value, headers, is_key=False
        )
        delivery = self._send(record.topic, value, key, record.partition, record.timestamp, headers)
        for interceptor in self._interceptors:
            delivery.add_done_callback(interceptor.on_acknowledgement)
        return delivery

    async def send_arrow(self, topic: str, data: pa.Table | pa.RecordBatch) -> list[SentBatch]:
        """Send all rows of a table, wait until the brokers have them, and return where they are.

        Columns `key`, `value`, `headers`, `timestamp` and `partition` may each be missing. Without a
        partition the key decides, as in `send`. Serializers and interceptors are not called. The first error
        is raised after all batches were tried.
        """
        return await (await self.queue_arrow(topic, data)).delivered()

    async def queue_arrow(self, topic: str, data: pa.Table | pa.RecordBatch) -> QueuedRows:
        """Send rows as `send_arrow` does, but wait only for room; the returned object has the result."""
        from ottla.client.producer.arrow import encoders_of

        await self.ready(topic)
        if self._transactions is not None:
            self._transactions.check_open()
        route = self._router.route(topic)
        sent: list[ProducerBatch] = []
        limit = min(self.config.max_request_size, ARROW_BATCH_BYTES)
        encoders = encoders_of(data, route, self._router, now_ms=self._clock.wall_ms(), batch_bytes=limit)
        for partition, encoder in encoders:
            if not self._accumulator.has_room():
                await self.ready(topic)
            queue = route.queues[partition]
            sent.append(self._accumulator.enqueue_encoded(queue, encoder, limit))
            self._sender.wake()
            if len(sent) % 8 == 0:
                await asyncio.sleep(0)  # send what is ready while the rest is encoded
        return QueuedRows(sent)

    async def flush(self) -> None:
        """Wait until everything sent before this call is delivered or has failed. Failures show on the
        handles.
        """
        check_loop(self._loop, "the producer")
        self._accumulator.flushing += 1
        try:
            self._sender.wake()
            for batch in self._accumulator.incomplete_batches():
                await asyncio.shield(batch.done())
        finally:
            self._accumulator.flushing -= 1

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic; waits up to `max.block.ms` for the topic to be created."""
        info = await self._cluster.topic(topic, timeout_ms=self.config.max_block_ms)
        return [TopicPartition(topic, p.partition) for p in info.partitions]

    def metrics(self) -> dict[MetricName, float]:
        """The producer's metrics, by Kafka's names; an average without values is NaN."""
        return self._metrics.values()

    def _resource(self) -> dict[str, str]:
        transactional_id = self.config.transactional_id
        return {} if transactional_id is None else {"transactional_id": transactional_id}

    # Transactions.

    def transaction(self) -> Transaction:
        """Return a transaction for `async with`: committed at the end of the block, aborted if it raises."""
        return self.transactions.transaction()

    @property
    def transactions(self) -> Transactions:
        """Transactions step by step: begin, commit, abort, and the two phases of a prepared one."""
        if self._transactions is None:
            raise ValueError("transactions need a transactional.id")
        return self._transactions

    # Internals.

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the producer is closed")
        if not self._tasks:
            raise RuntimeError(
                "the producer has not been started: use `async with` (blocking: `with`), or start()"
            )
        check_loop(self._loop, "the producer")

    def _loop_time(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _wake_sender(self) -> None:
        self._sender.wake()

    def _check_size(self, topic: str, bound: int) -> None:
        for name, limit in (
            ("max.request.size", self.config.max_request_size),
            ("buffer.memory", self.config.buffer_memory),
        ):
            if bound > limit:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"topic {topic!r}: a record of {bound} bytes is larger than {name}={limit}",
                )


class _OpenProducers:
    """The producers of this process that are at work: at its end, what they did not deliver is said."""

    def __init__(self) -> None:
        self.producers: WeakKeyDictionary[Producer, None] = WeakKeyDictionary()
        self.pid = process.pid()
        process.on_exit(self.warn)

    def warn(self) -> None:
        for producer in list(self.producers):
            if not producer._closed:
                producer._warn_of_undelivered("was not closed when the process ended,")


_open_producers: _OpenProducers | None = None


def _watch_until_exit(producer: Producer) -> None:
    global _open_producers
    if _open_producers is None or _open_producers.pid != process.pid():
        _open_producers = _OpenProducers()
    _open_producers.producers[producer] = None
