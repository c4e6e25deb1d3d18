"""Serializers and deserializers: any callable, one of the common ones by name, or one that looks at the whole
record.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from ottla.records._kernel import ConsumerRecord, deserialize

Serializer: TypeAlias = Callable[[Any], bytes | None]
Deserializer: TypeAlias = Callable[[bytes], Any]


class SchemaNeeded(Exception):
    """A record cannot be read before `load` was called, which blocks."""

    def __init__(self, load: Callable[[], None]) -> None:
        super().__init__("the schema of a record has to be loaded first")
        self.load = load


class RecordSerde(ABC):
    """A serializer and deserializer that looks at topics and headers, and may have to load schemas: `prepare`
    and `SchemaNeeded.load` block, the rest does not.
    """

    @abstractmethod
    def is_prepared(self, topic: str, *, is_key: bool) -> bool:
        """Whether `serialize` can be called for a topic."""

    @abstractmethod
    def prepare(self, topic: str, *, is_key: bool) -> None:
        """Load what `serialize` needs for a topic."""

    @abstractmethod
    def serialize(
        self, topic: str, value: Any, *, is_key: bool
    ) -> tuple[bytes | None, tuple[str, bytes] | None]:
        """Return the bytes of a key or value, and a header that the record has for them."""

    @abstractmethod
    def deserialize(
        self, topic: str, data: bytes, headers: Sequence[tuple[str, bytes | None]], *, is_key: bool
    ) -> Any:
        """Return what the bytes of a key or value are. SchemaNeeded if something has to be loaded first."""


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


def serializer(chosen: Serializer | RecordSerde | str | None) -> Serializer | RecordSerde | None:
    """Return a callable for "str", "json" or "int" (eight bytes, as Java's Long); None, for "bytes", leaves
    bytes unchanged.
    """
    found: Serializer | RecordSerde | None = _choose(chosen, _SERIALIZERS, "serializer")
    return found


def deserializer(
    chosen: Deserializer | RecordSerde | str | None,
) -> Deserializer | RecordSerde | None:
    """Return the inverse of `serializer`."""
    found: Deserializer | RecordSerde | None = _choose(chosen, _DESERIALIZERS, "deserializer")
    return found


def _choose(chosen: Any, names: dict[str, Any], what: str) -> Any:
    if isinstance(chosen, str):
        if chosen not in names:
            raise ValueError(f"no {what} {chosen!r}: allowed are {', '.join(names)}, or any callable")
        return names[chosen]
    if chosen is not None and not callable(chosen) and not isinstance(chosen, RecordSerde):
        raise ValueError(f"a {what} is a callable or one of {', '.join(names)}, not {chosen!r}")
    return chosen


def deserialize_records(
    records: list[ConsumerRecord[Any, Any]],
    for_keys: Deserializer | RecordSerde | None,
    for_values: Deserializer | RecordSerde | None,
) -> tuple[int, Exception | None]:
    """Replace keys and values by what the deserializers make of them. The result is the number of records
    before the first that cannot be, and why.
    """
    if not isinstance(for_keys, RecordSerde) and not isinstance(for_values, RecordSerde):
        return deserialize(records, for_keys, for_values)
    for place, record in enumerate(records):
        key = _of_record(for_keys, record, is_key=True)
        value = _of_record(for_values, record, is_key=False)
        _, error = deserialize([record], key, value)
        if error is not None:
            return place, error
    return len(records), None


def _of_record(
    chosen: Deserializer | RecordSerde | None, record: ConsumerRecord[Any, Any], *, is_key: bool
) -> Deserializer | None:
    if not isinstance(chosen, RecordSerde):
        return chosen
    headers = record.headers
    return partial(_deserialized, chosen, record.topic, headers, is_key)


def _deserialized(
    serde: RecordSerde,
    topic: str,
    headers: Sequence[tuple[str, bytes | None]],
    is_key: bool,
    data: bytes,
) -> Any:
    return serde.deserialize(topic, data, headers, is_key=is_key)
