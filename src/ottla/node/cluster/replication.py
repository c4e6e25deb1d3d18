"""Keep the replicas of this broker in step with those of other brokers.

It acts on the changes that new metadata brings: fetchers go to the new leaders, in-sync sets that leaders on
this broker propose go to the controller, and so do the directories in which replicas lie. The throttles of
replication, and whether consumers are sent to the nearest replica, are kept here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ottla.log.log_manager import LogManager
from ottla.metadata.image.cache import MetadataCache
from ottla.node.cluster.assignments_manager import AssignmentsManager
from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.node.cluster.peers import PeerBrokers
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.node_config import NodeConfig
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.names import TopicPartition
from ottla.replication.alter_partition_manager import AlterPartitionManager
from ottla.replication.partition import Partition
from ottla.replication.replica_fetcher import (
    ReplicaFetcherConfig,
    ReplicaFetcherContext,
    ReplicaTruncations,
    TierLookups,
)
from ottla.replication.replica_fetcher_manager import ReplicaFetcherManager
from ottla.replication.replica_manager import ReplicaChanges
from ottla.replication.replication_quota_manager import ReplicationQuotaManager, is_throttled
from ottla.rpc.connection import PLAINTEXT, ConnectionSecurity
from ottla.runtime.clock import Clock
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor

if TYPE_CHECKING:
    from ottla.remote.log_reader import RemoteLogReader

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
    def __init__(
        self,
        tasks: TaskSupervisor,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        logs: LogManager,
        metadata: MetadataCache,
        controller: ControllerChannel,
        broker_epoch: Callable[[], int],
        security: ConnectionSecurity = PLAINTEXT,
    ) -> None:
        self._tasks: Final = tasks
        self._clock: Final = runtime.clock
        self._pool: Final = runtime.pool
        self._config: Final = config
        self._logs: Final = logs
        self._controller: Final = controller
        self._broker_epoch: Final = broker_epoch
        broker_id = config.current.node_id
        self.peers: Final = PeerBrokers(runtime.network, config, metadata, security)
        self.leader_quota: Final = _quota(runtime.clock, config.current, *_WINDOWS)
        self.follower_quota: Final = _quota(runtime.clock, config.current, *_WINDOWS)
        self.move_quota: Final = _quota(runtime.clock, config.current, *_WINDOWS_OF_MOVES)
        self.selects_nearest = False
        # Set where topics have remote storage.
        self.remote_log_reader: RemoteLogReader | None = None
        self.assignments: Final = AssignmentsManager(tasks, broker_id, broker_epoch, controller, metadata)
        self.alter_partition_manager: Final = AlterPartitionManager(
            tasks, broker_id, broker_epoch, self._alter_partition, runtime.clock
        )
        # Created for the first replica that follows: a node without other brokers needs none.
        self._fetchers: ReplicaFetcherManager | None = None
        config.add_reconfigurable(self._configure)
        self._configure(config.current)

    def _configure(self, config: NodeConfig) -> None:
        self.leader_quota.limit = config.number("leader.replication.throttled.rate")
        self.follower_quota.limit = config.number("follower.replication.throttled.rate")
        self.move_quota.limit = config.number("replica.alter.log.dirs.io.max.bytes.per.second")
        selector = config["replica.selector.class"]
        self.selects_nearest = selector is not None and str(selector).rpartition(".")[2] == _RACK_AWARE
        if self._fetchers is not None:
            self._fetchers.resize(config.number("num.replica.fetchers"))

    def apply(self, changes: ReplicaChanges) -> None:
        """Fetch what this broker follows now, and report replicas whose directory the controller does not
        know: a broker with one directory may have got another one, and leads nothing that the controller
        takes to be in the former one.
        """
        if changes.followers and self._fetchers is None:
            self._fetchers = self._make_fetchers()
        if self._fetchers is not None:
            self._fetchers.on_replica_changes(changes)
        self.assignments.report([*changes.leaders, *changes.followers])

    @property
    def fetchers(self) -> ReplicaFetcherManager | None:
        """The fetchers from other brokers; None while nothing is followed."""
        return self._fetchers

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching partitions that this broker can no longer serve."""
        if self._fetchers is not None:
            self._fetchers.remove_fetcher_for_partitions(partitions)

    async def stop_fetchers(self) -> None:
        """Fetch no more, before what the fetchers use is closed."""
        if self._fetchers is not None:
            await self._fetchers.close()

    async def close(self) -> None:
        await self.alter_partition_manager.close()
        await self.assignments.close()

    def _make_fetchers(self) -> ReplicaFetcherManager:
        config = self._config.current
        context = ReplicaFetcherContext(
            config.node_id,
            self._broker_epoch,
            self._clock,
            fetcher_config(config),
            self.follower_quota,
            ReplicaTruncations(self._pool),
            self._logs.commit,
            self._logs.complete_creation,
            self._on_fetch_failed,
            lambda: self.remote_log_reader,
            TierLookups(),
            lambda: self._config.current.flag("follower.fetch.last.tiered.offset.enable"),
        )
        return ReplicaFetcherManager(
            self._tasks,
            context,
            lambda: self.peers.channel("fetcher"),
            self.peers.address,
            per_leader=config.number("num.replica.fetchers"),
        )

    def _on_fetch_failed(self, tp: TopicPartition, error: Exception) -> None:
        """The directory of the log went offline, with all that it has."""
        self.remove([tp])

    async def _alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        response = await self._controller.request(request, _ALTER_PARTITION_VERSION)
        assert isinstance(response, AlterPartitionResponse)
        return response

    def is_throttled(self, partition: Partition) -> bool:
        """Whether what followers fetch of the partition counts for the leader's throttle, in sync or not."""
        replicas = partition.log.config.leader_replication_throttled_replicas
        return bool(replicas) and is_throttled(
            replicas, partition.topic_partition.partition, partition.broker_id
        )


def _quota(clock: Clock, config: NodeConfig, samples: str, window_seconds: str) -> ReplicationQuotaManager:
    return ReplicationQuotaManager(
        clock, samples=config.number(samples), window_ms=config.number(window_seconds) * 1000
    )
