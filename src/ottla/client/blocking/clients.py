"""The blocking clients: each holds an asyncio client and runs it on a loop in a thread of its own.

Calls block until the asyncio client has done its work; an interrupt cancels the call and leaves the client
usable. A client belongs to the process that made it: after a fork it says so instead of hanging.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ottla.client import bulk
from ottla.client import consumer as consumers
from ottla.client import producer as producers
from ottla.client import share as shares
from ottla.client.admin import Admin as AsyncAdmin
from ottla.client.admin.offsets import FoundOffset
from ottla.client.group_offsets import CommittedOffset
from ottla.client.metrics import MetricName
from ottla.client.producer.producer_batch import Delivery, RecordMetadata
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.protocol.share import AcknowledgeType
from ottla.records._kernel import ConsumerRecord
from ottla.runtime.loop import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Partition = TopicPartition | tuple[str, int]


class _Client:
    """A client whose event loop runs in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._thread = LoopThread(f"ottla-{name}")
        self._thread.start()
        self._client: Any = None

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None and thread.is_running and not sys.is_finalizing():
            name = f"blocking.{type(self).__name__}"
            warnings.warn(f"{name} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __enter__(self) -> Self:
        self._start(self._client.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_running:
            self._call(self._client.close())
            self._thread.stop()

    def _start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            self._call(coroutine)
        except BaseException:
            self._thread.stop()
            raise

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(coroutine)

    def _do(self, call: Callable[..., T], *args: Any, **keywords: Any) -> T:
        """Run a plain function on the client's loop."""

        async def run() -> T:
            return call(*args, **keywords)

        return self._thread.call(run())

    def _make_client(self, make: Callable[[], T]) -> T:
        try:
            client = self._client = self._do(make)
        except BaseException:
            self._thread.stop()
            raise
        return client


class Future:
    """The result of `Producer.send_nowait`: `result()` blocks until the record is delivered or has failed."""

    __slots__ = ("_delivery", "_thread")

    def __init__(self, thread: LoopThread, delivery: Delivery) -> None:
        self._thread = thread
        self._delivery = delivery

    def done(self) -> bool:
        return self._delivery.done()

    def result(self) -> RecordMetadata:
        if self._delivery.done():
            return self._delivery.result()
        return self._thread.call(_await(self._delivery))


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _next_or_none(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


def read_topic(bootstrap_servers: Any, topic: str, **options: Any) -> pa.Table:
    """As `ottla.read_topic`, also where a loop runs already, as in a notebook."""
    return _run_once(bulk.read_topic(bootstrap_servers, topic, **options))


def write_topic(bootstrap_servers: Any, topic: str, data: Any, **settings: Any) -> int:
    """As `ottla.write_topic`, also where a loop runs already, as in a notebook."""
    return _run_once(bulk.write_topic(bootstrap_servers, topic, data, **settings))


def _run_once(coroutine: Coroutine[Any, Any, T]) -> T:
    thread = LoopThread("ottla-bulk")
    thread.start()
    try:
        return thread.call(coroutine)
    finally:
        thread.stop()


class Producer(_Client):
    """As `ottla.Producer`, with the same settings. `send` blocks until the broker has the record."""

    def __init__(self, bootstrap_servers: Any = None, **settings: Any) -> None:
        super().__init__("producer")
        self._producer = self._make_client(partial(producers.Producer, bootstrap_servers, **settings))
        self.config = self._producer.config

    def start(self, *, keep_prepared: bool = False) -> None:
        self._start(self._producer.start(keep_prepared=keep_prepared))

    def close(self, *, timeout_ms: int | None = None) -> None:
        if self._thread.is_running:
            self._call(self._producer.close(timeout_ms=timeout_ms))
            self._thread.stop()

    def send(self, topic: str, value: Any, **fields: Any) -> RecordMetadata:
        return self._call(self._producer.send(topic, value, **fields))

    def send_nowait(self, topic: str, value: Any, **fields: Any) -> Future:
        """Wait for room in the buffer if necessary, but not for the broker."""

        async def send_when_ready() -> Delivery:
            await self._producer.ready(topic)
            return self._producer.send_nowait(topic, value, **fields)

        return Future(self._thread, self._call(send_when_ready()))

    def send_many(self, topic: str, values: Iterable[Any], **fields: Any) -> list[RecordMetadata]:
        """Send many values with one switch to the loop's thread, and wait for all of them."""

        async def send_all() -> list[RecordMetadata]:
            deliveries = []
            for value in values:
                await self._producer.ready(topic)
                deliveries.append(self._producer.send_nowait(topic, value, **fields))
            await self._producer.flush()
            return [delivery.result() for delivery in deliveries]

        return self._call(send_all())

    def send_arrow(self, topic: str, data: pa.Table | pa.RecordBatch) -> list[producers.SentBatch]:
        return self._call(self._producer.send_arrow(topic, data))

    def flush(self) -> None:
        self._call(self._producer.flush())

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        return self._call(self._producer.partitions_for(topic))

    def metrics(self) -> dict[MetricName, float]:
        return self._do(self._producer.metrics)

    def transaction(self) -> Transaction:
        """Return a transaction for `with`: committed at the end of the block, aborted if it raises."""
        return Transaction(self, self._producer.transaction())

    # Transactions step by step.

    def begin_transaction(self) -> None:
        self._do(self._producer.transactions.begin)

    def commit_transaction(self) -> None:
        self._call(self._producer.transactions.commit())

    def abort_transaction(self) -> None:
        self._call(self._producer.transactions.abort())

    def prepare_transaction(self) -> producers.PreparedTransaction:
        return self._call(self._producer.transactions.prepare())

    def complete_transaction(self, prepared: producers.PreparedTransaction) -> bool:
        return self._call(self._producer.transactions.complete(prepared))


class Transaction:
    """One transaction, made by `producer.transaction()`."""

    def __init__(self, producer: Producer, transaction: producers.Transaction) -> None:
        self._producer = producer
        self._transaction = transaction

    def __enter__(self) -> Self:
        self._producer._call(self._transaction.__aenter__())
        return self

    def __exit__(self, *exception: Any) -> None:
        self._producer._call(self._transaction.__aexit__(*exception))

    def send_offsets(
        self,
        source: Consumer[Any, Any] | Mapping[TopicPartition, CommittedOffset],
        group: producers.GroupMember | str | None = None,
    ) -> None:
        if isinstance(source, Consumer):
            offsets = source.positions()
            member = group or (source.group_member() if offsets else "")
            self._producer._call(self._transaction.send_offsets(offsets, member))
        else:
            self._producer._call(self._transaction.send_offsets(source, group))


class Consumer(_Client, Generic[K, V]):
    """As `ottla.Consumer`, with the same settings."""

    def __init__(self, bootstrap_servers: Any = None, **settings: Any) -> None:
        super().__init__("consumer")
        self._consumer: consumers.Consumer[K, V] = self._make_client(
            partial(consumers.Consumer, bootstrap_servers, **settings)
        )
        self.config = self._consumer.config

    def start(self) -> None:
        self._start(self._consumer.start())

    def assign(self, partitions: Iterable[Partition]) -> None:
        self._do(self._consumer.assign, partitions)

    def subscribe(self, topics: str | Iterable[str] = (), **options: Any) -> None:
        """As `ottla.Consumer.subscribe`. A listener is called on the client's own thread."""
        self._do(self._consumer.subscribe, topics, **options)

    def unsubscribe(self) -> None:
        self._call(self._consumer.unsubscribe())

    def assignment(self) -> list[TopicPartition]:
        return self._do(self._consumer.assignment)

    def pause(self, *partitions: Partition) -> None:
        self._do(self._consumer.pause, *partitions)

    def resume(self, *partitions: Partition) -> None:
        self._do(self._consumer.resume, *partitions)

    def paused(self) -> list[TopicPartition]:
        return self._do(self._consumer.paused)

    def seek(self, partition: Partition, offset: int, *, leader_epoch: int = -1) -> None:
        self._do(self._consumer.seek, partition, offset, leader_epoch=leader_epoch)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        self._do(self._consumer.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: Partition) -> None:
        self._do(self._consumer.seek_to_end, *partitions)

    def seek_to_committed(self) -> None:
        self._do(self._consumer.seek_to_committed)

    def seek_to_timestamp(self, timestamp_ms: int, *partitions: Partition) -> None:
        self._call(self._consumer.seek_to_timestamp(timestamp_ms, *partitions))

    def position(self, partition: Partition) -> int:
        return self._call(self._consumer.position(partition))

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        return self._do(self._consumer.positions)

    def lag(self, partition: Partition) -> int | None:
        return self._do(self._consumer.lag, partition)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._call(self._consumer.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._call(self._consumer.end_offsets(partitions))

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | None]:
        return self._call(self._consumer.offsets_for_times(times_ms))

    def partitions_for(self, topic: str, *, timeout_ms: int | None = None) -> list[TopicPartition]:
        return self._call(self._consumer.partitions_for(topic, timeout_ms=timeout_ms))

    def poll(
        self, max_records: int | None = None, *, timeout_ms: float | None = 1_000
    ) -> list[ConsumerRecord[K, V]]:
        return self._call(self._consumer.poll(max_records, timeout_ms=timeout_ms))

    def poll_arrow(
        self,
        *,
        max_bytes: int | None = None,
        timeout_ms: float | None = 1_000,
        columns: Sequence[str] = consumers.ARROW_COLUMNS,
    ) -> pa.Table:
        return self._call(
            self._consumer.poll_arrow(max_bytes=max_bytes, timeout_ms=timeout_ms, columns=columns)
        )

    def read_arrow(
        self,
        until: Mapping[Partition, int] | None = None,
        *,
        columns: Sequence[str] = consumers.ARROW_COLUMNS,
    ) -> Iterator[pa.Table]:
        """As `ottla.Consumer.read_arrow`."""
        tables = self._consumer.read_arrow(until, columns=columns)
        try:
            while (table := self._call(_next_or_none(tables))) is not None:
                yield table
        finally:
            if self._thread.is_running:
                self._call(_await(tables.aclose()))

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Yield records without end, one poll at a time. Leaving the loop makes the rest readable again."""
        records: list[ConsumerRecord[K, V]] = []
        at = 0
        try:
            while True:
                records, at = self.poll(timeout_ms=None), 0
                for record in records:
                    at += 1
                    yield record
        finally:
            if at < len(records) and self._thread.is_running:
                self._do(self._give_back, records[at:])

    def _give_back(self, records: list[ConsumerRecord[K, V]]) -> None:
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        owned = set(self._consumer.assignment())
        for partition, offset in first.items():
            if partition in owned:
                self._consumer.seek(partition, offset)

    def committed(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        return self._call(self._consumer.committed(partitions))

    def commit(
        self, offsets: Mapping[Partition, CommittedOffset | int] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        return self._call(self._consumer.commit(offsets))

    def commit_nowait(self, offsets: Mapping[Partition, CommittedOffset | int] | None = None) -> None:
        """Start a commit; closing waits for it, and a failure is logged."""
        self._do(self._consumer.commit_nowait, offsets)

    def metrics(self) -> dict[MetricName, float]:
        return self._do(self._consumer.metrics)

    def group_member(self) -> producers.GroupMember:
        return self._do(self._consumer.group_member)


class ShareConsumer(_Client, Generic[K, V]):
    """As `ottla.ShareConsumer`, with the same settings."""

    def __init__(self, bootstrap_servers: Any = None, **settings: Any) -> None:
        super().__init__("share-consumer")
        self._consumer: shares.ShareConsumer[K, V] = self._make_client(
            partial(shares.ShareConsumer, bootstrap_servers, **settings)
        )
        self.config = self._consumer.config

    def start(self) -> None:
        self._start(self._consumer.start())

    def subscribe(self, topics: str | Iterable[str]) -> None:
        self._do(self._consumer.subscribe, topics)

    def unsubscribe(self) -> None:
        self._call(self._consumer.unsubscribe())

    def subscription(self) -> list[str]:
        return self._do(self._consumer.subscription)

    def assignment(self) -> list[TopicPartition]:
        return self._do(self._consumer.assignment)

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        return self._consumer.acquisition_lock_timeout_ms

    def poll(
        self, max_records: int | None = None, *, timeout_ms: float | None = 1_000
    ) -> list[shares.ShareRecord[K, V]]:
        return self._call(self._consumer.poll(max_records, timeout_ms=timeout_ms))

    def poll_arrow(
        self,
        *,
        timeout_ms: float | None = 1_000,
        columns: Sequence[str] = shares.SHARE_ARROW_COLUMNS,
    ) -> pa.Table:
        return self._call(self._consumer.poll_arrow(timeout_ms=timeout_ms, columns=columns))

    def __iter__(self) -> Iterator[shares.ShareRecord[K, V]]:
        """Yield records without end. In the implicit mode a record is accepted when the next is asked for."""
        while True:
            yield self._call(self._consumer.__anext__())

    def acknowledge(
        self, record: shares.ShareRecord[Any, Any], type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        self._do(self._consumer.acknowledge, record, type)

    def accept(self, *records: shares.ShareRecord[Any, Any]) -> None:
        self._do(self._consumer.accept, *records)

    def release(self, *records: shares.ShareRecord[Any, Any]) -> None:
        self._do(self._consumer.release, *records)

    def reject(self, *records: shares.ShareRecord[Any, Any]) -> None:
        self._do(self._consumer.reject, *records)

    def renew(self, *records: shares.ShareRecord[Any, Any]) -> None:
        self._do(self._consumer.renew, *records)

    def acknowledge_arrow(
        self, rows: pa.Table | pa.RecordBatch, type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        self._do(self._consumer.acknowledge_arrow, rows, type)

    def set_acknowledgement_commit_callback(
        self, callback: shares.AcknowledgementCommitCallback | None
    ) -> None:
        """As `ottla.ShareConsumer`'s. It is called on the client's own thread."""
        self._do(self._consumer.set_acknowledgement_commit_callback, callback)

    def commit(self, *, timeout_ms: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        return self._call(self._consumer.commit(timeout_ms=timeout_ms))

    def commit_nowait(self) -> None:
        """Send all acknowledgements; the callback gets the results."""
        self._do(self._consumer.commit_nowait)

    def run_workers(
        self, handler: Callable[[shares.ShareRecord[K, V]], object], **options: Any
    ) -> shares.WorkerResults:
        """As `ottla.ShareConsumer.run_workers`. Blocks until `stop_workers`, which another thread or a worker
        may call; a plain `handler` runs in threads, `concurrency` of them.
        """
        return self._call(self._consumer.run_workers(handler, **options))

    def stop_workers(self) -> None:
        self._do(self._consumer.stop_workers)

    def metrics(self) -> dict[MetricName, float]:
        return self._do(self._consumer.metrics)


class Admin(_Client):
    """As `ottla.Admin`: `admin.topics.create(...)`, `admin.offsets.end(...)`, each call blocking."""

    def __init__(self, bootstrap_servers: Any = None, **settings: Any) -> None:
        super().__init__("admin")
        self._admin = self._make_client(partial(AsyncAdmin, bootstrap_servers, **settings))

    def metrics(self) -> dict[MetricName, float]:
        return self._do(self._admin.metrics)

    def __getattr__(self, name: str) -> _Group:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Group(self, getattr(self._admin, name))


class _Group:
    """A group of admin calls, each blocking."""

    __slots__ = ("_admin", "_calls")

    def __init__(self, admin: Admin, calls: Any) -> None:
        self._admin = admin
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._calls, name)

        def blocking(*args: Any, **keywords: Any) -> Any:
            if iscoroutinefunction(call):
                return self._admin._call(call(*args, **keywords))
            return self._admin._do(call, *args, **keywords)

        return blocking
