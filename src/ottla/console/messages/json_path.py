"""JSON paths, the part of RFC 9535 that a search needs: names, indexes, `*` and `..`.

$.user.id   $.items[0].sku   $.items[*].sku   $['a name']   $..id
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

MAX_STEPS: Final = 50
# What one document may take to search: a `..` in a document with many levels must not stop the console.
MAX_VISITED: Final = 100_000
_TOKEN: Final = re.compile(
    r"""(?P<descend>\.\.)
      | \.(?P<name>[^\s.\[\]'"]+)
      | \[\s*(?P<index>-?\d{1,9})\s*\]
      | \[\s*'(?P<single>(?:[^'\\]|\\.)*)'\s*\]
      | \[\s*"(?P<double>(?:[^"\\]|\\.)*)"\s*\]
      | (?P<any>\[\s*\*\s*\])
      | (?P<bare>[^\s.\[\]'"]+)""",
    re.VERBOSE,
)
_ESCAPED: Final = re.compile(r"\\(.)")


class JsonPathError(ValueError):
    """The text is no path; it says where."""


class _Any(Enum):
    MEMBER = "*"
    DESCENDANT = ".."


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path as its steps: a name, an index, any member, or all that is below."""

    steps: tuple[str | int | _Any, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Parse a path; the `$` at its beginning may be left out. JsonPathError if it is none.

        >>> JsonPath.parse("$.items[0].sku").steps
        ('items', 0, 'sku')
        """
        source = text.strip()
        at = 1 if source.startswith("$") else 0
        steps: list[str | int | _Any] = []
        after_descend = False
        while at < len(source):
            match = _TOKEN.match(source, at)
            if match is None or (match["bare"] and not (after_descend or at == 0)):
                raise JsonPathError(f"{text!r} is no JSON path: see position {at + 1}")
            if match["descend"]:
                steps.append(_Any.DESCENDANT)
            elif match["any"] or "*" in (match["name"], match["bare"]):
                steps.append(_Any.MEMBER)
            elif match["index"]:
                steps.append(int(match["index"]))
            else:
                quoted = match["single"] if match["single"] is not None else match["double"]
                steps.append(
                    _ESCAPED.sub(r"\1", quoted) if quoted is not None else match["name"] or match["bare"]
                )
            after_descend = bool(match["descend"])
            at = match.end()
        if after_descend:
            raise JsonPathError(f"{text!r} is no JSON path: a name is missing after `..`")
        if len(steps) > MAX_STEPS:
            raise JsonPathError(f"a JSON path has at most {MAX_STEPS} steps")
        return cls(tuple(steps))

    def find(self, document: Any) -> Iterator[Any]:
        """Iterate over the values at the path. Stops early in a document that is too large for it.

        >>> list(JsonPath.parse("$..id").find({"a": [{"id": 1}, {"id": 2}]}))
        [1, 2]
        """
        budget = MAX_VISITED
        # Values that are still to be looked at, with the step that is next; the first to look at is last.
        waiting: list[tuple[Any, int]] = [(document, 0)]
        while waiting:
            budget -= 1
            if budget < 0:
                return
            value, at = waiting.pop()
            if at == len(self.steps):
                yield value
                continue
            step = self.steps[at]
            if step is _Any.DESCENDANT:
                waiting += ((child, at) for child in reversed(_members(value)))
                waiting.append((value, at + 1))
            elif step is _Any.MEMBER:
                waiting += ((child, at + 1) for child in reversed(_members(value)))
            elif isinstance(step, str):
                if isinstance(value, dict) and step in value:
                    waiting.append((value[step], at + 1))
            elif isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
                waiting.append((value[step], at + 1))


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
