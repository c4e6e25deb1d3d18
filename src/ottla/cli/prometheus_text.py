"""Read Prometheus' text format: the families that a command asks for, and nothing else of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

_LABEL: Final = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_ESCAPED: Final = re.compile(r'\\[\\"n]')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def samples(text: str, names: Collection[str]) -> Iterator[Sample]:
    """The samples of these names. Lines that cannot be read are left out."""
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        brace = line.find("{")
        name = line[:brace] if brace >= 0 else line.partition(" ")[0]
        if name not in names:
            continue
        labels: dict[str, str] = {}
        rest = line[len(name) :]
        if brace >= 0:
            position = 1
            while (found := _LABEL.match(rest, position)) is not None:
                labels[found[1]] = _ESCAPED.sub(lambda match: _ESCAPES[match[0]], found[2])
                position = found.end()
            if rest[position : position + 1] != "}":
                continue
            rest = rest[position + 1 :]
        try:
            yield Sample(name, labels, float(rest.split()[0]))
        except (ValueError, IndexError):
            continue
