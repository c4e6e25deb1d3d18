"""Read Prometheus' text format: what `/metrics` of a node says, as samples."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*\Z")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPED: Final = re.compile(r"\\(.)")


class MetricSample(NamedTuple):
    """One line: the number of a metric with its labels."""

    name: str
    labels: dict[str, str]
    value: float


def parse_metrics(text: str, names: Collection[str] | None = None) -> Iterator[MetricSample]:
    """The samples of a text, in its order, or those of these names only. ValueError names a line that is
    none.
    """
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        if names is not None and line.partition(" ")[0].partition("{")[0] not in names:
            continue
        found = _LINE.match(line)
        if found is None:
            raise ValueError(f"not a sample of Prometheus' text format: {line[:200]}")
        name, labels, value = found.groups()
        yield MetricSample(name, _labels(labels or "", line), float(value))


def _labels(text: str, line: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _LABEL.match(text, position)
        if found is None:
            raise ValueError(f"not the labels of a sample: {line[:200]}")
        labels[found[1]] = _ESCAPED.sub(lambda char: "\n" if char[1] == "n" else char[1], found[2])
        position = found.end()
    return labels
