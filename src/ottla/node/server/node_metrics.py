"""The collectors of a node. Each is added with the part that it looks at, and imported at the first scrape: a
start is not longer for it, and a node without a scraper not larger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla import __version__
from ottla.runtime.metrics import Collector, MetricKind, MetricsRegistry

if TYPE_CHECKING:
    from ottla.node.api.services import BrokerServices
    from ottla.node.cluster.quorum_member import QuorumMember
    from ottla.node.http.listener import NodeHttp
    from ottla.node.network.login import SaslListener
    from ottla.node.network.memory_budget import MemoryBudget
    from ottla.node.network.request_statistics import NetworkStatistics
    from ottla.node.network.server import SocketServer
    from ottla.node.server.broker_tasks import BrokerTasks
    from ottla.node.server.node_state import NodeState
    from ottla.node.server.process_status import ProcessWatch
    from ottla.runtime.clock import Clock
    from ottla.runtime.pool import Pool
    from ottla.runtime.tasks import TaskSupervisor
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer

# Kafka's numbers for the states of a broker.
_STARTING = 1
_RUNNING = 3


def add_process_collector(
    registry: MetricsRegistry,
    started_ms: int,
    pool: Pool,
    tasks: TaskSupervisor,
    http: NodeHttp,
    watch: ProcessWatch | None,
) -> None:
    def process() -> Collector:
        from ottla.node.metrics.process import ProcessCollector

        watchdog, collections = (None, None) if watch is None else (watch.loop, watch.collections)
        return ProcessCollector(started_ms, pool, tasks, http, watchdog, collections).collect

    registry.add_collector_on_demand("process", process)


def add_network_collectors(
    registry: MetricsRegistry,
    clock: Clock,
    servers: Sequence[SocketServer],
    statistics: NetworkStatistics,
    memory: MemoryBudget,
    logins: Mapping[str, SaslListener],
    authorizer: StandardAuthorizer | None,
) -> None:
    def requests() -> Collector:
        from ottla.node.metrics.requests import RequestCollector

        return RequestCollector(statistics, clock).collect

    def network() -> Collector:
        from ottla.node.metrics.network import NetworkCollector

        return NetworkCollector(servers, statistics, memory, logins, authorizer).collect

    registry.add_collector_on_demand("requests", requests)
    registry.add_collector_on_demand("network", network)


def add_quorum_collector(
    registry: MetricsRegistry,
    clock: Clock,
    quorum: QuorumMember,
    unclean_elections: Callable[[], int],
    *,
    is_controller: bool,
) -> None:
    def controller() -> Collector:
        from ottla.node.metrics.controller import ControllerCollector

        return ControllerCollector(clock, quorum, unclean_elections, is_controller=is_controller).collect

    registry.add_collector_on_demand("controller", controller)


def add_node_info(registry: MetricsRegistry, node_id: int, roles: Sequence[str], cluster_id: str) -> None:
    labels = (str(node_id), __version__, ",".join(roles), cluster_id)
    registry.collect(
        "ottla_node_info",
        "The node: always 1",
        MetricKind.GAUGE,
        ("node_id", "version", "roles", "cluster_id"),
        lambda: [(labels, 1)],
    )


def add_broker_collectors(
    registry: MetricsRegistry, state: NodeState, services: BrokerServices, tasks: BrokerTasks
) -> None:
    def topics() -> Collector:
        from ottla.node.metrics.topics import TopicCollector

        return TopicCollector(services.replicas.topic_statistics, services.dynamic_config).collect

    def partitions() -> Collector:
        from ottla.node.metrics.partitions import PartitionCollector

        return PartitionCollector(
            services.runtime,
            services.dynamic_config,
            services.replicas,
            services.replication,
            services.producer_ids,
            services.fetch_sessions,
        ).collect

    def logs() -> Collector:
        from ottla.node.metrics.logs import LogCollector

        return LogCollector(
            services.logs, services.runtime, lambda: tasks.cleaner, lambda: tasks.scrubber
        ).collect

    def groups() -> Collector:
        from ottla.node.metrics.groups import GroupCollector

        return GroupCollector(
            services.coordinators,
            services.replicas,
            services.metadata,
            services.dynamic_config,
            services.runtime.clock,
        ).collect

    def share() -> Collector:
        from ottla.node.metrics.share import ShareCollector

        return ShareCollector(services.share, services.dynamic_config).collect

    registry.collect(
        "kafka_server_kafkaserver_brokerstate",
        "1 starting, 3 running",
        MetricKind.GAUGE,
        (),
        lambda: _RUNNING if state.ready.is_set() else _STARTING,
    )
    for make in (topics, partitions, logs, groups, share):
        registry.add_collector_on_demand(make.__name__, make)
