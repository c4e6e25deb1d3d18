"""The progress of a run: its flows, how far each is, and what went wrong.

Two streams feed it. Spark's pipelines send messages for people, from which the state of each flow is parsed;
the streaming queries of the flows report rows and offsets. Both use the same name for a flow. Everything here
is plain data: events go in, `flows` is what to show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any, Final

from ottla.spark.expectations import ExpectationAction, expectation_counts
from ottla.spark.lag import lag_of

_DEFAULT: Final = ("spark_catalog.default.", "spark_catalog.")
_STATE: Final = re.compile(
    r"Flow '?(?P<name>[^'\n]+?)'? (?:is|has|has been)? ?"
    r"(?P<state>QUEUED|PLANNING|STARTING|RUNNING|COMPLETED|FAILED|STOPPED|EXCLUDED|SKIPPED|IDLE)\b"
)
_UNRESOLVED: Final = re.compile(
    r"Failed to resolve flow(?P<upstream> due to upstream failure)?: '(?P<name>[^']+)'"
)
_MAX_ERROR: Final = 4_000


class FlowState(StrEnum):
    QUEUED = "queued"
    PLANNING = "planning"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    SKIPPED = "skipped"
    EXCLUDED = "excluded"
    IDLE = "idle"
    RESTARTING = "restarting"


@dataclass(slots=True)
class Flow:
    """One flow of a run. `rows` and `lag` are None if nothing was reported, as for batch flows; `written`, if
    Spark does not count what its target gets, as of tables of files.
    """

    name: str
    state: FlowState = FlowState.QUEUED
    batches: int = 0
    rows: int | None = None
    written: int | None = None
    rows_per_second: float | None = None
    lag: int | None = None
    error: str | None = None
    expectations: dict[tuple[str, ExpectationAction], tuple[int, int]] = field(default_factory=dict)
    """The rows that were checked, and those that broke the rule, by expectation."""
    attempts: int = 0
    alive: bool = False
    """Whether a query of this flow is running."""
    broken: bool = False
    """Whether the query of the current attempt has ended with an error."""
    executed: int = 0
    """How many batches were run, including those that only move a watermark on."""
    restarts: int = 0
    """How often the flow was started again after a failure, in a continuous run."""
    reported_completed: bool = False
    """Whether Spark has reported the flow as completed while its query was alive: it may still fail."""

    def after(self, before: Flow) -> Flow:
        """The flow over two runs. What a view has counted is of all its rows, in each run."""
        is_view = self.rows is None and before.rows is None
        expectations = before.expectations | self.expectations
        if not is_view:
            for name, (rows, failed) in self.expectations.items():
                earlier = before.expectations.get(name, (0, 0))
                expectations[name] = earlier[0] + rows, earlier[1] + failed
        return replace(
            self,
            batches=before.batches + self.batches,
            rows=None if is_view else (before.rows or 0) + (self.rows or 0),
            written=before.written if self.written is None else (before.written or 0) + self.written,
            rows_per_second=before.rows_per_second if self.rows_per_second is None else self.rows_per_second,
            lag=before.lag if self.lag is None else self.lag,
            restarts=before.restarts + self.restarts,
            expectations=expectations,
        )


def short_name(name: str) -> str:
    """
    >>> short_name("spark_catalog.default.orders"), short_name("large_orders")
    ('orders', 'large_orders')
    """
    for prefix in _DEFAULT:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


@dataclass(slots=True)
class PipelineProgress:
    """The flows of a run by name, in the order of their first events."""

    flows: dict[str, Flow] = field(default_factory=dict)
    observer: Callable[[], None] = lambda: None
    """Called after each change, from the thread of the event."""
    _lock: Lock = field(default_factory=Lock)

    def on_message(self, text: str) -> None:
        """Take a message of the run."""
        with self._lock:
            if match := _UNRESOLVED.search(text):
                flow = self._flow(match["name"])
                flow.state = FlowState.SKIPPED if match["upstream"] else FlowState.FAILED
                if not match["upstream"]:
                    flow.error = _error_in(text) or flow.error
            elif match := _STATE.search(text):
                self._set_state(self._flow(match["name"]), FlowState[match["state"]], text)
        self.observer()

    def _set_state(self, flow: Flow, state: FlowState, text: str) -> None:
        if state is FlowState.COMPLETED and (flow.broken or flow.alive):
            flow.reported_completed = True  # Spark says so of a query that ends, before it knows how
            return
        flow.state = state
        if state is FlowState.STARTING:
            flow.attempts += 1
            flow.broken = flow.reported_completed = False
        elif state is FlowState.FAILED:
            flow.error = _error_in(text) or flow.error

    def on_query_progress(self, text: str) -> None:
        """Take the JSON of a streaming query's progress."""
        report = json.loads(text)
        if not report.get("name"):
            return
        with self._lock:
            flow = self._flow(report["name"])
            flow.rows = (flow.rows or 0) + int(report.get("numInputRows") or 0)
            written = int((report.get("sink") or {}).get("numOutputRows", -1))
            if written >= 0:
                flow.written = (flow.written or 0) + written
            flow.executed += "addBatch" in (report.get("durationMs") or ())
            if report.get("numInputRows"):
                flow.batches += 1
                flow.rows_per_second = _number(report.get("processedRowsPerSecond"))
            for name, (rows, failed) in expectation_counts(report.get("observedMetrics") or {}).items():
                before = flow.expectations.get(name, (0, 0))
                flow.expectations[name] = before[0] + rows, before[1] + failed
            lags = [lag_of(source) for source in report.get("sources") or ()]
            known = [lag for lag in lags if lag is not None]
            flow.lag = sum(known) if known else flow.lag
        self.observer()

    def on_view_counts(self, table: str, metrics: Mapping[str, Any]) -> None:
        """Take the observed metrics of a view that was computed; they replace those of the last time."""
        with self._lock:
            # Spark's catalog has the name in small letters.
            names = {name.lower(): name for name in self.flows}
            name = names.get(short_name(table).lower(), table)
            self._flow(name).expectations |= expectation_counts(metrics)
        self.observer()

    def on_query_started(self, name: str) -> None:
        with self._lock:
            flow = self._flow(name)
            flow.alive = True
            if flow.state is FlowState.QUEUED:
                flow.state = FlowState.STARTING

    def on_flow_running(self, name: str) -> None:
        """A flow of a continuous run has started."""
        with self._lock:
            self._flow(name).state = FlowState.RUNNING
        self.observer()

    def on_flow_restarting(self, name: str, error: str) -> None:
        """A flow of a continuous run has failed, and will be started again."""
        with self._lock:
            flow = self._flow(name)
            flow.state, flow.error = FlowState.RESTARTING, error
            flow.restarts += 1
        self.observer()

    def on_flow_stopped(self, name: str) -> None:
        with self._lock:
            self._flow(name).state = FlowState.STOPPED
        self.observer()

    def on_computed(self, name: str) -> None:
        """A view of a continuous run has been computed again."""
        with self._lock:
            self._flow(name).executed += 1
        self.observer()

    def executed(self, name: str) -> int:
        """How many batches a flow has run so far."""
        with self._lock:
            return self._flow(name).executed

    def on_query_ended(self, name: str, error: str | None = None) -> None:
        with self._lock:
            flow = self._flow(name)
            flow.alive = False
            if error is not None:
                flow.error, flow.broken = readable_error(error), True
            elif flow.reported_completed:
                flow.state = FlowState.COMPLETED
        self.observer()

    def after(self, before: PipelineProgress) -> PipelineProgress:
        """Both runs as one: what this one says of its flows, with what the one before has read."""
        both = {name: replace(flow) for name, flow in list(before.flows.items())}
        for name, flow in list(self.flows.items()):
            former = both.get(name)
            both[name] = flow if former is None else flow.after(former)
        return PipelineProgress(both)

    @property
    def failed(self) -> list[Flow]:
        return [flow for flow in self.flows.values() if flow.state is FlowState.FAILED]

    @property
    def rows(self) -> int:
        return sum(flow.rows or 0 for flow in self.flows.values())

    def _flow(self, name: str) -> Flow:
        name = short_name(name)
        return self.flows.setdefault(name, Flow(name))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _error_in(message: str) -> str | None:
    """The text after the first line of a message, where Spark puts the reason."""
    _, _, rest = message.partition("\n")
    return readable_error(rest) if rest.strip() else None


_TRACEBACK: Final = "Traceback (most recent call last)"
_PYTHON_ERROR: Final = re.compile(r"(?!org\.|java\.|scala\.|py4j\.)(?:[a-z_]\w*\.)*([A-Z]\w*[a-z]\w*): (.+)")
_WRAPPERS: Final = ("Py4J", "PySpark", "PythonException")
_CODE: Final = re.compile(r"[A-Z][A-Z_]+: ")
_NOISE: Final = ("at ", "...", "File ", "Traceback", "During handling", "The above exception", "~", "^")


_FRAME: Final = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_THIS_PACKAGE: Final = f"{Path(__file__).resolve().parents[2]}/"
_NOT_THE_USERS: Final = ("site-packages", "/pyspark", "/lib/python", "<", _THIS_PACKAGE)


def _user_line(traceback: str) -> str:
    """The innermost line of a traceback that belongs to the project, as `transformations/a.py, line 3: `."""
    for match in reversed(list(_FRAME.finditer(traceback))):
        file = match["file"]
        if not any(part in file for part in _NOT_THE_USERS):
            return f"{'/'.join(file.split('/')[-2:])}, line {match['line']}: "
    return ""


def readable_error(text: str) -> str:
    """The part of Spark's error that users need: the last exception of Python, else the first sentence.

    A stack trace of Java wraps a traceback of Python, which wraps the one line that matters.
    """
    before, marker, traceback = text.partition(_TRACEBACK)
    raised = [match for line in traceback.splitlines() if (match := _PYTHON_ERROR.match(line))]
    ours = [match for match in raised if not match[1].startswith(_WRAPPERS)]
    if ours:
        name, said = ours[-1].groups()
        where = "" if _CODE.match(said) else _user_line(traceback)
        return (said if _CODE.match(said) else f"{where}{name}: {said}")[:_MAX_ERROR]
    lines = [line.strip() for line in (before if marker else text).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    return " ".join(kept[:3])[:_MAX_ERROR] or text.strip()[:_MAX_ERROR]
