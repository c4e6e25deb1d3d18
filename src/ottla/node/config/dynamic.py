"""The settings in force on a node: those that it was started with, and the cluster's dynamic ones over them.

Parts of the node that read a setting while they run take a `DynamicBrokerConfig` and read `current` each
time; parts that have to act on a change ask to be called with `add_reconfigurable`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.metadata.image.entities import CLUSTER_DEFAULT, ConfigResource, ConfigResourceType
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.schema import log_config

if TYPE_CHECKING:
    from ottla.log.config.log_config import LogConfig
    from ottla.metadata.image.delta import MetadataDelta
    from ottla.metadata.image.image import MetadataImage

_log = logging.getLogger(__name__)


class DynamicBrokerConfig:
    """`current` is replaced when the settings change, and never modified."""

    __slots__ = ("_defaults_of_topics", "_reconfigurables", "current")

    def __init__(self, config: NodeConfig) -> None:
        self.current = config
        self._reconfigurables: Final[list[Callable[[NodeConfig], None]]] = []
        # The settings of topics that have none of their own, and the configuration that they are taken from.
        self._defaults_of_topics = (config, log_config(config, {}))

    def add_reconfigurable(self, reconfigure: Callable[[NodeConfig], None]) -> None:
        """Have `reconfigure` called with the new configuration after each change."""
        self._reconfigurables.append(reconfigure)

    def reader(self, name: str, factor: float = 1) -> Callable[[], int]:
        """What reads a number that may change."""
        return lambda: int(self.current.number(name) * factor)

    def is_changed_by(self, delta: MetadataDelta) -> bool:
        return any(resource.type == ConfigResourceType.BROKER for resource in delta.changed_configs)

    def reload(self, image: MetadataImage) -> None:
        """Put the settings that the image has for brokers in force."""
        own = ConfigResource(ConfigResourceType.BROKER, str(self.current.node_id))
        self.current, problems = self.current.with_dynamic(
            default=image.config(CLUSTER_DEFAULT), broker=image.config(own)
        )
        for problem in problems:
            _log.warning("%s", problem)
        for reconfigure in self._reconfigurables:
            reconfigure(self.current)

    def topic_config(self, topic: str, image: MetadataImage) -> LogConfig:
        """Give the settings of a topic's logs, as the image has them."""
        overrides = image.config(ConfigResource(ConfigResourceType.TOPIC, topic))
        if overrides:
            return log_config(self.current, overrides)
        # Most topics have no settings of their own, and share one object.
        if self._defaults_of_topics[0] is not self.current:
            self._defaults_of_topics = (self.current, log_config(self.current, {}))
        return self._defaults_of_topics[1]
