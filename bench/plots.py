"""Plots as SVG, beside the page that shows them: lines, axes and a legend, written by hand.

A plot of a handful of lines is some hundred elements; a plotting library would be the largest dependency of
the project.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 230, 40, 50
COLOURS = ("#2364aa", "#d1495b", "#3a8f5c", "#e09f3e", "#7a5195", "#4f6d7a", "#9a031e", "#00798c")


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    log: bool

    def share(self, value: float) -> float:
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            steps = (1,) if last - first > 2 else (1, 2, 5)
            every = [step * 10**power for power in range(first, last + 1) for step in steps]
            return [tick for tick in every if self.low <= tick <= self.high]
        step = 10 ** math.floor(math.log10(self.high - self.low))
        if (self.high - self.low) / step < 4:
            step /= 4
        return [self.low + step * n for n in range(int((self.high - self.low) / step) + 1)]


def _axis(values: list[float], log: bool) -> _Axis:
    low, high = min(values), max(values)
    if log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        return _Axis(low, high if high > low else low * 10, True)
    return _Axis(0.0, high * 1.05 or 1.0, False)


def plot(what: Plot) -> None:
    """Write docs/benchmarks/NAME.svg."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{what.name}.svg").write_text(svg(what))


def svg(what: Plot) -> str:
    x_axis = _axis([x for line in what.lines.values() for x, _ in line], what.log_x)
    y_axis = _axis([y for line in what.lines.values() for _, y in line], what.log_y)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(x: float) -> float:
        return LEFT + wide * x_axis.share(x)

    def down(y: float) -> float:
        return TOP + high * (1 - y_axis.share(y))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">{escape(what.title)}</text>',
    ]
    for tick in x_axis.ticks():
        x = across(tick)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + high}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + high + 18}" text-anchor="middle">{_figure(tick)}</text>')
    for tick in y_axis.ticks():
        y = down(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + wide}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_figure(tick)}</text>')
    parts.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 10}" text-anchor="middle">{what.x_label}</text>')
    middle = TOP + high / 2
    turned = f'transform="rotate(-90 16 {middle})"'
    parts.append(f'<text x="16" y="{middle}" text-anchor="middle" {turned}>{what.y_label}</text>')
    for number, (name, line) in enumerate(what.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(line) < 20:
            parts += [
                f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3" fill="{colour}"/>' for x, y in line
            ]
        y = TOP + 12 + 18 * number
        parts.append(f'<rect x="{LEFT + wide + 14}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + wide + 30}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"
