"""Registers the collectors of a node. Each is imported when an operator first looks: a start is not longer
for them, and a node without a scraper not larger.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ottla.runtime.metrics import Collector, MetricsRegistry, MetricsText
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.node.metrics.observed_node import ObservedNode

# The modules beside this one, and the class in each, which has the method `collect`.
AREAS: Final = {
    "requests": "RequestCollector",
    "network": "NetworkCollector",
    "topics": "TopicCollector",
    "partitions": "PartitionCollector",
    "logs": "LogCollector",
    "controller": "ControllerCollector",
    "groups": "GroupCollector",
    "share": "ShareCollector",
    "tables": "TableCollector",
    "remote": "RemoteStorageCollector",
    "process": "ProcessCollector",
}


class NodeMetrics:
    """The collectors of one node. One that fails leaves out its own area only."""

    def __init__(self, node: ObservedNode, registry: MetricsRegistry) -> None:
        self._node: Final = node
        self._collectors: Final[dict[str, Collector]] = {}
        for area in AREAS:
            registry.add_collector(area, partial(self._collect, area))

    async def _collect(self, area: str, text: MetricsText, turns: Turns) -> None:
        collector = self._collectors.get(area)
        if collector is None:
            module: Any = import_module(f"ottla.node.metrics.{area}")
            collector = self._collectors[area] = getattr(module, AREAS[area])(self._node).collect
            turns.begin()
        await collector(text, turns)
