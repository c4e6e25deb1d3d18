"""The parts of a node that handlers use, and nothing else of it.

A handler reaches them through its context: `context.broker.replicas`, `context.controller.control(...)`. The
servers of a node put them together (`node/server`), each once it has all parts. What changes while the node
runs (`config`, `image`) is read again for each use: the objects are replaced, never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ottla.node.api.broker_extension import BrokerExtension
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.log.log_manager import LogManager
    from ottla.metadata.image.cache import MetadataCache
    from ottla.metadata.image.image import MetadataImage
    from ottla.node.cluster.alter_replica_log_dirs import AlterReplicaLogDirsManager
    from ottla.node.cluster.quorum_member import QuorumMember
    from ottla.node.cluster.replication import BrokerReplication
    from ottla.node.config.dynamic import DynamicBrokerConfig
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.coordinators.coordinators import Coordinators
    from ottla.node.coordinators.producer_id_manager import ProducerIdManager
    from ottla.node.fetch.session import FetchSessionCache
    from ottla.node.network.endpoints import NodeEndpoints
    from ottla.node.network.node_security import NodeSecurity
    from ottla.node.network.request_statistics import NetworkStatistics
    from ottla.node.share.share_partition_manager import SharePartitionManager
    from ottla.replication.log_flush_scheduler import LogFlushScheduler
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.runtime.heavy_work import HeavyWork
    from ottla.runtime.on_demand import OnDemand
    from ottla.runtime.runtime import Runtime
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer
    from ottla.security.quota.quota_managers import QuotaManagers

E = TypeVar("E", bound=BrokerExtension)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeServices:
    """The parts that every node has, whatever its roles."""

    runtime: Runtime
    dynamic_config: DynamicBrokerConfig
    metadata: MetadataCache
    cluster_id: str
    security: NodeSecurity
    authorizer: StandardAuthorizer | None
    """Decides what a client may do; without one (`authorizer.class.name` is empty) all is allowed."""
    endpoints: NodeEndpoints
    quotas: QuotaManagers
    """How much each client may take."""
    network_statistics: NetworkStatistics
    """The requests that were answered, and their errors."""
    heavy_work: HeavyWork
    """Where work is done that a client can make costly."""

    @property
    def config(self) -> NodeConfig:
        return self.dynamic_config.current

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata that this node has applied."""
        return self.metadata.image

    def now_ms(self) -> int:
        return self.runtime.clock.wall_ms()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerServices(NodeServices):
    """The parts of a broker: logs, replicas, coordinators. A listener of controllers has none of them, and no
    route that uses them.
    """

    logs: LogManager
    log_flushes: LogFlushScheduler
    replicas: ReplicaManager
    replication: BrokerReplication
    alter_log_dirs: AlterReplicaLogDirsManager
    fetch_sessions: FetchSessionCache
    coordinators: Coordinators
    producer_ids: ProducerIdManager
    share: OnDemand[SharePartitionManager]
    extensions: Sequence[BrokerExtension]
    """What this broker has beside those."""

    @property
    def share_partitions(self) -> SharePartitionManager:
        """The share partitions that this broker leads."""
        return self.share()

    def extension(self, kind: type[E]) -> E:
        """The extension of a class. KafkaError if this broker is without it."""
        for extension in self.extensions:
            if isinstance(extension, kind):
                return extension
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"This broker is without {kind.name}.")


@dataclass(frozen=True, slots=True)
class ApiServices:
    """Everything that handlers of one listener may use."""

    node: NodeServices
    controller: QuorumMember
    broker: BrokerServices | None = None
    """None at a listener of controllers."""
