"""The schema registry, as an extension of a broker. It is made when the first client asks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from ottla.node.api.broker_extension import BrokerExtension, creatable_topic
from ottla.node.http.listener import NodeHttp
from ottla.node.http.mounts import MountAccess
from ottla.runtime.on_demand import OnDemand

if TYPE_CHECKING:
    from ottla.metadata.image.image import MetadataImage
    from ottla.node.registry.service import SchemaRegistryService
    from ottla.node.server.broker_server import BrokerServer
    from ottla.protocol.messages.create_topics import CreatableTopic
    from ottla.runtime.http_server import HttpMount
    from ottla.runtime.metrics import Collector

_PATH: Final = "/schema-registry"
# How long a fetch of what is new in the registry's topic waits at its leader: there are few writes.
_FETCH_WAIT_MS: Final = 5_000


class SchemaRegistryExtension(BrokerExtension):
    """It answers below a path of the node's HTTP listener, and at a listener of its own."""

    name = "the schema registry"

    def __init__(self, broker: BrokerServer) -> None:
        self._broker: Final = broker
        self._registry: Final = OnDemand(self._make_registry)
        shared = broker.shared
        self._own_http: Final = NodeHttp(
            shared.runtime,
            shared.config,
            shared.tasks,
            setting="schema.registry.listener",
            image=shared.image,
            authorizer=shared.authorizer,
        )
        self._is_mounted: Final = shared.config.flag("schema.registry.enable")
        if self._is_mounted:
            self._mount(shared.http, _PATH)
        self._mount(self._own_http, "")

    async def prepare(self, image: MetadataImage) -> None:
        shared = self._broker.shared
        await self._own_http.open(shared.security.listener_tls)
        shared.stop_sequence.add(self._own_http.close)

    @property
    def url(self) -> str | None:
        """Where clients of the schema registry connect; None if no listener answers for it."""
        own, http = self._own_http.url, self._broker.shared.http.url
        if own is not None:
            return own.rstrip("/")
        return http.rstrip("/") + _PATH if http is not None and self._is_mounted else None

    def internal_topic(self, name: str) -> CreatableTopic | None:
        """As many replicas as the offsets of groups have, and none out of sync may lead."""
        config = self._broker.shared.config
        if name != config.text("schema.registry.topic"):
            return None
        replicas = config.number("offsets.topic.replication.factor")
        configs = {
            "cleanup.policy": "compact",
            "min.insync.replicas": str(2 if replicas > 2 else 1),
            "unclean.leader.election.enable": "false",
        }
        return creatable_topic(name, 1, replicas, configs)

    def _mount(self, http: NodeHttp, path: str) -> None:
        async def load() -> HttpMount:
            await self._broker.shared.runtime.pool.run(import_module, "ottla.node.registry.service")
            endpoint = http.endpoint
            assert endpoint is not None
            return self._registry().mount(path, is_local=endpoint.is_loopback)

        http.mount(path, load, MountAccess.USER)

    def _make_registry(self) -> SchemaRegistryService:
        from ottla.node.cluster.internal_topic import InternalTopic
        from ottla.node.registry.service import SchemaRegistryService

        broker, shared = self._broker, self._broker.shared
        topic = InternalTopic(
            shared.config.text("schema.registry.topic"),
            shared.runtime,
            shared.config.node_id,
            broker.quorum.metadata,
            broker.replication.peers,
            broker.replicas,
            broker.log_flushes,
            broker.create_internal_topic,
            fetch_wait_ms=_FETCH_WAIT_MS,
        )
        registry = SchemaRegistryService(
            shared.runtime,
            shared.tasks,
            topic,
            shared.heavy_work,
            shared.authorizer,
            broker.services.cluster_id,
            lambda: shared.state.is_serving,
        )
        shared.stop_sequence.add(registry.close)

        def collector() -> Collector:
            from ottla.node.registry.metrics import SchemaRegistryCollector

            return SchemaRegistryCollector(registry).collect

        shared.metrics.add_collector_on_demand("schema registry", collector)
        return registry
