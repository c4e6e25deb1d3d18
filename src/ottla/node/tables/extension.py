"""Tables of topics, as an extension of a broker. It is made with the first topic that asks for a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.api.broker_extension import BrokerExtension
from ottla.runtime.on_demand import OnDemand

if TYPE_CHECKING:
    from ottla.metadata.image.delta import MetadataDelta
    from ottla.metadata.image.image import MetadataImage
    from ottla.node.server.broker_server import BrokerServer
    from ottla.node.tables.table_keeper import TableKeeper
    from ottla.runtime.metrics import Collector


class TopicTablesExtension(BrokerExtension):
    name = "tables of topics"

    def __init__(self, broker: BrokerServer) -> None:
        self._shared: Final = broker.shared
        self._services: Final = broker.services
        self._keeper: Final = OnDemand(self._make_keeper)
        self._metadata: Final = broker.quorum.metadata

    def start(self) -> None:
        # Before the replicas of a new topic are there: its first look finds nothing, and needs no worker.
        image = self._metadata.subscribe(self._on_metadata_update)
        self._update(image.configs, image)

    def _on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.changed_configs:
            self._update(delta.changed_configs, image)

    def topic_status(self, topic: str) -> Mapping[str, str]:
        """The state of the topic's table on this broker, as `ottla tables` shows it."""
        if self._keeper.made is None or (status := self._keeper.made.status(topic)) is None:
            return {}
        from ottla.tables.settings import TABLE_STATUS

        return {TABLE_STATUS: status}

    def _update(self, changed: Iterable[ConfigResource], image: MetadataImage) -> None:
        topics = [each for each in changed if each.type == ConfigResourceType.TOPIC]
        if self._keeper.made is not None or any(_has_table(topic, image) for topic in topics):
            self._keeper().update([topic.name for topic in topics], image)

    def _make_keeper(self) -> TableKeeper:
        from ottla.node.tables.table_keeper import TableKeeper

        shared = self._shared
        keeper = TableKeeper(self._services)
        self._services.replicas.add_progress_listener(keeper.on_partition_progress)
        shared.stop_sequence.add(keeper.close)
        for name, work in (("upkeep of tables", keeper.run), ("upkeep of slow tables", keeper.run_slow)):
            shared.stop_sequence.add(shared.tasks.start(name, work).stop)

        def collector() -> Collector:
            from ottla.node.tables.metrics import TableCollector

            return TableCollector(keeper, shared.dynamic_config).collect

        shared.metrics.add_collector_on_demand("tables", collector)
        return keeper


def _has_table(topic: ConfigResource, image: MetadataImage) -> bool:
    return image.config(topic).get("table.format", "none") != "none"
