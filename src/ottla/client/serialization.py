"""Serializers and deserializers: any callable, or one of the common ones by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

Serializer: TypeAlias = Callable[[Any], bytes | None]
Deserializer: TypeAlias = Callable[[bytes], Any]


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _int_of(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


_SERIALIZERS: dict[str, Serializer | None] = {
    "bytes": None,
    "str": str.encode,
    "json": _json_bytes,
    "int": _int_bytes,
}
_DESERIALIZERS: dict[str, Deserializer | None] = {
    "bytes": None,
    "str": bytes.decode,
    "json": json.loads,
    "int": _int_of,
}


def serializer(chosen: Serializer | str | None) -> Serializer | None:
    """Return a callable for "str", "json" or "int" (eight bytes, as Java's Long); None, for "bytes", leaves
    bytes unchanged.
    """
    found: Serializer | None = _choose(chosen, _SERIALIZERS, "serializer")
    return found


def deserializer(chosen: Deserializer | str | None) -> Deserializer | None:
    """Return the inverse of `serializer`."""
    found: Deserializer | None = _choose(chosen, _DESERIALIZERS, "deserializer")
    return found


def _choose(chosen: Any, names: dict[str, Any], what: str) -> Any:
    if isinstance(chosen, str):
        if chosen not in names:
            raise ValueError(f"no {what} {chosen!r}: allowed are {', '.join(names)}, or any callable")
        return names[chosen]
    if chosen is not None and not callable(chosen):
        raise ValueError(f"a {what} is a callable or one of {', '.join(names)}, not {chosen!r}")
    return chosen
