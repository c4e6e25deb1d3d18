"""The demo's report: counts in words, and a page with charts drawn as plain SVG, without anything to load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM = 860, 240, 62, 24, 28
COLOURS = ("#3b6ea8", "#d9822b", "#4a9b6e", "#a5527d", "#8a7a2e", "#5b5fb0")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }
table { border-collapse: collapse } td, th { padding: .2rem .9rem .2rem 0; text-align: right }
td:first-child, th:first-child { text-align: left }
.right { color: #2c7a4b } .wrong { color: #b3261e; font-weight: bold }
svg text { font: 12px system-ui, sans-serif; fill: #555 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } svg text { fill: #aaa } }
"""


@dataclass(slots=True)
class Comparison:
    what: str
    expected: int
    found: int
    lost: int
    doubled: int
    strange: int

    @property
    def is_right(self) -> bool:
        return self.expected == self.found and not (self.lost or self.doubled or self.strange)


@dataclass(slots=True)
class Outcome:
    """A count, and whether it is as expected."""

    comparisons: list[Comparison] = field(default_factory=list)
    checks: list[tuple[str, bool, str]] = field(default_factory=list)
    windows: list[tuple[int, str, int]] = field(default_factory=list)

    def compare(self, what: str, expected: Collection[object], found: Counter) -> None:
        """Check that exactly the expected items were found, each as often as expected (once, for a set)."""
        wanted = expected if isinstance(expected, Counter) else Counter(expected)
        self.comparisons.append(
            Comparison(
                what,
                expected=wanted.total(),
                found=found.total(),
                lost=(wanted - found).total(),
                doubled=sum(n - wanted[key] for key, n in found.items() if key in wanted and n > wanted[key]),
                strange=sum(n for key, n in found.items() if key not in wanted),
            )
        )

    def check(self, what: str, expected: object, found: object) -> None:
        detail = "" if expected == found else f"expected {str(expected)[:200]}, found {str(found)[:200]}"
        self.checks.append((what, expected == found, detail))

    @property
    def is_right(self) -> bool:
        return bool(self.comparisons) and all(
            [*(each.is_right for each in self.comparisons), *(right for _, right, _ in self.checks)]
        )

    def lines(self) -> Iterable[str]:
        yield f"{'':28}{'expected':>10}{'found':>10}{'lost':>8}{'doubled':>9}{'strange':>9}"
        for c in self.comparisons:
            yield f"{c.what:28}{c.expected:>10,}{c.found:>10,}{c.lost:>8,}{c.doubled:>9,}{c.strange:>9,}"
        for what, right, detail in self.checks:
            yield f"{what}: {'right' if right else 'WRONG, ' + detail}"


@dataclass(slots=True)
class Measured:
    """The progress over time. Samples are (second, events sent, events committed)."""

    seconds: float
    events: int
    samples: Sequence[tuple[float, int, int]]
    latencies: Sequence[tuple[float, int]]
    marks: Sequence[tuple[float, str]]
    restarts: int

    def percentile(self, share: float) -> int:
        ordered = sorted(ms for _, ms in self.latencies)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0

    def lines(self) -> Iterable[str]:
        rate = self.events / self.seconds
        yield f"{self.events:,} events in {self.seconds:.0f} s: {rate:,.0f} a second, kills included"
        yield (
            f"latency, sent to committed and read: median {self.percentile(0.5) / 1000:.1f} s, "
            f"95 % {self.percentile(0.95) / 1000:.1f} s, worst {self.percentile(1) / 1000:.1f} s"
        )
        yield f"queries that had to be started again: {self.restarts}"


def write_report(page: Path, outcome: Outcome, measured: Measured) -> None:
    verdict = "Nothing was lost or doubled." if outcome.is_right else "The counts are WRONG."
    rows = "".join(
        f"<tr class={_mark(c.is_right)}><td>{escape(c.what)}</td>"
        + "".join(f"<td>{n:,}</td>" for n in (c.expected, c.found, c.lost, c.doubled, c.strange))
        + "</tr>"
        for c in outcome.comparisons
    )
    checks = "".join(
        f"<li class={_mark(right)}>{escape(what)}: {'right' if right else escape(detail)}</li>"
        for what, right, detail in outcome.checks
    )
    facts = "".join(f"<li>{escape(line)}</li>" for line in measured.lines())
    sent = [(at, float(n)) for at, n, _ in measured.samples]
    committed = [(at, float(n)) for at, _, n in measured.samples]
    latency = _medians(measured.latencies)
    end = max((at for at, _ in (*sent, *latency)), default=1.0) or 1.0
    names = ("", "expected", "found", "lost", "doubled", "strange")
    head = "".join(f"<th>{name}</th>" for name in names)
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width"><title>A day in the shop</title>',
        f"<style>{STYLE}</style><h1>A day in the shop</h1>",
        f"<p class={_mark(outcome.is_right)}>{verdict}</p>",
        f"<table><tr>{head}</tr>{rows}</table><ul>{checks}</ul><ul>{facts}</ul>",
        "<h2>Events sent, and events cleaned and committed</h2>",
        _lines({"sent": sent, "committed": committed}, measured.marks, end),
        "<h2>Seconds from sent to committed and read</h2>",
        _lines({"median": latency}, measured.marks, end),
        "<h2>Revenue by window of ten minutes and category</h2>",
        _bars(outcome.windows),
        "</html>",
    ]
    page.write_text("\n".join(parts))


def _mark(right: bool) -> str:
    return "right" if right else "wrong"


def _medians(latencies: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
    """One point a second."""
    by_second: dict[int, list[int]] = {}
    for at, ms in latencies:
        by_second.setdefault(int(at), []).append(ms)
    return [
        (second + 0.5, sorted(found)[len(found) // 2] / 1000) for second, found in sorted(by_second.items())
    ]


def _lines(
    series: dict[str, list[tuple[float, float]]], marks: Sequence[tuple[float, str]], last: float
) -> str:
    """Lines over the seconds from 0 to `last`, the same for all charts of the page."""
    points = [point for found in series.values() for point in found]
    if not points:
        return "<p>nothing was measured</p>"
    high = max(y for _, y in points) or 1

    def place(x: float, y: float) -> str:
        across = LEFT + x / last * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - y / high * (HEIGHT - BOTTOM - 30)
        return f"{across:.1f},{down:.1f}"

    parts = [_axes(high, [(place(last * n / 6, 0), f"{last * n / 6:.0f} s") for n in range(7)])]
    for number, (name, found) in enumerate(series.items()):
        colour = COLOURS[number]
        path = " ".join(place(x, y) for x, y in found)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{LEFT + 10 + number * 90}" y="14" style="fill:{colour}">{escape(name)}</text>'
        )
    for at, what in marks:
        x = place(at, 0).split(",")[0]
        ends = f'x1="{x}" y1="22" x2="{x}" y2="{HEIGHT - BOTTOM}"'
        dashes = 'stroke="#b3261e" stroke-dasharray="3 3"'
        parts.append(f"<line {ends} {dashes}><title>{escape(what)}</title></line>")
    if marks:
        words = ", ".join(f"{what} at {at:.0f} s" for at, what in marks)
        parts.append(f'<text x="{LEFT + 220}" y="14" style="fill:#b3261e">{escape(words)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def _bars(windows: Sequence[tuple[int, str, int]]) -> str:
    starts = sorted({start for start, _, _ in windows})
    if not starts:
        return "<p>no window was closed</p>"
    names = sorted({category for _, category, _ in windows})
    totals = Counter[int]()
    for start, _, cents in windows:
        totals[start] += cents
    high = max(totals.values()) / 100
    width = (WIDTH - LEFT - RIGHT) / len(starts)
    parts, tops = [], Counter[int]()
    for start, category, cents in sorted(windows):
        x = LEFT + starts.index(start) * width
        tall = cents / 100 / high * (HEIGHT - BOTTOM - 30)
        y = HEIGHT - BOTTOM - tops[start] / 100 / high * (HEIGHT - BOTTOM - 30) - tall
        tops[start] += cents
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width * 0.85:.1f}" height="{tall:.1f}"'
        parts.append(f'<rect {box} fill="{COLOURS[names.index(category) % len(COLOURS)]}"/>')
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<text x="{LEFT + 10 + number * 80}" y="14" style="fill:{colour}">{escape(name)}</text>'
        )
    ticks = []
    for number in range(0, len(starts), max(len(starts) // 6, 1)):
        minutes = (starts[number] - starts[0]) // 60_000
        ticks.append((f"{LEFT + number * width:.1f},0", f"+{minutes // 60}:{minutes % 60:02d}"))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{_axes(high, ticks)}{"".join(parts)}</svg>'


def _axes(high: float, ticks: Sequence[tuple[str, str]]) -> str:
    parts = []
    for n in range(5):
        y = HEIGHT - BOTTOM - n / 4 * (HEIGHT - BOTTOM - 30)
        value = high * n / 4
        label = f"{value:,.0f}" if high >= 20 else f"{value:.1f}"
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#8884"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{label}</text>')
    for place, label in ticks:
        x = place.split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="middle">{escape(label)}</text>')
    return "".join(parts)
