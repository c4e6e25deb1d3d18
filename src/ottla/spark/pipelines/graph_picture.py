"""The graph of a pipeline's flows as a picture: text for a terminal, DOT, Mermaid and SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from ottla.spark.pipelines.flow_graph import FlowKind, FlowNode

_OUTSIDE: Final = "outside"
_WIDTH: Final = 180
_HEIGHT: Final = 44
_GAP_X: Final = 70
_GAP_Y: Final = 22
_MARGIN: Final = 16
_COLOURS: Final = {
    "streaming table": "#dbeafe",
    "materialized view": "#dcfce7",
    "temporary view": "#f3f4f6",
    "sink": "#fde68a",
    _OUTSIDE: "#ffffff",
}


@dataclass(frozen=True, slots=True)
class _Box:
    """A dataset of the picture, or what the pipeline reads from outside."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class _Edge:
    source: str
    target: str
    flow: str
    """The name of the flow, if it is not that of its target."""


def _boxes(nodes: Sequence[FlowNode]) -> dict[str, _Box]:
    found: dict[str, _Box] = {}
    for node in nodes:
        if node.into_topic:
            kind = "sink"
        elif node.kind in (FlowKind.VIEW, FlowKind.TEMPORARY_VIEW):
            kind = str(node.kind)
        else:
            kind = "streaming table"
        found[node.target] = _Box(node.target, kind)
    return found


def _edges(nodes: Sequence[FlowNode]) -> list[_Edge]:
    return [
        _Edge(source, node.target, "" if node.name == node.target else node.name)
        for node in nodes
        for source in (*node.inputs, *([_OUTSIDE] if node.reads_outside else []))
    ]


def as_text(nodes: Sequence[FlowNode]) -> str:
    """A tree from what reads only outside to what is written last. A dataset with several inputs is shown
    under each, and its followers under the first.
    """
    tree = _Tree(nodes)
    inner = {edge.target for edge in tree.edges}
    lines: list[str] = []
    for name in tree.boxes:
        if name not in inner:
            lines.append(tree.label(name, [node for node in nodes if node.target == name]))
            lines += tree.followers(name, "")
    return "\n".join(lines)


class _Tree:
    def __init__(self, nodes: Sequence[FlowNode]) -> None:
        self._nodes = nodes
        self.boxes = _boxes(nodes)
        self.edges = [edge for edge in _edges(nodes) if edge.source != _OUTSIDE]
        self._shown: set[str] = set()

    def followers(self, name: str, indent: str) -> Iterator[str]:
        self._shown.add(name)
        mine = [edge for edge in self.edges if edge.source == name]
        for edge in mine:
            last = edge is mine[-1]
            again = edge.target in self._shown
            flow = edge.flow or edge.target
            text = self.label(edge.target, [node for node in self._nodes if node.name == flow])
            yield f"{indent}{'└─' if last else '├─'} {text}{', see above' * again}"
            if not again:
                yield from self.followers(edge.target, indent + ("   " if last else "│  "))

    def label(self, name: str, flows: Sequence[FlowNode]) -> str:
        facts = [self.boxes[name].kind]
        facts += [f"flow {flow.name}" for flow in flows if flow.name != name]
        facts += ["reads outside"] if any(flow.reads_outside for flow in flows) else []
        return f"{name} ({', '.join(facts)})"


def as_dot(nodes: Sequence[FlowNode]) -> str:
    """For Graphviz."""
    lines = ["digraph pipeline {", "  rankdir=LR;", '  node [shape=box, style="rounded,filled"];']
    edges = _edges(nodes)
    for box in _with_outside(nodes, edges):
        label = box.name if box.kind == _OUTSIDE else f"{box.name}\\n{box.kind}"
        lines.append(f'  "{_quoted(box.name)}" [label="{_quoted(label)}", fillcolor="{_COLOURS[box.kind]}"];')
    for edge in edges:
        name = f' [label="{_quoted(edge.flow)}"]' if edge.flow else ""
        lines.append(f'  "{_quoted(edge.source)}" -> "{_quoted(edge.target)}"{name};')
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return text.replace('"', '\\"')


def as_mermaid(nodes: Sequence[FlowNode]) -> str:
    """For Mermaid, as in Markdown files on GitHub."""
    edges = _edges(nodes)
    boxes = _with_outside(nodes, edges)
    ids = {box.name: f"n{number}" for number, box in enumerate(boxes)}
    lines = ["flowchart LR"]
    for box in boxes:
        text = box.name if box.kind == _OUTSIDE else f"{box.name}<br/>{box.kind}"
        lines.append(f'  {ids[box.name]}["{text}"]')
    for edge in edges:
        arrow = f"-- {edge.flow} -->" if edge.flow else "-->"
        lines.append(f"  {ids[edge.source]} {arrow} {ids[edge.target]}")
    return "\n".join(lines)


def _with_outside(nodes: Sequence[FlowNode], edges: Sequence[_Edge]) -> list[_Box]:
    outside = [_Box(_OUTSIDE, _OUTSIDE)] if any(edge.source == _OUTSIDE for edge in edges) else []
    return [*outside, *_boxes(nodes).values()]


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A dataset of a picture, and where it is."""

    name: str
    kind: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture of a graph: a column for each step, from left to right. Each path is one of SVG."""

    width: int
    height: int
    boxes: tuple[PlacedBox, ...]
    paths: tuple[str, ...]
    box_width: int = _WIDTH
    box_height: int = _HEIGHT


def layout(nodes: Sequence[FlowNode]) -> Layout:
    """Place the datasets of a graph."""
    edges = _edges(nodes)
    boxes = _with_outside(nodes, edges)
    columns: dict[int, list[_Box]] = {}
    depths = _depths([box.name for box in boxes], edges)
    for box in boxes:
        columns.setdefault(depths[box.name], []).append(box)
    at = {
        box.name: (_MARGIN + depth * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y))
        for depth, column in columns.items()
        for row, box in enumerate(column)
    }
    paths = []
    for edge in edges:
        (x1, y1), (x2, y2) = at[edge.source], at[edge.target]
        x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
        bend = (x1 + x2) // 2
        paths.append(f"M{x1},{y1} C{bend},{y1} {bend},{y2} {x2},{y2}")
    return Layout(
        max((x for x, _ in at.values()), default=0) + _WIDTH + _MARGIN,
        max((y for _, y in at.values()), default=0) + _HEIGHT + _MARGIN,
        tuple(PlacedBox(box.name, box.kind, *at[box.name]) for box in boxes),
        tuple(paths),
    )


def as_svg(nodes: Sequence[FlowNode]) -> str:
    """A picture of its own."""
    placed = layout(nodes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{placed.width}" height="{placed.height}" '
        f'font-family="sans-serif" font-size="12">'
    ]
    for path in placed.paths:
        end = path.rpartition(" ")[2].split(",")
        parts.append(
            f'<path d="{path}" fill="none" stroke="#6b7280"/>'
            f'<circle cx="{end[0]}" cy="{end[1]}" r="3" fill="#6b7280"/>'
        )
    for box in placed.boxes:
        kind = "" if box.kind == _OUTSIDE else box.kind
        parts.append(
            f'<rect x="{box.x}" y="{box.y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" '
            f'fill="{_COLOURS[box.kind]}" stroke="#6b7280"/>'
            f'<text x="{box.x + 10}" y="{box.y + 18}" font-weight="bold">{escape(box.name)}</text>'
            f'<text x="{box.x + 10}" y="{box.y + 34}" fill="#6b7280">{escape(kind)}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _depths(names: Sequence[str], edges: Sequence[_Edge]) -> dict[str, int]:
    """How many steps each dataset is behind the first, by its longest way. Graphs of flows have no circles;
    the number of rounds is limited anyway.
    """
    depths = dict.fromkeys(names, 0)
    for _ in names:
        for edge in edges:
            if edge.source in depths and edge.target in depths:
                depths[edge.target] = max(depths[edge.target], min(depths[edge.source] + 1, len(names)))
    return depths
