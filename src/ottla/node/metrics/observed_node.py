"""The parts of a node that its metrics look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.log.cleaner.cleaner import LogCleaner
    from ottla.log.log_manager import LogManager
    from ottla.log.scrub.scrubber import LogScrubber
    from ottla.metadata.image.image import MetadataImage
    from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager
    from ottla.node.cluster.quorum_member import QuorumMember
    from ottla.node.cluster.replication import BrokerReplication
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.coordinators.coordinators import Coordinators
    from ottla.node.coordinators.producer_id_manager import ProducerIdManager
    from ottla.node.fetch.session import FetchSessionCache
    from ottla.node.http.listener import NodeHttp
    from ottla.node.network.login import SaslListener
    from ottla.node.network.request_statistics import NetworkStatistics
    from ottla.node.network.server import SocketServer
    from ottla.node.remote.remote_storage import RemoteStorage
    from ottla.node.share.share_partition_manager import SharePartitionManager
    from ottla.node.tables.table_keeper import TableKeeper
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.runtime.garbage_collection import GarbageCollection
    from ottla.runtime.loop_watchdog import LoopWatchdog
    from ottla.runtime.runtime import Runtime
    from ottla.runtime.tasks import TaskSupervisor
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer


class ObservedNode(Protocol):
    """What every node has. The metadata are there once `quorum.opened` is set."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def config(self) -> NodeConfig: ...

    @property
    def image(self) -> MetadataImage: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def started_ms(self) -> int: ...

    @property
    def unclean_elections(self) -> int: ...

    @property
    def tasks(self) -> TaskSupervisor: ...

    @property
    def quorum(self) -> QuorumMember: ...

    @property
    def server(self) -> SocketServer: ...

    @property
    def logins(self) -> dict[str, SaslListener]:
        """What listeners ask of clients, by their names."""
        ...

    @property
    def network_statistics(self) -> NetworkStatistics: ...

    @property
    def http(self) -> NodeHttp: ...

    @property
    def fetch_sessions(self) -> FetchSessionCache: ...

    @property
    def authorizer(self) -> StandardAuthorizer | None: ...

    @property
    def loop_watchdog(self) -> LoopWatchdog | None: ...

    @property
    def collections(self) -> GarbageCollection | None: ...

    @property
    def observed_broker(self) -> ObservedBroker | None:
        """The parts of a broker, once it has loaded its logs; None before, and of a controller alone."""
        ...


class ObservedBroker(Protocol):
    @property
    def lifecycle(self) -> BrokerLifecycleManager: ...

    @property
    def logs(self) -> LogManager: ...

    @property
    def cleaner(self) -> LogCleaner | None: ...

    @property
    def scrubber(self) -> LogScrubber | None: ...

    @property
    def replicas(self) -> ReplicaManager: ...

    @property
    def replication(self) -> BrokerReplication: ...

    @property
    def coordinators(self) -> Coordinators: ...

    @property
    def share_partitions_in_use(self) -> SharePartitionManager | None:
        """The share partitions that the broker leads, if it ever led one."""
        ...

    @property
    def table_keeper(self) -> TableKeeper | None:
        """What keeps the tables of topics, if a topic has ever had one."""
        ...

    @property
    def remote_storage(self) -> RemoteStorage | None:
        """Tiered storage, if the broker has it."""
        ...

    @property
    def producer_ids(self) -> ProducerIdManager: ...
