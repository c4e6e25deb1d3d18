"""Requests by API and version: counts, errors, sizes, and the time of each phase.

The names are those of Kafka's `RequestMetrics` behind the usual exporter. As there, a fetch counts as `Fetch`
and, besides, as `FetchConsumer` or `FetchFollower`. Kafka's times are summaries; ours have a sum as well, so
that a mean over any time can be computed, and the quantiles of the total time are those of the last minute or
two. The number of series is bounded by the table of APIs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, TypeVar

from ottla.node.network.request_statistics import TIME_BOUNDS_MS, NetworkStatistics, RequestStatistics
from ottla.protocol.errors import ErrorCode
from ottla.runtime.clock import Clock
from ottla.runtime.metrics import MetricKind, MetricsText, RecentCounts, label_text, number_text, quantile
from ottla.runtime.turns import Turns

K = TypeVar("K", bound=Hashable)

_PREFIX: Final = "kafka_network_requestmetrics_"
_TOTAL: Final = f"{_PREFIX}totaltimems"
_QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)
_FETCH: Final = "Fetch"
_OF_FETCH: Final = frozenset(("FetchConsumer", "FetchFollower"))
_NS_PER_MS: Final = 1e6
# Names, what they are, and the attributes of `RequestStatistics`.
_PHASES: Final = (
    ("requestqueuetimems", "Time until the handler of the request started", "queue_ns"),
    ("localtimems", "Time of the handler until it had a response, or had to wait", "local_ns"),
    (
        "remotetimems",
        "Time that the request waited for others: replicas, bytes, the controller, the disk",
        "remote_ns",
    ),
    ("responsesendtimems", "Time until the response had gone to the socket", "send_ns"),
)


class RequestCollector:
    def __init__(self, statistics: NetworkStatistics, clock: Clock) -> None:
        self._statistics: Final = statistics
        self._clock: Final = clock
        self._recent: Final[dict[str, RecentCounts]] = {}

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        by_version: dict[tuple[str, int], RequestStatistics] = {}
        errors: dict[tuple[str, int, int], int] = {}
        for listener in self._statistics.listeners.values():
            for (request, version), statistics in listener.requests.items():
                _add(by_version, (request, version), statistics)
                if request in _OF_FETCH:
                    _add(by_version, (_FETCH, version), statistics)
            for key, count in listener.errors.items():
                errors[key] = errors.get(key, 0) + count
        by_request: dict[str, RequestStatistics] = {}
        for (request, _), statistics in by_version.items():
            _add(by_request, request, statistics)
        self._write_versions(text, by_version)
        if turns.is_due():
            await turns.pause()
        text.counter(
            f"{_PREFIX}errors_total",
            "Errors in responses, also of single partitions, topics and groups",
            [
                ((request, str(version), _error_name(code)), count)
                for (request, version, code), count in sorted(errors.items())
            ],
            ("request", "version", "error"),
        )
        for request, statistics in sorted(by_request.items()):
            self._write_times(text, request, statistics)
            if turns.is_due():
                await turns.pause()

    def _write_versions(
        self, text: MetricsText, by_version: dict[tuple[str, int], RequestStatistics]
    ) -> None:
        for name, what, attribute in (
            ("requests_total", "Requests that were answered", "count"),
            ("requestbytes_total", "Bytes of requests", "request_bytes"),
            ("responsebytes_total", "Bytes of responses", "response_bytes"),
        ):
            text.counter(
                _PREFIX + name,
                what,
                [
                    ((request, str(version)), getattr(statistics, attribute))
                    for (request, version), statistics in sorted(by_version.items())
                ],
                ("request", "version"),
            )

    def _write_times(self, text: MetricsText, request: str, statistics: RequestStatistics) -> None:
        labels = label_text(("request",), (request,))
        total_ns = 0
        for name, what, attribute in _PHASES:
            spent_ns = getattr(statistics, attribute)
            total_ns += spent_ns
            _write_sum(text, _PREFIX + name, what, labels, spent_ns / _NS_PER_MS, statistics.count)
        _write_sum(
            text,
            f"{_PREFIX}throttletimems",
            "Time for which clients were throttled",
            labels,
            statistics.throttle_ms,
            statistics.count,
        )
        lines = text.family(
            _TOTAL,
            "Time from the receipt of a request until its response had gone to the socket",
            MetricKind.SUMMARY,
        )
        now_ms = self._clock.monotonic_ns() // 1_000_000
        recent = self._recent.setdefault(request, RecentCounts()).look(statistics.times, now_ms)
        for share in _QUANTILES:
            value = quantile(share, TIME_BOUNDS_MS, recent)
            lines.append(f'{_TOTAL}{{request="{request}",quantile="{share}"}} {number_text(value)}')
        lines.append(f"{_TOTAL}_sum{labels} {number_text(total_ns / _NS_PER_MS)}")
        lines.append(f"{_TOTAL}_count{labels} {statistics.count}")


def _write_sum(text: MetricsText, name: str, what: str, labels: str, total: float, count: int) -> None:
    lines = text.family(name, what, MetricKind.SUMMARY)
    lines.append(f"{name}_sum{labels} {number_text(total)}")
    lines.append(f"{name}_count{labels} {count}")


def _add(into: dict[K, RequestStatistics], key: K, statistics: RequestStatistics) -> None:
    found = into.get(key)
    if found is None:
        found = into[key] = RequestStatistics()
    found.merge(statistics)


def _error_name(code: int) -> str:
    return ErrorCode.of(code).name
