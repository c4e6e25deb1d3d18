"""The columns that a table has for the values of a schema, and the values of records as values of columns.

A schema names its fields with a `ColumnType` each, which is the same for Avro, Protobuf and JSON Schema. What
no column type stands for (unions of several types, a type inside of itself) is text of JSON.
`converter` makes the function that turns what a decoder returns into what Arrow takes.

Bounded: a schema of some hundred bytes can name types inside of each other that make billions of columns, so
`Expansion` counts them before they are made.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ottla.schemas.errors import SchemaError, WrongData

# A struct or list beyond this depth is text of JSON.
MAX_DEPTH: Final = 8
# The columns of one schema, with those inside of others.
MAX_COLUMNS: Final = 5_000
_LONGS: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """`kind` is one of boolean, long, double, string, hex, base64, date, timestamp, local-timestamp, decimal,
    struct, list, map, json. hex and base64 are how decoders show bytes; a map has texts as keys, and items.
    """

    kind: str
    fields: tuple[tuple[str, ColumnType], ...] = ()
    item: ColumnType | None = None
    scale: int = 0


Fields = tuple[tuple[str, ColumnType], ...]
Converter = Callable[[Any], Any]

BOOLEAN: Final = ColumnType("boolean")
LONG: Final = ColumnType("long")
DOUBLE: Final = ColumnType("double")
TEXT: Final = ColumnType("string")
JSON: Final = ColumnType("json")


class Expansion:
    """The columns that are being made of one schema: their number, and the types around the next one. With
    `maps` there are columns for maps; else they are text of JSON, as in the tables of topics.
    """

    __slots__ = ("_around", "_count", "maps")

    def __init__(self, *, maps: bool = False) -> None:
        self.maps: Final = maps
        self._count = 0
        self._around: list[str] = []

    def add_column(self) -> None:
        """Count a column, before it is made. SchemaError if there are too many."""
        self._count += 1
        if self._count > MAX_COLUMNS:
            raise SchemaError(
                f"the schema has more than {MAX_COLUMNS} columns, counting those inside of others"
            )

    def may_enter(self, type_name: str, depth: int) -> bool:
        """Whether a column of this type may be a struct: not too deep, and not inside of its own type."""
        return depth < MAX_DEPTH and type_name not in self._around

    @contextmanager
    def inside(self, type_name: str) -> Iterator[None]:
        """Make the columns of a type."""
        self._around.append(type_name)
        yield
        self._around.pop()


def converter(column: ColumnType, where: str) -> Converter:
    """Make the function that converts a decoded value. It raises WrongData for one of another type."""
    kind = column.kind
    if kind == "struct":
        return _struct(column, where)
    if kind == "list":
        assert column.item is not None
        return _list(converter(column.item, f"an item of {where}"), where)
    if kind == "map":
        assert column.item is not None
        return _map(converter(column.item, f"a value of {where}"), where)
    check = _SCALARS[kind]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        try:
            return check(value)
        except (TypeError, ValueError, ArithmeticError, InvalidOperation):
            raise WrongData(f"{where} is no {kind}: {str(value)[:60]!r}") from None
        except RecursionError:
            raise WrongData(f"{where} is nested too deeply") from None

    return convert


def _struct(column: ColumnType, where: str) -> Converter:
    parts = [(name, converter(each, f"{where}.{name}")) for name, each in column.fields]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise WrongData(f"{where} is no object: {str(value)[:60]!r}")
        return {name: part(value.get(name)) for name, part in parts}

    return convert


def _list(item: Converter, where: str) -> Converter:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise WrongData(f"{where} is no array: {str(value)[:60]!r}")
        return [item(each) for each in value]

    return convert


def _map(item: Converter, where: str) -> Converter:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise WrongData(f"{where} is no object: {str(value)[:60]!r}")
        return [(_text(name), item(each)) for name, each in value.items()]

    return convert


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _long(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value not in _LONGS:
        raise TypeError
    return value


def _double(value: Any) -> float:
    # Decoders write those that JSON does not have as texts.
    if isinstance(value, bool) or (isinstance(value, str) and value not in ("nan", "inf", "-inf")):
        raise TypeError
    return float(value)


def _text(value: Any) -> str:
    # An enum of Protobuf has a number where the schema has no name for it.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # a half of a surrogate pair is no text
    return value


def _json(value: Any) -> str:
    return _text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(_without_nanoseconds(value))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _local_moment(value: Any) -> datetime:
    return datetime.fromisoformat(_without_nanoseconds(value)).replace(tzinfo=None)


def _without_nanoseconds(text: str) -> str:
    """Cut the digits below a microsecond, which neither Python nor a column has."""
    head, dot, fraction = text.partition(".")
    if not dot:
        return text
    digits = fraction.rstrip("Z")
    return f"{head}.{digits[:6]}{fraction[len(digits) :]}" if digits.isdigit() else text


_SCALARS: Final[dict[str, Converter]] = {
    "boolean": _boolean,
    "long": _long,
    "double": _double,
    "string": _text,
    "hex": bytes.fromhex,
    "base64": lambda text: base64.b64decode(text, validate=True),
    "date": date.fromisoformat,
    "timestamp": _moment,
    "local-timestamp": _local_moment,
    "decimal": Decimal,
    "json": _json,
}
