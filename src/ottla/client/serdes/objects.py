"""Objects of a user's classes, and the dicts and lists that have the same content."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from ottla.schemas.avro_values import as_mapping


def plain(value: Any) -> Any:
    """The value as what JSON has: of dataclasses and Pydantic models their fields."""
    if isinstance(value, str | int | float | bool | None):
        return value.value if isinstance(value, Enum) else value
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Enum):
        return plain(value.value)
    found = as_mapping(value)
    if found is not None:
        return {str(name): plain(each) for name, each in found.items()}
    return str(value)  # dates, UUIDs, decimals


def built(kind: Any, value: Any) -> Any:
    """An object of a class, or of what an annotation says, from its content. ValueError or TypeError if the
    content is of another form.
    """
    if value is None or kind is Any:
        return value
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _of_union([each for each in arguments if each is not type(None)], value)
    if isinstance(origin, type) and arguments:
        if issubclass(origin, Mapping) and isinstance(value, Mapping):
            return {name: built(arguments[-1], each) for name, each in value.items()}
        if issubclass(origin, Sequence) and isinstance(value, list):
            items = [built(arguments[0], each) for each in value]
            return tuple(items) if issubclass(origin, tuple) else items
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r} has no fields for {kind.__name__}")
        hints = _hints(kind)
        given = [each.name for each in fields(kind) if each.init and each.name in value]
        return kind(**{name: built(hints[name], value[name]) for name in given})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return value


def _of_union(kinds: Sequence[Any], value: Any) -> Any:
    """A value of the first kind that takes it."""
    problem: Exception | None = None
    for kind in kinds:
        try:
            return built(kind, value)
        except (TypeError, ValueError) as error:
            problem = error
    if problem is not None:
        raise problem
    return value


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)
