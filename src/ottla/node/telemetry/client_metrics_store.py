"""The metrics that clients pushed, as `/metrics` shows them.

The names are what OpenTelemetry's own exporter makes of them: `org.apache.kafka.producer.record.send.total`
is `org_apache_kafka_producer_record_send_total`. A client cannot pass for its broker: what does not begin
with Kafka's prefix gets `client_application_` before it. Each series has the labels `client_id` and
`client_instance_id` beside those of the metric; what else is known of a client is in one series of
`ottla_client_info`.

The number of series is bounded, for one client and for all. What comes beyond that is left out and counted:
first come, first shown. A client's series stay until three of its intervals have passed without a push, and
at least a minute, so that the last push of a short-lived client is seen by a scrape.

Sums come as what was added since the push before, and are added up here; a gauge is the last one pushed, and
is left out while it has no value.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from ottla.protocol.otlp import Attributes, MetricPoint, PointKind
from ottla.runtime.metrics import MetricKind, MetricsText, label_text, number_text
from ottla.runtime.turns import Turns

MAX_SERIES_OF_CLIENT: Final = 1_000
MAX_CLIENTS: Final = 2_000
_MAX_LABELS: Final = 8
_MAX_TEXT: Final = 200
_KAFKA_PREFIX: Final = "org.apache.kafka."
_OTHER_PREFIX: Final = "client_application_"
_NOT_OF_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_INFO: Final = "ottla_client_info"
_CLIENT_LABELS: Final = ("client_id", "client_instance_id")
# Attributes of the resource by KIP-714, which only the client knows.
_RESOURCE_LABELS: Final = (
    "group_id",
    "group_instance_id",
    "group_member_id",
    "transactional_id",
    "client_rack",
)
_INFO_LABELS: Final = (
    *_CLIENT_LABELS,
    "client_software_name",
    "client_software_version",
    "client_source_address",
    *_RESOURCE_LABELS,
)


class _Sample(NamedTuple):
    # The name of the family and the text of the labels.
    key: tuple[str, str]
    kind: MetricKind
    is_delta: bool
    value: float


class PushedMetrics(NamedTuple):
    """A push as it is shown. `info` is what it says of its client."""

    samples: list[_Sample]
    info: dict[str, str]


def pushed_metrics(points: Iterable[MetricPoint], attributes: Mapping[str, str]) -> PushedMetrics:
    """Name the points of a push; in the pool, as they may be many. `attributes` is what the broker knows."""
    labels = tuple((name, attributes[name]) for name in _CLIENT_LABELS if name in attributes)
    info = {name: value[:_MAX_TEXT] for name, value in attributes.items()}
    samples = []
    for point in points:
        for name, value in point.resource:
            if name in _RESOURCE_LABELS:
                info[name] = value[:_MAX_TEXT]
        is_counter = point.kind is not PointKind.GAUGE and point.is_monotonic
        samples.append(
            _Sample(
                (_family_name(point.name), _labels(labels, point.attributes)),
                MetricKind.COUNTER if is_counter else MetricKind.GAUGE,
                point.kind is PointKind.DELTA_SUM,
                point.value,
            )
        )
    return PushedMetrics(samples, info)


class _Client:
    __slots__ = ("expires_ms", "info", "series")

    def __init__(self) -> None:
        self.info: dict[str, str] = {}
        # By the name of the family and the text of the labels.
        self.series: dict[tuple[str, str], tuple[MetricKind, float]] = {}
        self.expires_ms = 0


class ClientMetricsStore:
    """Invariant: `series_count` is the number of series of all clients, and at most `max_series`."""

    def __init__(self, max_series: int, now_ms: Callable[[], int]) -> None:
        self._max_series: Final = max_series
        self._now_ms: Final = now_ms
        # The one that pushed last at the end.
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()
        self.series_count = 0
        self.dropped_points = 0

    def add(self, client_instance_id: bytes, pushed: PushedMetrics, keep_ms: int) -> None:
        """Take one push, and keep it for `keep_ms`."""
        now_ms = self._now_ms()
        self._expire(now_ms)
        client = self._clients.get(client_instance_id)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._drop(next(iter(self._clients)))
            client = self._clients[client_instance_id] = _Client()
        self._clients.move_to_end(client_instance_id)
        client.expires_ms = now_ms + keep_ms
        client.info = pushed.info
        for sample in pushed.samples:
            self._add_sample(client, sample)

    def _add_sample(self, client: _Client, sample: _Sample) -> None:
        key, kind, is_delta, value = sample
        known = client.series.get(key)
        if math.isnan(value):
            if known is not None and kind is MetricKind.GAUGE:
                del client.series[key]
                self.series_count -= 1
            return
        if known is None:
            if self.series_count >= self._max_series or len(client.series) >= MAX_SERIES_OF_CLIENT:
                self.dropped_points += 1
                return
            self.series_count += 1
        elif is_delta:
            value += known[1]
        client.series[key] = kind, value

    def _expire(self, now_ms: int) -> None:
        expired = [each for each, client in self._clients.items() if client.expires_ms <= now_ms]
        for client_instance_id in expired:
            self._drop(client_instance_id)

    def _drop(self, client_instance_id: bytes) -> None:
        self.series_count -= len(self._clients.pop(client_instance_id).series)

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        """Write all series."""
        self._expire(self._now_ms())
        kinds: dict[str, MetricKind] = {}
        infos = text.family(_INFO, "Clients that push their metrics", MetricKind.GAUGE)
        for client in list(self._clients.values()):
            values = [client.info.get(name, "") for name in _INFO_LABELS]
            infos.append(f"{_INFO}{label_text(_INFO_LABELS, values)} 1")
            for (name, labels), (kind, value) in list(client.series.items()):
                # Two clients may push the same name as different things; a family has one type.
                if kinds.setdefault(name, kind) is kind:
                    lines = text.family(name, "Pushed by clients (KIP-714)", kind)
                    lines.append(f"{name}{labels} {number_text(value)}")
            if turns.is_due():
                await turns.pause()


@lru_cache(maxsize=2_048)
def _family_name(name: str) -> str:
    clean = _NOT_OF_A_NAME.sub("_", name[:_MAX_TEXT])
    return clean if name.startswith(_KAFKA_PREFIX) else _OTHER_PREFIX + clean


def _labels(of_client: Sequence[tuple[str, str]], attributes: Attributes) -> str:
    found = dict(of_client)
    for name, value in attributes[:_MAX_LABELS]:
        clean = _NOT_OF_A_NAME.sub("_", name[:_MAX_TEXT]) or "_"
        # A label of the client is not overwritten, and a name does not begin with a digit.
        found.setdefault(clean if not clean[0].isdigit() else f"_{clean}", value[:_MAX_TEXT])
    return label_text(tuple(found), tuple(found.values()))
