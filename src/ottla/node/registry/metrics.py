"""The schema registry of this node. One that no client has asked has no series."""

from __future__ import annotations

from typing import Final

from ottla.node.registry.service import SchemaRegistryService
from ottla.runtime.metrics import MetricsText
from ottla.runtime.turns import Turns


class SchemaRegistryCollector:
    def __init__(self, registry: SchemaRegistryService) -> None:
        self._registry: Final = registry

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        store = self._registry.store
        for name, help, value in (
            ("subjects", "Subjects that this node knows, soft-deleted ones too", store.state.subject_count),
            ("versions", "Versions of subjects, soft-deleted ones too", store.state.version_count),
        ):
            text.gauge(f"ottla_schema_registry_{name}", help, [((), value)], ())
        for name, help, value in (
            ("writes", "Batches of records that this node has written", store.appends),
            ("conflicts", "Writes that were decided again, as another node was first", store.conflicts),
        ):
            text.counter(f"ottla_schema_registry_{name}_total", help, [((), value)], ())
        text.counter(
            "ottla_schema_registry_answers_total",
            "Requests that this node has answered",
            [((str(status),), count) for status, count in sorted(self._registry.answers.items())],
            ("status",),
        )
