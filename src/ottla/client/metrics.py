"""The metrics of a client, with the names that Kafka's clients use.

Code counts once for each request or batch, never for each record, and what can be read from the state of the
client is read only when the metrics are. The same values are returned by `metrics()` of a client and pushed
to brokers that subscribe to them (KIP-714), there under the names that the KIP gives: the metric
`record-send-total` of the group `producer-metrics` is `org.apache.kafka.producer.record.send.total`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ottla.client.network_client import NetworkClient
from ottla.rpc.connection_statistics import WINDOW_S, AverageAndMax

if TYPE_CHECKING:
    from ottla.protocol.otlp import MetricPoint


Tags: TypeAlias = tuple[tuple[str, str], ...]
_DOMAIN: Final = "org.apache.kafka"
# Partitions that have a lag of their own in the metrics of one consumer.
_MAX_RATES: Final = 2_000


class MetricName(NamedTuple):
    """The name of a metric, the group that it belongs to, and what it is about within that."""

    name: str
    group: str
    tags: Tags = ()

    @property
    def telemetry_name(self) -> str:
        """The name under which it is pushed."""
        group = self.group.lower().replace("-", ".").replace(".metrics", "")
        return f"{_DOMAIN}.{group}.{self.name.lower().replace('-', '.')}"


class Total:
    """A number that only grows: add to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Measured(NamedTuple):
    """A metric and its value. A sum grows from the client's start on."""

    name: MetricName
    value: float
    is_sum: bool


Source: TypeAlias = Callable[[float], Iterable[Measured]]
"""Gives the values of some metrics at a loop's time."""


class _Rate:
    """How fast a sum grows, over the last thirty to sixty seconds in which it was looked at."""

    __slots__ = ("_before", "_last")

    def __init__(self, now: float) -> None:
        # Time and value: the older one is at least a window old, once there were two looks that far apart.
        self._before = self._last = (now, 0.0)

    def read(self, value: float, now: float) -> float:
        if now - self._last[0] >= WINDOW_S:
            self._before, self._last = self._last, (now, value)
        since, was = self._before
        return (value - was) / max(now - since, 1.0)


class ClientMetrics:
    """The metrics of one client. `kind` is `producer`, `consumer` or `admin-client`."""

    def __init__(self, kind: str, client_id: str | None, cluster: NetworkClient) -> None:
        self.kind: Final = kind
        self.group: Final = f"{kind}-metrics"
        self._client_tags: Final[Tags] = (("client-id", client_id or ""),)
        self._cluster: Final = cluster
        self._sources: list[Source] = [self._connections, self._nodes]
        self._rates: dict[MetricName, _Rate] = {}
        # When counting began, for the rates, and the sums as they were last pushed.
        self._started: float | None = None
        self._pushed: dict[MetricName, float] = {}
        self._pushed_ns = 0

    def start(self, now: float, wall_ns: int) -> None:
        self._started, self._pushed_ns = now, wall_ns

    def add_source(self, source: Source) -> None:
        """Have more metrics read with the others."""
        self._sources.append(source)

    def total(self, name: str, group: str | None = None) -> Total:
        """A sum, shown as `name-total` and, over time, `name-rate`."""
        total = Total()
        self.add_source(lambda _: self.sum_of(name, total.value, group))
        return total

    def average_and_max(self, name: str, group: str | None = None) -> AverageAndMax:
        """Values of which the average and the maximum are shown, `name-avg` and `name-max`."""
        values = AverageAndMax()
        self.add_source(lambda now: self.average(name, values, now, group))
        return values

    def gauge(self, name: str, read: Callable[[], float], group: str | None = None) -> None:
        """A number that is read when it is asked for."""
        self.add_source(lambda _: (self.number(name, read(), group),))

    # What sources give

    def number(self, name: str, value: float, group: str | None = None, tags: Tags = ()) -> Measured:
        return Measured(MetricName(name, group or self.group, self._client_tags + tags), value, False)

    def sum_of(
        self, name: str, value: float, group: str | None = None, tags: Tags = ()
    ) -> tuple[Measured, Measured]:
        """The metrics `name-total` and `name-rate` of a number that only grows."""
        full = MetricName(f"{name}-total", group or self.group, self._client_tags + tags)
        now = asyncio.get_running_loop().time()
        rate = self._rates.get(full)
        if rate is None:
            if len(self._rates) >= _MAX_RATES:
                self._rates.clear()
            rate = self._rates[full] = _Rate(self._started if self._started is not None else now)
        return (
            Measured(full, value, True),
            Measured(full._replace(name=f"{name}-rate"), rate.read(value, now), False),
        )

    def average(
        self, name: str, values: AverageAndMax, now: float, group: str | None = None, tags: Tags = ()
    ) -> tuple[Measured, Measured]:
        average, largest = values.read(now)
        return (
            self.number(f"{name}-avg", average, group, tags),
            self.number(f"{name}-max", largest, group, tags),
        )

    def _connections(self, _now: float) -> Iterator[Measured]:
        found = [statistics for _, statistics in self._cluster.statistics()]
        made = sum(each.connections_made for each in found)
        closed = sum(each.connections_closed for each in found)
        yield from self.sum_of("connection-creation", made)
        yield from self.sum_of("connection-close", closed)
        yield self.number("connection-count", made - closed)
        yield from self.sum_of("request", sum(each.requests for each in found))
        yield from self.sum_of("response", sum(each.responses for each in found))
        yield from self.sum_of("outgoing-byte", sum(each.sent_bytes for each in found))
        yield from self.sum_of("incoming-byte", sum(each.received_bytes for each in found))

    def _nodes(self, now: float) -> Iterator[Measured]:
        group = f"{self.kind}-node-metrics"
        for node_id, statistics in self._cluster.statistics():
            tags = (("node-id", f"node-{node_id}"),)
            yield from self.average("request-latency", statistics.latency_ms, now, group, tags)
            yield from self.sum_of("request", statistics.requests, group, tags)
            yield from self.sum_of("outgoing-byte", statistics.sent_bytes, group, tags)
            yield from self.sum_of("incoming-byte", statistics.received_bytes, group, tags)

    # Reading

    def measure(self, now: float) -> Iterator[Measured]:
        for source in self._sources:
            yield from source(now)

    def values(self) -> dict[MetricName, float]:
        """All metrics now; an average or a maximum without values is NaN."""
        now = asyncio.get_running_loop().time()
        return {name: value for name, value, _ in self.measure(now)}

    def points(
        self, wanted: Callable[[str], bool], *, delta: bool, wall_ns: int
    ) -> tuple[list[MetricPoint], Callable[[], None]]:
        """Return the wanted metrics for a push, and what to call once it has arrived: the next one counts
        from there on.
        """
        from ottla.protocol.otlp import MetricPoint, PointKind

        now = asyncio.get_running_loop().time()
        points: list[MetricPoint] = []
        sums: dict[MetricName, float] = {}
        for name, value, is_sum in self.measure(now):
            pushed_as = name.telemetry_name
            if not wanted(pushed_as) or math.isnan(value):
                continue
            # The broker knows the client id.
            tags = tuple((key.replace("-", "_"), text) for key, text in name.tags if key != "client-id")
            kind, start_ns = PointKind.GAUGE, 0
            if is_sum:
                sums[name] = value
                start_ns = self._pushed_ns
                kind = PointKind.CUMULATIVE_SUM
                if delta:
                    kind, value = PointKind.DELTA_SUM, value - self._pushed.get(name, 0.0)
            points.append(MetricPoint(pushed_as, kind, float(value), tags, (), wall_ns, start_ns))

        def on_pushed() -> None:
            self._pushed.update(sums)
            if delta:
                self._pushed_ns = wall_ns

        return points, on_pushed
