"""How a run of a pipeline looks: a table that moves on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final

from ottla.spark.pipelines.progress import Flow, FlowState, PipelineProgress

if TYPE_CHECKING:
    from rich.table import Table

_STYLES: Final = {
    FlowState.COMPLETED: "green",
    FlowState.RUNNING: "cyan",
    FlowState.FAILED: "bold red",
    FlowState.SKIPPED: "yellow",
}
_REFRESHES_PER_SECOND: Final = 4
_SECONDS_BETWEEN_LINES: Final = 2.0


@contextmanager
def shown(progress: PipelineProgress, *, quiet: bool = False) -> Iterator[None]:
    """Shows a run while the block lasts."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        with _live(progress):
            yield
    else:
        lines = _Lines(progress)
        progress.observer = lines.update
        try:
            yield
        finally:
            lines.update(patience_s=0)


@contextmanager
def _live(progress: PipelineProgress) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    began = monotonic()
    with Live(
        get_renderable=lambda: _table(progress, monotonic() - began),
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        refresh_per_second=_REFRESHES_PER_SECOND,
    ):
        yield


def _table(progress: PipelineProgress, seconds: float) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
        caption=f"{seconds:.0f} s",
        caption_justify="left",
    )
    for name in ("flow", "state", "rows", "rows/s", "lag"):
        table.add_column(name, justify="left" if name in ("flow", "state") else "right")
    for flow in list(progress.flows.values()):
        table.add_row(flow.name, _state(flow), *_figures(flow), style=_STYLES.get(flow.state, ""))
    return table


def _figures(flow: Flow) -> tuple[str, str, str]:
    return _count(flow.rows), _rate(flow.rows_per_second), _count(flow.lag)


def _rate(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _state(flow: Flow) -> str:
    return flow.state if flow.attempts < 2 else f"{flow.state}, try {flow.attempts}"


class _Lines:
    """One line when a flow's state changes, and now and then when its rows do."""

    def __init__(self, progress: PipelineProgress) -> None:
        self._progress = progress
        self._said: dict[str, tuple[str, int | None]] = {}
        self._at: dict[str, float] = {}
        self._lock = Lock()

    def update(self, *, patience_s: float = _SECONDS_BETWEEN_LINES) -> None:
        now = monotonic()
        with self._lock:
            for flow in list(self._progress.flows.values()):
                state, rows = _state(flow), flow.rows
                said = self._said.get(flow.name)
                waited = now - self._at.get(flow.name, 0) >= patience_s
                if said is None or said[0] != state or (waited and said[1] != rows):
                    self._said[flow.name], self._at[flow.name] = (state, rows), now
                    print(self._line(flow, state), file=sys.stderr, flush=True)

    def _line(self, flow: Flow, state: str) -> str:
        rows, rate, lag = _figures(flow)
        facts = [f"{rows} row{'s' * (flow.rows != 1)}"] if rows else []
        facts += [f"{rate} rows/s"] if rate else []
        facts += [f"lag {lag}"] if lag else []
        return ", ".join([f"{flow.name}: {state}", *facts])
