"""The metrics of a node and their text for Prometheus.

A node has one `MetricsRegistry`, which is made with the node and handed down; there is no global one. What
can be read from the state of the node when an operator looks costs nothing until then, so families are
callbacks (`collect`, or `add_collector` for what walks partitions or groups). No labels are put together on
the way of a request.

The number of series is bounded. A family with labels that clients choose (topics, groups, client ids) has a
bound, and what comes after the first ones shares one series, whose labels are `_other`.

`render` writes the text in bounded turns of the event loop. An error of one callback is logged and counted,
and leaves out that family only.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Final, TypeAlias

from ottla.runtime.on_demand import OnDemand
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# The value of each label of the series that label sets beyond the bound of their family share.
OTHER: Final = "_other"

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_FAILURES: Final = "ottla_metrics_collector_errors_total"


class MetricKind(Enum):
    """The type of a family, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


Samples: TypeAlias = float | Iterable[tuple[Sequence[str], float]]
"""What a callback gives: a number, or for a family with labels their values with a number each."""


class Histogram:
    """How many observations were at most each bound; the last of `counts` has those above all bounds.

    `scale` is what a unit of the observations is in the unit of the metric: 1e-9 if nanoseconds are observed
    and seconds are shown. The bounds are in the unit of the observations.
    """

    __slots__ = ("bounds", "counts", "scale", "sum")

    def __init__(self, bounds: Sequence[float], *, scale: float = 1) -> None:
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"the bounds of a histogram ascend, got {bounds}")
        self.bounds: Final = tuple(bounds)
        self.scale: Final = scale
        self.counts: Final = [0] * (len(self.bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class RecentCounts:
    """The counts of a histogram over the last minute or two, for quantiles that follow what happens now.

    Nothing is done for each observation: the counts are noted when they are looked at, at most once in each
    `period_ms`, and what is recent is the difference to the note before the last one.
    """

    __slots__ = ("_before", "_last", "_last_ms", "_period_ms")

    def __init__(self, period_ms: int = 60_000) -> None:
        self._period_ms: Final = period_ms
        self._before: list[int] = []
        self._last: list[int] = []
        self._last_ms: int | None = None

    def look(self, counts: Sequence[int], now_ms: int) -> list[int]:
        """The recent part of `counts`, which only grow from look to look."""
        if self._last_ms is None or now_ms - self._last_ms >= self._period_ms:
            self._before, self._last, self._last_ms = self._last, list(counts), now_ms
        before = self._before
        return [count - old for count, old in zip(counts, before, strict=True)] if before else list(counts)


def quantile(share: float, bounds: Sequence[float], counts: Sequence[int]) -> float:
    """The value below which `share` of the observations are, as `histogram_quantile` of Prometheus finds it;
    NaN without any. Above the last bound it is the last bound.
    """
    total = sum(counts)
    if not total:
        return math.nan
    rank, seen = share * total, 0
    for index, count in enumerate(counts):
        if count and seen + count >= rank:
            if index == len(bounds):
                break
            lower = bounds[index - 1] if index else 0.0
            return lower + (bounds[index] - lower) * (rank - seen) / count
        seen += count
    return bounds[-1]


class MetricsText:
    """The text of one scrape while it is made: the lines of each family, in the order of their first use."""

    __slots__ = ("_families",)

    def __init__(self) -> None:
        self._families: Final[dict[str, tuple[str, str, list[str]]]] = {}

    def family(self, name: str, help: str, kind: MetricKind) -> list[str]:
        """The lines of a family, to append to; those of `label_text` and `number_text` are well formed."""
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = (help, kind.value, [])
        return found[2]

    def gauge(self, name: str, help: str, samples: Samples, labels: Sequence[str] = ()) -> None:
        self.add(name, help, MetricKind.GAUGE, labels, samples)

    def counter(self, name: str, help: str, samples: Samples, labels: Sequence[str] = ()) -> None:
        self.add(name, help, MetricKind.COUNTER, labels, samples)

    def add(self, name: str, help: str, kind: MetricKind, labels: Sequence[str], samples: Samples) -> None:
        """Write the samples of a family, which are few."""
        lines = self.family(name, help, kind)
        if isinstance(samples, int | float):
            lines.append(f"{name} {number_text(samples)}")
            return
        for values, number in samples:
            lines.append(f"{name}{label_text(labels, values)} {number_text(number)}")

    def histogram(self, name: str, help: str, labels: str, histogram: Histogram) -> None:
        """Write a histogram; `labels` is the text of its labels, if it has some."""
        lines = self.family(name, help, MetricKind.HISTOGRAM)
        start = f"{name}_bucket{{" if not labels else f"{name}_bucket{labels[:-1]},"
        scale, seen = histogram.scale, 0
        for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
            seen += count
            lines.append(f'{start}le="{bound * scale:.6g}"}} {seen}')
        seen += histogram.counts[-1]
        lines.append(f'{start}le="+Inf"}} {seen}')
        lines.append(f"{name}_sum{labels} {number_text(histogram.sum * scale)}")
        lines.append(f"{name}_count{labels} {seen}")

    async def encode(self, turns: Turns) -> bytes:
        """All lines as they are sent, family by family."""
        parts: list[bytes] = []
        for name, (help, kind, lines) in self._families.items():
            if not lines:
                continue
            escaped = help.replace("\\", "\\\\").replace("\n", "\\n")
            parts.append(f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n".encode())
            for start in range(0, len(lines), _LINES_AT_ONCE):
                parts.append("\n".join(lines[start : start + _LINES_AT_ONCE]).encode())
                parts.append(b"\n")
                if turns.is_due():
                    await turns.pause()
        return b"".join(parts)


_LINES_AT_ONCE: Final = 2_000

Collector: TypeAlias = Callable[[MetricsText, Turns], Awaitable[None]]
"""Writes the families that one walk over the state of the node gives, in bounded turns."""


class MetricsRegistry:
    """All metrics of a node. Belongs to its event loop."""

    def __init__(self) -> None:
        self._writers: Final[dict[str, Callable[[MetricsText], None]]] = {}
        self._collectors: Final[dict[str, Collector]] = {}
        # The errors of callbacks, by what failed; each is logged the first time.
        self._failures: Final[dict[str, int]] = {}

    def collect(
        self,
        name: str,
        help: str,
        kind: MetricKind,
        labels: Sequence[str],
        callback: Callable[[], Samples],
    ) -> None:
        """Have the samples of a family computed for each scrape. The callback takes less than a millisecond,
        and gives a bounded number of samples.
        """
        if _NAME.match(name) is None or any(_LABEL.match(label) is None for label in labels):
            raise ValueError(f"not a name for Prometheus: {name} {tuple(labels)}")
        if name in self._writers:
            raise ValueError(f"the metric {name} is there already")
        self._writers[name] = lambda text: text.add(name, help, kind, labels, callback())

    def add_collector(self, name: str, collector: Collector) -> None:
        """Have several families written by one walk for each scrape; `name` is for the log."""
        if name in self._collectors:
            raise ValueError(f"the collector {name} is there already")
        self._collectors[name] = collector

    def add_collector_on_demand(self, name: str, make: Callable[[], Collector]) -> None:
        """Add a collector that is made, and imported, when an operator first looks: a start is not longer for
        it, and a node without a scraper not larger.
        """
        made = OnDemand(make)

        async def collect(text: MetricsText, turns: Turns) -> None:
            if made.made is None:
                made()
                turns.begin()
            await made()(text, turns)

        self.add_collector(name, collect)

    # The text

    async def render(self, turns: Turns) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        text = MetricsText()
        for name, write in list(self._writers.items()):
            try:
                write(text)
            except Exception as error:
                self._on_failure(name, error)
            if turns.is_due():
                await turns.pause()
        for name, collector in list(self._collectors.items()):
            try:
                await collector(text, turns)
            except Exception as error:
                self._on_failure(name, error)
            if turns.is_due():
                await turns.pause()
        # A counter should be there before it counts, or its first count is not seen.
        failures = dict.fromkeys(self._collectors, 0) | self._failures
        text.add(
            _FAILURES,
            "Metrics that could not be computed",
            MetricKind.COUNTER,
            ("collector",),
            [((name,), count) for name, count in failures.items()],
        )
        return await text.encode(turns)

    def _on_failure(self, name: str, error: Exception) -> None:
        failures = self._failures.get(name, 0) + 1
        self._failures[name] = failures
        if failures == 1:
            _log.error("the metrics of %s could not be computed; others are", name, exc_info=error)


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Labels as they follow the name of a metric; nothing if there are none."""
    if not names:
        return ""
    pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    # A lone surrogate, which no encoding takes, would end the scrape.
    value = value.encode("utf-8", "replace").decode()
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number_text(number: float) -> str:
    """A number as Prometheus reads it."""
    if isinstance(number, int):
        return str(int(number))
    if number == math.inf:
        return "+Inf"
    if number == -math.inf:
        return "-Inf"
    return "NaN" if math.isnan(number) else repr(number)
