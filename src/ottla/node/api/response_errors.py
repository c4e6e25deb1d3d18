"""Find the error codes in a response: at its top, and in its topics, partitions, groups and so on.

Where an error code may be follows from the declaration of the message. A response with many parts is looked
at up to a bound, as this is for metrics only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ottla.protocol.schema import Response, Struct

_CODE: Final = "error_code"
# Parts of one response that are looked at.
_MOST_PARTS: Final = 200


class _Places(NamedTuple):
    """Where a part of a message has error codes: itself, and the fields whose parts have some."""

    itself: bool
    arrays: tuple[tuple[str, Any], ...]
    structs: tuple[tuple[str, Any], ...]


@lru_cache(maxsize=1024)
def _places(cls: type[Struct]) -> _Places | None:
    """The places of a class; None if it has none."""
    itself = False
    arrays: list[tuple[str, _Places]] = []
    structs: list[tuple[str, _Places]] = []
    for field in cls.FIELDS:
        if field.name == _CODE:
            itself = True
        elif field.struct is not None and (inner := _places(field.struct)) is not None:
            (arrays if field.kind == "array" else structs).append((field.name, inner))
    return _Places(itself, tuple(arrays), tuple(structs)) if itself or arrays or structs else None


def error_codes(response: Response) -> list[int]:
    """The error codes other than 0 in a response, each as often as it is there."""
    places = _places(type(response))
    if places is None:
        return []
    if not places.arrays and not places.structs:
        code: int = response.error_code  # type: ignore[attr-defined]
        return [code] if code else []
    return list(_walk(response, places, [_MOST_PARTS]))


def _walk(part: Any, places: _Places, left: list[int]) -> Iterator[int]:
    if places.itself and part.error_code:
        yield part.error_code
    for name, inner in places.structs:
        child = getattr(part, name)
        if child is not None:
            yield from _walk(child, inner, left)
    for name, inner in places.arrays:
        for child in getattr(part, name) or ():
            if left[0] <= 0:
                return
            left[0] -= 1
            yield from _walk(child, inner, left)
