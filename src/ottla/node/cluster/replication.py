"""What keeps the replicas of this broker in step with those of others.

It acts upon what following the metadata changed: fetchers go to the new leaders, in-sync sets that leaders
here propose go to the controller, and so does the news in which directory a replica lies. The throttles of
replication, and whether consumers are sent to the nearest replica, are kept here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ottla.node.cluster.assignments_manager import AssignmentsManager
from ottla.node.cluster.peers import PeerBrokers
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.names import TopicPartition
from ottla.replication.alter_partition_manager import AlterPartitionManager
from ottla.replication.partition import Partition, PendingPartitionChange
from ottla.replication.replica_fetcher import ReplicaFetcherConfig, ReplicaFetcherContext
from ottla.replication.replica_fetcher_manager import ReplicaFetcherManager
from ottla.replication.replica_manager import ReplicaChanges
from ottla.replication.replication_quota_manager import ReplicationQuotaManager, is_throttled

if TYPE_CHECKING:
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.node import Node

_ALTER_PARTITION_VERSION: Final = 3
_RACK_AWARE: Final = "RackAwareReplicaSelector"
_WINDOWS: Final = ("replication.quota.window.num", "replication.quota.window.size.seconds")
_WINDOWS_OF_MOVES: Final = (
    "alter.log.dirs.replication.quota.window.num",
    "alter.log.dirs.replication.quota.window.size.seconds",
)


def fetcher_config(config: NodeConfig) -> ReplicaFetcherConfig:
    number = config.number
    return ReplicaFetcherConfig(
        wait_max_ms=number("replica.fetch.wait.max.ms"),
        min_bytes=number("replica.fetch.min.bytes"),
        max_bytes=number("replica.fetch.max.bytes"),
        response_max_bytes=number("replica.fetch.response.max.bytes"),
        backoff_ms=number("replica.fetch.backoff.ms"),
        socket_timeout_ms=number("replica.socket.timeout.ms"),
    )


class BrokerReplication:
    def __init__(self, node: Node) -> None:
        self._node: Final = node
        self.peers: Final = PeerBrokers(node)
        self.leader_quota: Final = _quota(node, *_WINDOWS)
        self.follower_quota: Final = _quota(node, *_WINDOWS)
        self.move_quota: Final = _quota(node, *_WINDOWS_OF_MOVES)
        self.selects_nearest = False
        # Made when the first replica is shared with another broker: a lone node needs none of it.
        self._assignments: AssignmentsManager | None = None
        self._fetchers: ReplicaFetcherManager | None = None
        self._alter_partition_manager: AlterPartitionManager | None = None

    # Following the metadata

    def follow(self, changes: ReplicaChanges) -> None:
        if changes.followers and self._fetchers is None:
            self._fetchers = self._make_fetchers()
        if self._fetchers is not None:
            self._fetchers.follow(changes)
        self.report([*changes.leaders, *changes.followers])

    def resigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that this broker can no longer serve."""
        if self._fetchers is not None:
            self._fetchers.resigned(partitions)

    def configure(self) -> None:
        """The node's settings have changed, or are known now."""
        config = self._node.config
        self.leader_quota.limit = config.number("leader.replication.throttled.rate")
        self.follower_quota.limit = config.number("follower.replication.throttled.rate")
        self.move_quota.limit = config.number("replica.alter.log.dirs.io.max.bytes.per.second")
        selector = config["replica.selector.class"]
        self.selects_nearest = selector is not None and str(selector).rpartition(".")[2] == _RACK_AWARE
        if self._fetchers is not None:
            self._fetchers.configure(config.number("num.replica.fetchers"))

    async def close(self) -> None:
        if self._fetchers is not None:
            await self._fetchers.close()
        if self._assignments is not None:
            await self._assignments.close()
        if self._alter_partition_manager is not None:
            await self._alter_partition_manager.close()

    def _make_fetchers(self) -> ReplicaFetcherManager:
        node = self._node
        config = node.config
        follower = ReplicaFetcherContext(
            config.node_id,
            lambda: node.broker_epoch,
            node.runtime.clock,
            fetcher_config(config),
            self.follower_quota,
            self._failed,
        )
        return ReplicaFetcherManager(
            follower,
            lambda: self.peers.channel("fetcher"),
            self.peers.address,
            per_leader=config.number("num.replica.fetchers"),
        )

    def _failed(self, tp: TopicPartition, error: KafkaError) -> None:
        """The directory of its log went offline, with all that it has."""
        self.resigned([tp])

    # In-sync sets

    def propose(self, partition: Partition, proposal: PendingPartitionChange) -> None:
        """Take an in-sync set to the controller."""
        if self._alter_partition_manager is None:
            node = self._node
            self._alter_partition_manager = AlterPartitionManager(
                node.config.node_id, lambda: node.broker_epoch, self._alter, node.runtime.clock
            )
        self._alter_partition_manager.submit(partition, proposal)

    async def _alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        response = await self._node.controllers.ask(request, _ALTER_PARTITION_VERSION)
        assert isinstance(response, AlterPartitionResponse)
        return response

    # Directories

    def report(self, partitions: Iterable[Partition]) -> None:
        """Tell the controller where replicas lie, if that is not what it knows: a broker with one directory
        may have got another one, and leads nothing that is thought to be in the former.
        """
        self.assignments.check(partitions)

    @property
    def assignments(self) -> AssignmentsManager:
        if self._assignments is None:
            self._assignments = AssignmentsManager(self._node)
        return self._assignments

    # Throttles

    def is_throttled(self, partition: Partition, follower: int) -> bool:
        """Whether what the follower fetches counts for the leader's throttle: never when it is in sync."""
        replicas = partition.log.config.leader_replication_throttled_replicas
        return (
            bool(replicas)
            and follower not in partition.isr
            and is_throttled(replicas, partition.topic_partition.partition, partition.broker_id)
        )


def _quota(node: Node, samples: str, window_seconds: str) -> ReplicationQuotaManager:
    number = node.config.number
    return ReplicationQuotaManager(
        node.runtime.clock, samples=number(samples), window_ms=number(window_seconds) * 1000
    )
