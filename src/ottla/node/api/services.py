"""The parts of a node that handlers use, and nothing else of it.

A handler reaches them through its context: `context.broker.replicas`, `context.controller.control(...)`.
`node.Node` puts them together; handlers, and the tests of handlers, depend on these types only. What changes
while the node runs (`config`, `image`) is read again for each use: the objects are replaced, never changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from ottla.log.log_manager import LogManager
    from ottla.metadata.controller.controller import Controller
    from ottla.metadata.controller.quorum_controller import ActiveController
    from ottla.metadata.controller.state import Decision, Result
    from ottla.metadata.image.image import MetadataImage
    from ottla.metadata.log.metadata_log import MetadataLog
    from ottla.node.cluster.alter_replica_log_dirs import AlterReplicaLogDirsManager
    from ottla.node.cluster.broker_liveness_probe import BrokerLivenessProbe
    from ottla.node.cluster.controller_channel import ControllerChannel
    from ottla.node.cluster.replication import BrokerReplication
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.coordinators.coordinators import Coordinators
    from ottla.node.coordinators.producer_id_manager import ProducerIdManager
    from ottla.node.fetch.session import FetchSessionCache
    from ottla.node.network.endpoints import NodeEndpoints
    from ottla.node.network.node_security import NodeSecurity
    from ottla.node.network.request_statistics import NetworkStatistics
    from ottla.node.share.share_partition_manager import SharePartitionManager
    from ottla.node.tables.table_keeper import TableKeeper
    from ottla.node.telemetry.client_telemetry import ClientTelemetry
    from ottla.replication.log_flush_scheduler import LogFlushScheduler
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.runtime.heavy_work import HeavyWork
    from ottla.runtime.runtime import Runtime
    from ottla.security.authorizer.audit_log import AuditLog
    from ottla.security.principal import KafkaPrincipal
    from ottla.security.quota.quota_managers import QuotaManagers

T = TypeVar("T")


class Requester(Protocol):
    """The sender of a request, as an authorizer knows it."""

    @property
    def client_id(self) -> str | None: ...

    @property
    def client_host(self) -> str: ...

    @property
    def principal(self) -> KafkaPrincipal: ...

    @property
    def request_name(self) -> str:
        """The name of the request's API."""
        ...


class Authorizer(Protocol):
    """Decides what a client may do. A node without one (`authorizer.class.name` is empty) allows all."""

    @property
    def version(self) -> int:
        """Changes whenever a decision may be another than before."""
        ...

    @property
    def audit(self) -> AuditLog: ...

    def allowed(
        self,
        requester: Requester,
        operation: int,
        resource_type: int,
        name: str,
        *,
        count: int = 1,
        log_denied: bool = True,
    ) -> bool: ...

    def allowed_by_resource_type(self, requester: Requester, operation: int, resource_type: int) -> bool:
        """Decide whether a client may do this to at least one resource of the type."""
        ...


class NodeServices(Protocol):
    """The parts that every node has, whatever its roles."""

    @property
    def config(self) -> NodeConfig: ...

    @property
    def security(self) -> NodeSecurity: ...

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata that this node has applied."""
        ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def authorizer(self) -> Authorizer | None: ...

    @property
    def endpoints(self) -> NodeEndpoints: ...

    @property
    def receives_telemetry(self) -> bool:
        """Whether what clients push of their metrics is seen anywhere."""
        ...

    @property
    def quotas(self) -> QuotaManagers:
        """How much each client may take."""
        ...

    @property
    def network_statistics(self) -> NetworkStatistics:
        """The requests that were answered, and their errors."""
        ...

    @property
    def heavy_work(self) -> HeavyWork:
        """Where work is done that a client can make costly."""
        ...

    def now_ms(self) -> int: ...


class BrokerServices(NodeServices, Protocol):
    """The parts of a broker: logs, replicas, coordinators. A node that is only a controller has none of them,
    and its listeners have no route that uses them.
    """

    @property
    def runtime(self) -> Runtime: ...

    @property
    def logs(self) -> LogManager: ...

    @property
    def log_flushes(self) -> LogFlushScheduler: ...

    @property
    def replicas(self) -> ReplicaManager: ...

    @property
    def replication(self) -> BrokerReplication: ...

    @property
    def alter_log_dirs(self) -> AlterReplicaLogDirsManager: ...

    @property
    def fetch_sessions(self) -> FetchSessionCache: ...

    @property
    def coordinators(self) -> Coordinators:
        """The group and the transaction coordinator, each made when it is first used."""
        ...

    @property
    def share_partitions(self) -> SharePartitionManager:
        """The share partitions that this broker leads; made when it is first used."""
        ...

    @property
    def producer_ids(self) -> ProducerIdManager: ...

    @property
    def table_keeper(self) -> TableKeeper | None:
        """What keeps the tables of topics, if a topic has ever had one."""
        ...

    @property
    def telemetry(self) -> ClientTelemetry:
        """The metrics that clients push; made when it is first used."""
        ...


class ControllerServices(Protocol):
    """The quorum as this node knows it, the controller if it is active here, and the ways to it if not."""

    @property
    def metadata(self) -> MetadataLog: ...

    @property
    def active_controller(self) -> ActiveController:
        """The active controller, if it is on this node."""
        ...

    @property
    def controllers(self) -> ControllerChannel:
        """Carries this node's own requests to the active controller."""
        ...

    @property
    def forwards(self) -> ControllerChannel:
        """Carries the requests of clients to the active controller."""
        ...

    @property
    def liveness(self) -> BrokerLivenessProbe: ...

    def control(
        self, decide: Callable[[Controller], Result[T] | Decision[T]], *, for_client: bool = True
    ) -> Awaitable[T]:
        """Let the active controller of this node decide; the response comes once the decision is committed
        and, for a client, applied here. KafkaError NOT_CONTROLLER if it is not on this node.
        """
        ...


@dataclass(frozen=True, slots=True)
class ApiServices:
    """Everything that handlers of one node may use."""

    node: NodeServices
    broker: BrokerServices
    controller: ControllerServices
