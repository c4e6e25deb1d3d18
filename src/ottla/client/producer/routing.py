"""From a topic's name to the queue of the partition that a record goes to."""

from __future__ import annotations

from ottla.client.cluster import Cluster
from ottla.client.producer.accumulator import Accumulator, PartitionQueue
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.partitioner import Partitioner, StickyPartitioner
from ottla.client.view import ClusterView, TopicInfo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.partitioning import partition_for

__all__ = ["Route", "Router"]


class Route:
    """A topic that records go to: its queues by partition, and where those without a key go for now."""

    __slots__ = ("count", "info", "name", "queues", "sticky", "view")

    def __init__(self, name: str, sticky: StickyPartitioner, info: TopicInfo) -> None:
        self.name = name
        self.sticky = sticky
        self.info = info
        self.count = 0
        # The metadata that it was last compared with.
        self.view: ClusterView | None = None
        self.queues: list[PartitionQueue] = []


class Router:
    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        accumulator: Accumulator,
        partitioner: Partitioner | None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._accumulator = accumulator
        self._partitioner = partitioner
        self._by_key = not config.partitioner_ignore_keys
        self.routes: dict[str, Route] = {}

    def knows(self, topic: str) -> bool:
        return topic in self.routes

    def route(self, topic: str) -> Route:
        """The topic's partitions as metadata has them now; KafkaError if it has none."""
        known = self.routes.get(topic)
        view = self._cluster.view
        if known is not None and known.view is view:
            return known
        info = view.topics.get(topic)
        if known is not None and known.info is info:
            known.view = view
            return known
        if info is None or info.error or not info.partitions:
            if known is not None:
                return known  # what is on its way to a topic that is gone fails by itself
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} is not known yet; await ready({topic!r}) first",
            )
        if known is None:
            sticky = StickyPartitioner(self._cluster.runtime.random, self._config.batch_size)
            known = self.routes[topic] = Route(topic, sticky, info)
        known.info, known.view = info, view
        known.sticky.left = 0  # the partition it was at may be gone, or have no leader
        known.count = len(info.partitions)
        known.queues = [self._accumulator.queue(TopicPartition(topic, p.partition)) for p in info.partitions]
        return known

    def choose(self, route: Route, key: bytes | None, value: bytes | None) -> int:
        if self._partitioner is not None:
            chosen = self._partitioner(route.name, key, value, route.count)
            return self.checked(route, chosen, "the partitioner chose")
        if key is not None and self._by_key:
            return partition_for(key, route.count)
        return self.sticky(route, len(value) if value is not None else 0)

    def sticky(self, route: Route, size: int) -> int:
        """The partition that records without a key go to for now."""
        sticky = route.sticky
        sticky.left -= size
        if sticky.left <= 0:
            brokers = self._cluster.view.brokers
            adaptive = self._config.partitioner_adaptive_partitioning_enable
            queued = [
                (p.partition, len(route.queues[p.partition].batches) if adaptive else 0)
                for p in route.info.partitions
                if p.leader in brokers
            ]
            sticky.choose(route.count, queued)
        return sticky.current

    @staticmethod
    def checked(route: Route, partition: int, what: str = "there is no partition") -> int:
        if not 0 <= partition < route.count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {route.name!r} has partitions 0 to {route.count - 1}; {what} {partition}",
            )
        return partition
