"""The producer's face: from a record to its batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self, TypeAlias

from ottla.client.cluster import Cluster, ConnectionConfig
from ottla.client.producer.accumulator import Accumulator, PartitionQueue
from ottla.client.producer.batch import Delivery, RecordMetadata
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.identity import ProducerIdentity
from ottla.client.producer.partitioner import KeyPartitioner, Partitioner, StickyPartitioner
from ottla.client.producer.sender import Sender
from ottla.client.view import TopicInfo, TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import record_size_bound
from ottla.runtime.runtime import Runtime

__all__ = ["Producer"]

Headers: TypeAlias = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]
_HEADROOM = 61


class _Topic:
    """A topic that records go to: its queues by partition, and where those without a key go for now."""

    __slots__ = ("count", "info", "name", "queues", "sticky")

    def __init__(self, name: str, sticky: StickyPartitioner) -> None:
        self.name = name
        self.sticky = sticky
        self.info: TopicInfo | None = None
        self.count = 0
        self.queues: list[PartitionQueue] = []


class Producer:
    """Sends records. All settings of `ProducerConfig` can be given as keywords.

    Keys and values are bytes. `send` waits for the broker's word; `send_nowait` returns at once with a
    handle that can be awaited. Closing waits for everything that was sent.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        config: ProducerConfig | None = None,
        partitioner: Partitioner | None = None,
        runtime: Runtime | None = None,
        **settings: Any,
    ) -> None:
        if bootstrap_servers is not None:
            settings["bootstrap_servers"] = bootstrap_servers
        self.config = replace(config, **settings) if config is not None else ProducerConfig(**settings)
        self._own_runtime = runtime is None
        self._runtime = runtime if runtime is not None else Runtime.real(pool_workers=1)
        self._clock = self._runtime.clock
        self._cluster = Cluster(
            self._runtime,
            ConnectionConfig(
                self.config.bootstrap_servers,
                client_id=self.config.client_id,
                request_timeout_ms=self.config.request_timeout_ms,
                retry_backoff_ms=self.config.retry_backoff_ms,
                retry_backoff_max_ms=self.config.retry_backoff_max_ms,
                metadata_max_age_ms=self.config.metadata_max_age_ms,
            ),
        )
        self._accumulator = Accumulator(self.config)
        self._sender = Sender(self._cluster, self.config, self._accumulator, ProducerIdentity(self._cluster))
        self._sending: asyncio.Task[None] | None = None
        self._topics: dict[str, _Topic] = {}
        self._partitioner = partitioner
        self._by_key = KeyPartitioner()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reaches the cluster; BootstrapFailed says why it cannot."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._release()
            raise
        self._sending = asyncio.get_running_loop().create_task(self._sender.run(), name="ottla-producer")

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Delivers what was sent (within `timeout_ms`, if given; what is left then fails) and disconnects."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._sending is not None:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self.flush()
        except TimeoutError:
            pass
        finally:
            await self._release()

    async def _release(self) -> None:
        await self._sender.close()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        for batch in self._accumulator.unsettled():
            batch.fail(KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{batch.partition}: the producer was closed"))
        await self._cluster.close()
        if self._own_runtime:
            self._runtime.close()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> RecordMetadata:
        """Sends one record and waits until the broker has it, as `acks` asks. Raises KafkaError if it did
        not work.
        """
        await self.ready(topic)
        return await self.send_nowait(
            topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers
        )

    async def ready(self, topic: str) -> None:
        """Waits, up to `max.block.ms`, until the topic's partitions are known and there is room for more
        records.
        """
        if self._closed:
            raise RuntimeError("the producer is closed")
        known = self._topics.get(topic)
        if known is not None and known.count and self._accumulator.has_room():
            return
        try:
            async with asyncio.timeout(self.config.max_block_ms / 1000):
                if known is None or not known.count:
                    await self._cluster.topic(topic, timeout_ms=self.config.max_block_ms)
                    self._learn(topic)
                await self._accumulator.room()
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"topic {topic!r}: not ready within max.block.ms={self.config.max_block_ms}: "
                f"{self._accumulator.used_bytes} of buffer.memory={self.config.buffer_memory} bytes wait",
            ) from None

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers = (),
    ) -> Delivery:
        """Puts a record on its way and returns a handle. The topic must be known (`ready`), and there must
        be room: KafkaError otherwise, so that whoever cannot wait learns it.
        """
        known = self._topics.get(topic)
        if known is None or known.info is not self._cluster.view.topics.get(topic):
            known = self._learn(topic)
        accumulator = self._accumulator
        if accumulator.used_bytes >= self.config.buffer_memory:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"topic {topic!r}: buffer.memory={self.config.buffer_memory} is full; await ready() first",
            )
        if partition is None:
            partition = self._choose(known, key, value)
        elif not 0 <= partition < known.count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} has partitions 0 to {known.count - 1}, not {partition}",
            )
        size = len(value) if value is not None else 0
        if size + _HEADROOM > self.config.max_request_size or headers:
            self._check_size(topic, record_size_bound(key, value, headers))
        delivery, ready = accumulator.append(
            known.queues[partition],
            self._clock.wall_ms() if timestamp is None else timestamp,
            key,
            value,
            headers,
            asyncio.get_running_loop().time(),
        )
        if key is None:
            known.sticky.added(size)
        if ready:
            self._sender.wake()
        return delivery

    async def flush(self) -> None:
        """Waits until everything sent before this call was delivered or has failed. Failures show on the
        handles.
        """
        self._accumulator.flushing += 1
        try:
            self._sender.wake()
            for batch in self._accumulator.unsettled():
                await asyncio.shield(batch.done())
        finally:
            self._accumulator.flushing -= 1

    async def partitions_for(self, topic: str) -> TopicInfo:
        return await self._cluster.topic(topic, timeout_ms=self.config.max_block_ms)

    def _learn(self, topic: str) -> _Topic:
        info = self._cluster.view.topics.get(topic)
        if info is None or info.error or not info.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} is not known yet; await ready({topic!r}) first",
            )
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Topic(
                topic, StickyPartitioner(self._runtime.random, self.config.batch_size)
            )
        known.info = info
        known.count = len(info.partitions)
        known.queues = [self._accumulator.queue(TopicPartition(topic, p.partition)) for p in info.partitions]
        return known

    def _choose(self, topic: _Topic, key: bytes | None, value: bytes | None) -> int:
        if self._partitioner is not None:
            chosen = self._partitioner(topic.name, key, value, topic.count)
            if not 0 <= chosen < topic.count:
                raise ValueError(
                    f"{topic.name!r} has {topic.count} partitions; the partitioner chose {chosen}"
                )
            return chosen
        if key is not None:
            return self._by_key(topic.name, key, value, topic.count)
        sticky = topic.sticky
        if sticky.is_due or sticky.current >= topic.count:
            brokers = self._cluster.view.brokers
            assert topic.info is not None
            queued = [
                (p.partition, len(topic.queues[p.partition].batches))
                for p in topic.info.partitions
                if p.leader in brokers
            ]
            sticky.choose(topic.count, queued)
        return sticky.current

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
