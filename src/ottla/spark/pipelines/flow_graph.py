"""The graph of a pipeline's flows as plain data: what each reads and writes, kept in a file between runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

FILE: Final = "graph.json"


class FlowKind(StrEnum):
    STREAM = "stream"
    VIEW = "materialized view"
    TEMPORARY_VIEW = "temporary view"
    ONCE = "once"


@dataclass(frozen=True, slots=True)
class FlowNode:
    """One flow. `inputs` are the datasets of the pipeline that it reads; `reads_outside` says that it reads
    something else, too: a topic, files, a table of another pipeline.
    """

    name: str
    target: str
    inputs: tuple[str, ...]
    kind: FlowKind
    into_topic: bool = False
    reads_outside: bool = False
    file: str | None = None
    line: int | None = None
    dead_letters: tuple[str, ...] = ()
    """The topics of its dead letters."""


def save_graph(nodes: Iterable[FlowNode], state: Path) -> None:
    """Keep the graph for `ottla pipeline graph`, which does not start Spark."""
    draft = state / f"{FILE}.tmp"
    draft.write_text(json.dumps({"version": 1, "flows": [asdict(node) for node in nodes]}, indent=2))
    draft.replace(state / FILE)


def load_graph(state: Path) -> list[FlowNode] | None:
    """The graph of the last run; None if there was none, or another release has written it."""
    try:
        document = json.loads((state / FILE).read_text())
        return [
            FlowNode(
                **{
                    **flow,
                    "inputs": tuple(flow["inputs"]),
                    "kind": FlowKind(flow["kind"]),
                    "dead_letters": tuple(flow.get("dead_letters", ())),
                }
            )
            for flow in document["flows"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def feeding_flows(nodes: Sequence[FlowNode], reader: FlowNode) -> set[str]:
    """The flows that write what a flow reads; temporary views are looked through.

    >>> orders = FlowNode("orders", "orders", (), FlowKind.STREAM)
    >>> ada = FlowNode("ada", "ada", ("orders",), FlowKind.TEMPORARY_VIEW)
    >>> feeding_flows([orders, ada], FlowNode("sum", "sum", ("ada",), FlowKind.VIEW))
    {'orders'}
    """
    found: set[str] = set()
    seen: set[str] = set()
    waiting = list(reader.inputs)
    while waiting:
        dataset = waiting.pop()
        if dataset in seen:
            continue
        seen.add(dataset)
        for node in nodes:
            if node.target != dataset:
                continue
            if node.kind is FlowKind.TEMPORARY_VIEW:
                waiting += node.inputs
            else:
                found.add(node.name)
    return found


def is_fed_outside(nodes: Sequence[FlowNode], reader: FlowNode) -> bool:
    """Whether a flow reads something outside of the pipeline, itself or through a temporary view."""
    if reader.reads_outside:
        return True
    return any(
        is_fed_outside(nodes, node)
        for node in nodes
        if node.kind is FlowKind.TEMPORARY_VIEW and node.target in reader.inputs
    )
