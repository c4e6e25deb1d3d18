"""The error codes in a response, at its top and in its topics, partitions, groups and so on: find them, or
put one code everywhere.

Where an error code may be follows from the declaration of the message. To find them, a response with many
parts is looked at up to a bound, as this is for metrics only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ottla.protocol.api import API
from ottla.protocol.schema import Request, Response, Struct

_CODE: Final = "error_code"
# Parts of one response that are looked at.
_MOST_PARTS: Final = 200
_MESSAGE: Final = "error_message"
# The fields of a request's part that say which part a part of the response is about.
_IDENTITY: Final = frozenset(
    {
        "name",
        "topic",
        "topic_id",
        "partition",
        "partition_index",
        "group_id",
        "resource_type",
        "resource_name",
        "entity",
    }
)


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


def error_for_each_part(request: Request, code: int, message: str | None) -> Any:
    """Build the response that has the same error for every part that the request lists, and at its top if
    there is a place.
    """
    response_class = API[request.API_KEY].response_class
    errors = {_CODE: int(code), _MESSAGE: message}
    top = {field.name: errors[field.name] for field in response_class.FIELDS if field.name in errors}
    return response_class(**top, **_failed_parts(response_class, request, errors))


def _failed_parts(cls: type[Struct], asked: Struct, errors: dict[str, Any]) -> dict[str, list[Struct]]:
    """The one array of a class whose elements have errors, with an element for each that was asked for."""
    name, part_class = next(
        (field.name, field.struct)
        for field in cls.FIELDS
        if field.kind == "array" and field.struct is not None and _places(field.struct) is not None
    )
    parts: list[Struct] = []
    for field in asked.FIELDS:
        if field.kind == "array":
            parts += _failed_array(part_class, field.struct, getattr(asked, field.name) or (), errors)
    return {name: parts}


def _failed_array(
    cls: type[Struct], asked_class: type[Struct] | None, asked: Sequence[Any], errors: dict[str, Any]
) -> Iterator[Struct]:
    fields = [field.name for field in cls.FIELDS]
    own = {name: errors[name] for name in fields if name in errors}
    if asked_class is None:  # ids or names
        identity = next(name for name in fields if name not in errors)
        for each in asked:
            yield cls(**own, **{identity: each})
        return
    shared = [field.name for field in asked_class.FIELDS if field.name in _IDENTITY and field.name in fields]
    for part in asked:
        values = {name: getattr(part, name) for name in shared}
        # What has an error of its own needs none for its parts.
        yield cls(**values, **own) if own else cls(**values, **_failed_parts(cls, part, errors))
