"""What `ottla top` shows of nodes: from their metrics."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from ottla.cli.node_http import ask
from ottla.cli.output import Cell, size_text
from ottla.cli.top_view import Table, TopView
from ottla.runtime.metrics_text import parse_metrics

_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_IN_RECORDS: Final = f"{_TOPIC}messagesin_total"
_IN_BYTES: Final = f"{_TOPIC}bytesin_total"
_OUT_BYTES: Final = f"{_TOPIC}bytesout_total"
_REQUESTS: Final = "kafka_network_requestmetrics_requests_total"
_TIMES: Final = "kafka_network_requestmetrics_totaltimems"
_LAG: Final = "kafka_consumergroup_lag_sum"
_CPU: Final = "process_cpu_seconds_total"
_TASK_DOWN: Final = "ottla_background_task_down"
# Families with one sample for the node, by their names in the output.
_GAUGES: Final = {
    "partitions": "kafka_server_replicamanager_partitioncount",
    "leaders": "kafka_server_replicamanager_leadercount",
    "under_replicated": "kafka_server_replicamanager_underreplicatedpartitions",
    "under_min_isr": "kafka_server_replicamanager_underminisrpartitioncount",
    "offline_replicas": "kafka_server_replicamanager_offlinereplicacount",
    "is_active_controller": "kafka_controller_kafkacontroller_activecontrollercount",
    "offline_partitions": "kafka_controller_kafkacontroller_offlinepartitionscount",
    "memory_bytes": "process_resident_memory_bytes",
    "open_files": "process_open_fds",
}
_SHOWN_TIMES: Final = ("Produce", "FetchConsumer")
_NAMES: Final = frozenset(
    (_IN_RECORDS, _IN_BYTES, _OUT_BYTES, _REQUESTS, _TIMES, _LAG, _CPU, _TASK_DOWN, *_GAUGES.values())
)
# These count as Fetch besides.
_ALSO_AS_FETCH: Final = frozenset(("FetchConsumer", "FetchFollower"))
_COUNTED: Final = (_IN_RECORDS, _IN_BYTES, _OUT_BYTES, _REQUESTS, _CPU)


@dataclass(slots=True)
class _NodeLook:
    """One scrape of a node. Counters are by family and topic; the topic is empty for the whole node."""

    at: float
    error: str | None = None
    counters: dict[tuple[str, str], float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    p99_ms: dict[str, float] = field(default_factory=dict)
    lags: dict[str, float] = field(default_factory=dict)
    tasks_down: list[str] = field(default_factory=list)

    @staticmethod
    def of(text: str, at: float) -> _NodeLook:
        look = _NodeLook(at)
        gauges = {family: name for name, family in _GAUGES.items()}
        for name, labels, value in parse_metrics(text, _NAMES):
            if math.isnan(value) or (name == _REQUESTS and labels.get("request") in _ALSO_AS_FETCH):
                continue
            if name in _COUNTED:
                key = (name, labels.get("topic", ""))
                look.counters[key] = look.counters.get(key, 0) + value
            elif name == _TIMES and labels.get("quantile") == "0.99":
                look.p99_ms[labels.get("request", "")] = value
            elif name == _LAG:
                group = labels.get("consumergroup", "")
                look.lags[group] = look.lags.get(group, 0) + value
            elif name == _TASK_DOWN and value:
                look.tasks_down.append(labels.get("task", ""))
            elif name in gauges:
                look.gauges[gauges[name]] = look.gauges.get(gauges[name], 0) + value
        return look


class MetricsTop:
    """Show rates: each is the difference between a scrape and the one before, which is kept."""

    def __init__(self, urls: Sequence[str], rows: int) -> None:
        self._urls: Final = urls
        self._rows: Final = rows
        self._before: dict[str, _NodeLook] = {}

    async def look(self) -> TopView:
        looks = dict(zip(self._urls, await asyncio.gather(*map(_scrape, self._urls))))
        rates = {url: _rates(self._before.get(url), look) for url, look in looks.items()}
        self._before = looks
        nodes = {url: _node(look, rates[url]) for url, look in looks.items()}
        topics = _topics(rates.values())
        lags: dict[str, float] = {}
        for look in looks.values():
            for group, lag in look.lags.items():
                lags[group] = lags.get(group, 0) + lag
        problems = [problem for url, look in looks.items() for problem in _problems(url, look)]
        return TopView(
            {"nodes": nodes, "topics": topics, "group_lags": lags, "problems": problems},
            [self._nodes_table(nodes), self._topics_table(topics), *self._lags_table(lags)],
            problems,
        )

    def _nodes_table(self, nodes: dict[str, dict[str, Any]]) -> Table:
        rows: list[Sequence[Cell]] = [
            (
                url.partition("://")[2],
                _per_second(each.get("records_in_per_s")),
                _bytes_per_second(each.get("bytes_in_per_s")),
                _bytes_per_second(each.get("bytes_out_per_s")),
                _per_second(each.get("requests_per_s")),
                _rounded(each.get("produce_p99_ms")),
                _rounded(each.get("fetch_p99_ms")),
                _whole(each.get("partitions")),
                _whole(each.get("leaders")),
                _whole(each.get("under_replicated")),
                None if each.get("cpu_percent") is None else round(each["cpu_percent"]),
                size_text(_whole(each.get("memory_bytes"))),
            )
            for url, each in nodes.items()
        ]
        columns = ["node", "records/s", "in/s", "out/s", "requests/s", "produce p99", "fetch p99"]
        return "nodes (p99 in ms)", [*columns, "partitions", "leads", "behind", "cpu %", "memory"], rows

    def _topics_table(self, topics: dict[str, dict[str, float]]) -> Table:
        busiest = sorted(topics.items(), key=lambda item: (-item[1]["bytes_in_per_s"], item[0]))
        rows: list[Sequence[Cell]] = [
            (
                name,
                _per_second(each["records_in_per_s"]),
                _bytes_per_second(each["bytes_in_per_s"]),
                _bytes_per_second(each["bytes_out_per_s"]),
            )
            for name, each in busiest[: self._rows]
        ]
        return f"topics ({len(topics)})", ["topic", "records/s", "in/s", "out/s"], rows

    def _lags_table(self, lags: dict[str, float]) -> list[Table]:
        if not lags:
            return []
        furthest = sorted(lags.items(), key=lambda item: (-item[1], item[0]))
        rows: list[Sequence[Cell]] = [(group, int(lag)) for group, lag in furthest[: self._rows]]
        return [(f"groups ({len(lags)})", ["group", "lag"], rows)]


async def _scrape(url: str) -> _NodeLook:
    from ottla.runtime.http import HttpError

    try:
        answer = await ask(f"{url}/metrics")
    except HttpError as error:
        return _NodeLook(monotonic(), str(error))
    if answer.status != 200:
        hint = ": it needs a login (--command-config)" if answer.status in (401, 403) else ""
        return _NodeLook(monotonic(), f"its metrics are answered with status {answer.status}{hint}")
    try:
        return await asyncio.to_thread(_NodeLook.of, answer.body.decode(errors="replace"), monotonic())
    except ValueError as error:
        return _NodeLook(monotonic(), str(error))


def _rates(before: _NodeLook | None, now: _NodeLook) -> dict[tuple[str, str], float]:
    """The counters for each second between two looks; none if there are not two, or the node restarted."""
    if before is None or before.error is not None or now.error is not None or now.at <= before.at:
        return {}
    seconds = now.at - before.at
    rates = {key: (value - before.counters.get(key, 0)) / seconds for key, value in now.counters.items()}
    return {} if any(rate < 0 for rate in rates.values()) else rates


def _node(look: _NodeLook, rates: dict[tuple[str, str], float]) -> dict[str, Any]:
    if look.error is not None:
        return {"error": look.error}
    cpu = rates.get((_CPU, ""))
    return {
        "records_in_per_s": _of_node(rates, _IN_RECORDS),
        "bytes_in_per_s": _of_node(rates, _IN_BYTES),
        "bytes_out_per_s": _of_node(rates, _OUT_BYTES),
        "requests_per_s": _of_node(rates, _REQUESTS),
        "produce_p99_ms": look.p99_ms.get(_SHOWN_TIMES[0]),
        "fetch_p99_ms": look.p99_ms.get(_SHOWN_TIMES[1]),
        "cpu_percent": None if cpu is None else cpu * 100,
        **{name: look.gauges.get(name) for name in _GAUGES},
        "tasks_down": look.tasks_down,
    }


def _of_node(rates: dict[tuple[str, str], float], family: str) -> float | None:
    """The rate of a family for the whole node: as it says, or else the sum of its topics."""
    if (family, "") in rates:
        return rates[family, ""]
    of_topics = [rate for (name, _), rate in rates.items() if name == family]
    return sum(of_topics) if of_topics else None


def _topics(nodes: Iterable[dict[tuple[str, str], float]]) -> dict[str, dict[str, float]]:
    columns = {
        _IN_RECORDS: "records_in_per_s",
        _IN_BYTES: "bytes_in_per_s",
        _OUT_BYTES: "bytes_out_per_s",
    }
    topics: dict[str, dict[str, float]] = {}
    for rates in nodes:
        for (family, topic), rate in rates.items():
            if topic and family in columns:
                found = topics.setdefault(topic, dict.fromkeys(columns.values(), 0.0))
                found[columns[family]] += rate
    return topics


def _problems(url: str, look: _NodeLook) -> list[str]:
    if look.error is not None:
        return [f"{url}: {look.error}"]
    found = [
        f"{url}: {int(look.gauges[name])} {name.replace('_', ' ')}"
        for name in ("offline_partitions", "offline_replicas", "under_min_isr", "under_replicated")
        if look.gauges.get(name)
    ]
    return [*found, *(f"{url}: background task down: {task}" for task in look.tasks_down)]


def _per_second(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def _bytes_per_second(rate: float | None) -> str | None:
    return None if rate is None else size_text(int(rate))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
