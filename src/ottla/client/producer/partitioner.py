"""The partition that a record goes to, if its sender does not choose it.

With a key: Java's murmur2 of it, so that all of Kafka's clients agree on the partition of a key. Without: one
partition is used for about the bytes of a batch, then another is drawn; partitions of slow brokers are drawn
less often.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from ottla.client.cluster_metadata import ClusterMetadata, TopicInfo
from ottla.client.network_client import NetworkClient
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.record_accumulator import PartitionQueue, RecordAccumulator
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records._kernel import partition_for
from ottla.runtime.random import Random


class Partitioner(Protocol):
    """Chooses by topic, serialized key and value, and the number of partitions."""

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int: ...


class RoundRobinPartitioner:
    """Chooses one partition after the other, regardless of the key."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        return turn % partitions


def partitioner_of(chosen: Partitioner | str | None) -> Partitioner | None:
    """Return the chosen partitioner: "round_robin", any callable, or None for Kafka's own, which goes by key
    and is sticky without one.
    """
    if chosen == "round_robin":
        return RoundRobinPartitioner()
    if chosen is None or callable(chosen):
        return chosen
    raise ValueError(f"partitioner={chosen!r}: allowed are round_robin, a callable, or None for Kafka's own")


class BuiltInPartitioner:
    """The sticky partitioner of one topic's records without a key: it changes after `batch_size` bytes."""

    __slots__ = ("_batch_size", "_random", "current", "left")

    def __init__(self, random: Random, batch_size: int) -> None:
        self._random = random
        self._batch_size = max(batch_size, 1)
        # Bytes that may still go to the current partition; at zero another one is drawn.
        self.left = 0
        self.current = -1

    def choose(self, partitions: int, queued: Sequence[tuple[int, int]]) -> int:
        """Draw a partition. `queued` lists the partitions that have a leader, with their number of waiting
        batches: fewer batches make the draw more likely. If no leader is known, all are equally likely.
        """
        self.left = self._batch_size
        if not queued:
            self.current = self._random.randrange(0, partitions)
        else:
            most = max(waiting for _, waiting in queued)
            limits = list(accumulate(most - waiting + 1 for _, waiting in queued))
            self.current = queued[bisect_right(limits, self._random.randrange(0, limits[-1]))][0]
        return self.current


class TopicRoute:
    """A topic that records are sent to: the queues of its partitions, and the sticky partition."""

    __slots__ = ("count", "info", "name", "queues", "sticky", "view")

    def __init__(self, name: str, sticky: BuiltInPartitioner, info: TopicInfo) -> None:
        self.name = name
        self.sticky = sticky
        self.info = info
        self.count = 0
        # The metadata with which it was last compared.
        self.view: ClusterMetadata | None = None
        self.queues: list[PartitionQueue] = []


class RecordRouter:
    """From the name of a topic to the queue of the partition that a record goes to."""

    def __init__(
        self,
        cluster: NetworkClient,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        partitioner: Partitioner | None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._accumulator = accumulator
        self._partitioner = partitioner
        self._by_key = not config.partitioner_ignore_keys
        self.routes: dict[str, TopicRoute] = {}

    def knows(self, topic: str) -> bool:
        return topic in self.routes

    def route(self, topic: str) -> TopicRoute:
        """Return the topic's partitions by current metadata; KafkaError if there are none."""
        known = self.routes.get(topic)
        view = self._cluster.metadata
        if known is not None and known.view is view:
            return known
        info = view.topics.get(topic)
        if known is not None and known.info is info:
            known.view = view
            return known
        if info is None or info.error or not info.partitions:
            if known is not None:
                return known  # records for a deleted topic fail by themselves
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} is not known yet; await ready({topic!r}) first",
            )
        if known is None:
            sticky = BuiltInPartitioner(self._cluster.runtime.random, self._config.batch_size)
            known = self.routes[topic] = TopicRoute(topic, sticky, info)
        known.info, known.view = info, view
        known.sticky.left = 0  # its current partition may be gone, or have no leader
        known.count = len(info.partitions)
        known.queues = [self._accumulator.queue(TopicPartition(topic, p.partition)) for p in info.partitions]
        return known

    def choose(self, route: TopicRoute, key: bytes | None, value: bytes | None) -> int:
        if self._partitioner is not None:
            chosen = self._partitioner(route.name, key, value, route.count)
            return self.check_partition(route, chosen, "the partitioner chose")
        if key is not None and self._by_key:
            return partition_for(key, route.count)
        return self.sticky(route, len(value) if value is not None else 0)

    def sticky(self, route: TopicRoute, size: int) -> int:
        """Return the partition for records without a key."""
        sticky = route.sticky
        sticky.left -= size
        if sticky.left <= 0:
            brokers = self._cluster.metadata.brokers
            adaptive = self._config.partitioner_adaptive_partitioning_enable
            queued = [
                (p.partition, len(route.queues[p.partition].batches) if adaptive else 0)
                for p in route.info.partitions
                if p.leader in brokers
            ]
            sticky.choose(route.count, queued)
        return sticky.current

    @staticmethod
    def check_partition(route: TopicRoute, partition: int, what: str = "there is no partition") -> int:
        if not 0 <= partition < route.count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {route.name!r} has partitions 0 to {route.count - 1}; {what} {partition}",
            )
        return partition
