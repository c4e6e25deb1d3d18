"""Keep the flows of a pipeline running: one query for each stream, views when their inputs have changed.

A flow that fails is started again by itself, later each time, while the others go on. A materialized view is
computed again when a flow that feeds it has run a batch since; a stream that reads a view is started again
after that, as its query holds the files of the former version. What cannot go on as a query is run once
again at intervals.

The supervision here knows neither Spark nor threads: `step` looks at everything once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.spark.pipelines.flow_graph import FlowKind, FlowNode, feeding_flows, is_fed_outside
from ottla.spark.pipelines.progress import PipelineProgress
from ottla.spark.pipelines.project import ProjectError
from ottla.spark.pipelines.spark_flows import FlowNotSupported

TRIGGER: Final = "ottla.trigger"
"""The setting for all flows; `ottla.trigger.<flow>` is for one."""
STREAM_SECONDS: Final = 0.5
VIEW_SECONDS: Final = 10.0
OUTSIDE_SECONDS: Final = 60.0
FIRST_DELAY_SECONDS: Final = 1.0
MAX_DELAY_SECONDS: Final = 60.0
# A flow that has run for so long begins with short delays again.
HEALTHY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
_DURATION: Final = re.compile(r"(?P<count>\d+(?:\.\d+)?) ?(?P<unit>[a-z]+)")
_UNITS: Final = {"millisecond": 0.001, "ms": 0.001, "second": 1.0, "sec": 1.0, "s": 1.0}
_LONG_UNITS: Final = {"minute": 60.0, "min": 60.0, "m": 60.0, "hour": 3600.0, "h": 3600.0}


class Triggers:
    """How often each flow looks for new data, by the project's configuration."""

    def __init__(self, configuration: Mapping[str, str], default_s: float | None = None) -> None:
        self._by_flow: dict[str, float] = {}
        self._default = default_s
        for name, value in configuration.items():
            if name == TRIGGER:
                self._default = parse_duration(name, value)
            elif name.startswith(f"{TRIGGER}."):
                self._by_flow[name.removeprefix(f"{TRIGGER}.")] = parse_duration(name, value)

    def check(self, flows: Iterable[str]) -> None:
        """Refuse settings for flows that do not exist."""
        known = sorted(flows)
        if unknown := sorted(self._by_flow.keys() - set(known)):
            raise ProjectError(
                f"{TRIGGER}.{unknown[0]}: there is no flow of this name; there are {', '.join(known)}"
            )

    def seconds(self, flow: str, otherwise: float) -> float:
        return self._by_flow.get(flow, otherwise if self._default is None else self._default)

    def own(self, flow: str, otherwise: float) -> float:
        """The setting of just this flow; that for all flows is not meant for expensive ones."""
        return self._by_flow.get(flow, otherwise)


def parse_duration(name: str, value: str) -> float:
    """The seconds of a setting.

    >>> parse_duration("t", "2 seconds"), parse_duration("t", "500ms"), parse_duration("t", "1 min")
    (2.0, 0.5, 60.0)
    """
    match = _DURATION.fullmatch(value.strip().lower())
    units = {**_UNITS, **_LONG_UNITS}
    unit = None if match is None else units.get(match["unit"], units.get(match["unit"].removesuffix("s")))
    if match is None or unit is None:
        raise ProjectError(f'{name}: {value!r} is not a time; write it as "2 seconds" or "500 milliseconds"')
    return float(match["count"]) * unit


class FlowQueries(Protocol):
    """What the supervision needs of Spark: see `SparkFlows`."""

    def start(self, name: str, trigger_ms: int) -> None: ...

    def error(self, name: str) -> str | None: ...

    def stop(self, names: Iterable[str], patience_s: float) -> None: ...


@dataclass(slots=True)
class _Stream:
    node: FlowNode
    trigger_s: float
    views: frozenset[str]
    """The views that it reads: flows by name."""
    running: bool = False
    started_at: float = 0.0
    failures: int = 0
    due: float = 0.0


@dataclass(slots=True)
class _View:
    node: FlowNode
    every_s: float
    fed_by: frozenset[str]
    outside: bool
    seen: int = 0
    due: float = 0.0
    failures: int = 0


class ContinuousFlows:
    """The flows of one pipeline. `refresh` computes tables once, and returns why those that failed did;
    `note` gets what users should know. `stale` are views that the run before has not computed.
    """

    def __init__(
        self,
        nodes: Sequence[FlowNode],
        queries: FlowQueries,
        refresh: Callable[[Sequence[str]], Mapping[str, str]],
        progress: PipelineProgress,
        triggers: Triggers,
        note: Callable[[str], None],
        *,
        stale: Iterable[str] = (),
    ) -> None:
        triggers.check(node.name for node in nodes if node.kind is not FlowKind.TEMPORARY_VIEW)
        self._nodes = nodes
        self._queries = queries
        self._refresh = refresh
        self._progress = progress
        self._triggers = triggers
        self._note = note
        self._stale = frozenset(stale)
        views = {node.name for node in nodes if node.kind is FlowKind.VIEW}
        self._streams = {
            node.name: _Stream(
                node,
                triggers.seconds(node.name, STREAM_SECONDS),
                frozenset(feeding_flows(nodes, node) & views),
            )
            for node in nodes
            if node.kind is FlowKind.STREAM
        }
        self._views: dict[str, _View] = {}
        for node in nodes:
            if node.kind is FlowKind.VIEW:
                self._add_view(node, 0.0)

    def _add_view(self, node: FlowNode, now: float) -> None:
        fed_by = frozenset(feeding_flows(self._nodes, node))
        outside = is_fed_outside(self._nodes, node)
        every = self._triggers.own(node.name, OUTSIDE_SECONDS if outside else VIEW_SECONDS)
        self._views[node.name] = _View(node, every, fed_by, outside, self._changes(fed_by), now + every)

    def start(self, now: float) -> None:
        """Begin, after a run that has computed everything else."""
        for name, view in self._views.items():
            view.due = now + view.every_s
            if name in self._stale:
                view.seen, view.due = -1, now
            self._progress.on_flow_running(name)
        self.step(now)

    def step(self, now: float) -> None:
        """Look at all flows: note those that have failed, start what is due, compute views."""
        for name, stream in list(self._streams.items()):
            if stream.running:
                if (error := self._queries.error(name)) is not None:
                    self._failed(stream, error, now)
            elif now >= stream.due:
                self._start(stream, now)
        if changed := [view for view in self._views.values() if self._is_due(view, now)]:
            self._compute(changed, now)

    def stop(self) -> None:
        """Stop all queries, each at the end of its batch if that is soon."""
        self._queries.stop(list(self._streams), STOP_SECONDS)
        for name in (*self._streams, *self._views):
            self._progress.on_flow_stopped(name)

    # Streams.

    def _start(self, stream: _Stream, now: float) -> None:
        name = stream.node.name
        try:
            self._queries.start(name, round(stream.trigger_s * 1000))
        except FlowNotSupported as error:
            every = self._triggers.own(name, VIEW_SECONDS)
            self._note(f"{name}: runs again every {every:g} s, as its query cannot stay open: {error}")
            del self._streams[name]
            fed_by = frozenset(feeding_flows(self._nodes, stream.node))
            self._views[name] = _View(stream.node, every, fed_by, True, due=now)
        except RuntimeError as error:
            self._failed(stream, str(error), now)
        else:
            stream.running, stream.started_at = True, now
            self._progress.on_flow_running(name)

    def _failed(self, stream: _Stream, error: str, now: float) -> None:
        if stream.running and now - stream.started_at >= HEALTHY_SECONDS:
            stream.failures = 0
        stream.running = False
        delay = _delay(stream.failures)
        stream.failures += 1
        stream.due = now + delay
        self._note(f"{stream.node.name}: failed, starts again in {delay:g} s: {error}")
        self._progress.on_flow_restarting(stream.node.name, error)

    # Views.

    def _changes(self, flows: frozenset[str]) -> int:
        """How many batches and computations there were that a view may show."""
        return sum(self._progress.executed(name) for name in flows)

    def _is_due(self, view: _View, now: float) -> bool:
        if now < view.due:
            return False
        return view.outside or view.failures > 0 or self._changes(view.fed_by) != view.seen

    def _compute(self, changed: list[_View], now: float) -> None:
        """Compute views and the views that read them, in one run."""
        names = {view.node.name for view in changed}
        while more := {
            name for name, view in self._views.items() if name not in names and view.fed_by & names
        }:
            names |= more
        # Counted before: what arrives meanwhile may not be in the result.
        before = {name: self._changes(self._views[name].fed_by - names) for name in names}
        failed = self._refresh(sorted({self._views[name].node.target for name in names}))
        for name in sorted(names):
            view = self._views[name]
            view.seen = before[name] + self._changes(view.fed_by & names)
            if (error := failed.get(name)) is None:
                view.failures, view.due = 0, now + view.every_s
                self._progress.on_flow_running(name)
                continue
            delay = max(_delay(view.failures), view.every_s)
            view.failures += 1
            view.due = now + delay
            self._note(f"{name}: failed, is computed again in {delay:g} s: {error}")
            self._progress.on_flow_restarting(name, error)
        self._start_readers_again(names - failed.keys(), now)

    def _start_readers_again(self, views: set[str], now: float) -> None:
        readers = [each for each in self._streams.values() if each.running and each.views & views]
        if readers:
            self._queries.stop([each.node.name for each in readers], STOP_SECONDS)
            for each in readers:
                each.running, each.due = False, now


def _delay(failures: int) -> float:
    return float(min(FIRST_DELAY_SECONDS * 2 ** min(failures, 10), MAX_DELAY_SECONDS))
