"""The tables of topics that this broker keeps. A broker that keeps none has no series."""

from __future__ import annotations

from typing import Final

from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.tables.table_keeper import TableKeeper
from ottla.runtime.metrics import MetricsText
from ottla.runtime.turns import Turns

_LABELS: Final = ("topic",)


class TableCollector:
    def __init__(self, keeper: TableKeeper, config: DynamicBrokerConfig) -> None:
        self._keeper: Final = keeper
        self._config: Final = config

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        keeper = self._keeper
        states = list(keeper)[: self._config.current.number("metrics.max.topics")]
        records = []
        for state in states:
            records.append(((state.topic,), await keeper.lag_records(state, turns)))
            await turns.pause_if_due()
        text.gauge(
            "ottla_table_lag_seconds",
            "The age of the newest moment up to which the topic's table is complete",
            [((state.topic,), keeper.lag_ms(state) / 1000) for state in states],
            _LABELS,
        )
        text.gauge(
            "ottla_table_lag_records",
            "Committed offsets of partitions led here that are not in the topic's table yet",
            records,
            _LABELS,
        )
        text.gauge(
            "ottla_table_failing",
            "Whether the last attempt to keep the topic's table has failed",
            [((state.topic,), int(state.error is not None)) for state in states],
            _LABELS,
        )
        for name, help, values in (
            ("commits", "Commits to the topic's table by this broker", [each.commits for each in states]),
            ("rows", "Rows that this broker has added to the topic's table", [each.rows for each in states]),
            ("bytes", "Bytes of files that this broker has added", [each.bytes for each in states]),
            (
                "failures",
                "Attempts to keep the table that failed",
                [each.failures for each in states],
            ),
            ("skipped_records", "Offsets that retention deleted first", [each.skipped for each in states]),
        ):
            samples = [((state.topic,), value) for state, value in zip(states, values, strict=True)]
            text.counter(f"ottla_table_{name}_total", help, samples, _LABELS)
