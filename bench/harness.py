"""How a measurement is taken and reported.

Machines are noisy, so figures are relative: our work and the peer's run in interleaved rounds, and the result
is the median of the ratios. A `Row` has both medians, the spread of the ratio and the target.
"""

import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measured line: our speed, the peer's, and their ratio (above 1 means that we were faster)."""

    name: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    target: str

    def cells(self) -> list[str]:
        def figure(value: float | None) -> str:
            if value is not None and math.isinf(value):
                return "did not settle"
            return "–" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"

        spread = (
            "" if self.ratio is None else f"{self.ratio:.2f} ({self.ratio_low:.2f}–{self.ratio_high:.2f})"
        )
        return [
            self.name,
            figure(self.ours),
            figure(self.peer),
            self.unit,
            self.peer_name,
            spread,
            self.target,
        ]


def fewer(name: str, unit: str, ours: float, theirs: float | None, peer_name: str, target: str = "") -> Row:
    """A figure where less is better; the ratio says how many times less ours is. Infinity stands for what did
    not end in time, and has no ratio.
    """
    ratio = None if theirs is None or math.isinf(theirs) or math.isinf(ours) else theirs / ours
    return Row(name, unit, ours, theirs, peer_name, ratio, ratio, ratio, target)


def quick() -> bool:
    """Whether to take minutes where half an hour would give more stable figures."""
    return "BENCH_QUICK" in os.environ


def scaled(full: int, short: int) -> int:
    return short if quick() else full


HEADINGS = ["work", "Ottla", "peer", "unit", "the peer", "ratio (spread)", "aim"]


def seconds(work: Callable[[], object]) -> float:
    """Wall seconds of one call, with the garbage collector disabled."""
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    finally:
        gc.enable()


def compare(
    name: str,
    amount: float,
    unit: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    peer_name: str,
    target: str = "",
    rounds: int = 7,
    after_ours: Callable[[], object] = lambda: None,
) -> Row:
    """Run both in interleaved rounds; `amount` is the work of one call, in `unit` without "/s". `after_ours`
    is done after each call of ours, and takes no part in its time.
    """

    def timed(work: Callable[[], object]) -> float:
        taken = seconds(work)
        if work is ours:
            after_ours()
        return taken

    timed(ours), timed(peer)
    pairs = []
    for turn in range(rounds):
        first, second = (ours, peer) if turn % 2 == 0 else (peer, ours)
        a, b = timed(first), timed(second)
        pairs.append((a, b) if turn % 2 == 0 else (b, a))
    ratios = sorted(theirs / mine for mine, theirs in pairs)
    return Row(
        name,
        unit,
        amount / statistics.median(mine for mine, _ in pairs),
        amount / statistics.median(theirs for _, theirs in pairs),
        peer_name,
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        target,
    )


def alone(
    name: str, amount: float, unit: str, work: Callable[[], object], *, target: str = "", rounds: int = 3
) -> Row:
    """A figure without a peer."""
    took = statistics.median(seconds(work) for _ in range(rounds))
    return Row(name, unit, amount / took, None, "–", None, None, None, target)


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines)


def show(rows: Iterable[Row]) -> str:
    """The table of rows; each row is printed as soon as it is measured."""
    seen = []
    for row in rows:
        seen.append(row)
        print(" | ".join(row.cells()), flush=True)
    return markdown(seen)


def machine() -> str:
    """The machine in one line, for the heading of a table."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            model = next(
                (line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), model
            )
    except OSError:
        pass
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} × {model}, {system}, Python {platform.python_version()}"
