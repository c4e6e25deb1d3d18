"""Avro's binary encoding, by the schema that wrote it: values for people, and back.

Bounded: a value of a few bytes can say that it has billions of items, so lengths are checked against what is
left, and values and depth are counted.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

from ottla.schemas.columns import BOOLEAN, DOUBLE, JSON, LONG, TEXT, ColumnType, Expansion, Fields
from ottla.schemas.columns import MAX_DEPTH as MAX_COLUMN_DEPTH
from ottla.schemas.errors import SchemaError, WrongData

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 200_000
# Some values take no bytes, as null does, and those around a value none of their own.
_VALUES_OF_A_BYTE: Final = 8
_MAX_EMPTY_VALUES: Final = 1_000
_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_INT_RANGE: Final = (-(2**31), 2**31 - 1)
_LONG_RANGE: Final = (-(2**63), 2**63 - 1)


class AvroSchema:
    """A schema, with the types that it names."""

    __slots__ = ("_named", "_root")

    def __init__(self, text: str, references: tuple[str, ...] = ()) -> None:
        """SchemaError if the text is no schema. `references` are schemas that define names for it."""
        self._named: dict[str, Any] = {}
        try:
            for each in references:
                self._resolve(json.loads(each), "", 0)
            document = json.loads(text)
        except (ValueError, RecursionError):
            # A name alone, as `"string"` or `string`, is a schema too.
            document = text.strip()
        self._root = self._resolve(document, "", 0)

    def _resolve(self, schema: Any, namespace: str, depth: int) -> Any:
        """Check a schema, and give each name in it its namespace."""
        if depth > MAX_DEPTH:
            raise SchemaError("the Avro schema is nested too deeply")
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return schema
            full = schema if "." in schema else f"{namespace}.{schema}".lstrip(".")
            for name in (full, schema):
                if name in self._named:
                    return _Reference(name)
            raise SchemaError(f"the Avro schema names the type {schema[:100]!r}, which it does not define")
        if isinstance(schema, list):
            return _Union(tuple(self._resolve(each, namespace, depth + 1) for each in schema))
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError("the Avro schema has a part without a type")
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(kind, schema, namespace, depth)
        if kind == "array":
            return _Array(self._resolve(schema.get("items"), namespace, depth + 1))
        if kind == "map":
            return _Map(self._resolve(schema.get("values"), namespace, depth + 1))
        inner = self._resolve(kind, namespace, depth + 1)
        logical = schema.get("logicalType")
        if isinstance(inner, str) and isinstance(logical, str):
            return _Logical(inner, logical, _scale(schema))
        return inner

    def _named_type(self, kind: str, schema: Mapping[str, Any], namespace: str, depth: int) -> Any:
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise SchemaError(f"the Avro schema has a {kind} without a name")
        full = name if "." in name else f"{schema.get('namespace') or namespace}.{name}".lstrip(".")
        inner = full.rpartition(".")[0]
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list):
                raise SchemaError(f"the Avro enum {name!r} has no symbols")
            self._named[full] = found = _Enum(tuple(str(each) for each in symbols))
            return found
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or size < 0:
                raise SchemaError(f"the Avro type {name!r} has no size")
            logical = schema.get("logicalType")
            self._named[full] = _Fixed(size, logical if isinstance(logical, str) else None, _scale(schema))
            return self._named[full]
        record = self._named[full] = _Record(full)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise SchemaError(f"the Avro record {name!r} has no fields")
        for each in fields:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise SchemaError(f"the Avro record {name!r} has a field without a name")
            record.fields.append(
                (
                    each["name"],
                    self._resolve(each.get("type"), inner, depth + 1),
                    each.get("default", _NO_DEFAULT),
                )
            )
        return record

    def columns(self) -> Fields:
        """The fields of the record that values are, as columns. SchemaError if they are none."""
        root = self._named[self._root.name] if isinstance(self._root, _Reference) else self._root
        if not isinstance(root, _Record):
            raise SchemaError("only an Avro record has columns")
        return self._fields(root, 1, Expansion())

    def _fields(self, record: _Record, depth: int, expansion: Expansion) -> Fields:
        with expansion.inside(record.name):
            return tuple((name, self._column(kind, depth, expansion)) for name, kind, _ in record.fields)

    def _column(self, kind: Any, depth: int, expansion: Expansion) -> ColumnType:
        expansion.add_column()
        if isinstance(kind, _Reference):
            kind = self._named[kind.name]
        if isinstance(kind, str):
            return _COLUMNS.get(kind, JSON)
        if isinstance(kind, _Union):
            others = [each for each in kind.branches if each != "null"]
            return self._column(others[0], depth, expansion) if len(others) == 1 else JSON
        if isinstance(kind, _Enum):
            return TEXT
        if isinstance(kind, _Logical):
            return _logical_column(kind.logical, kind.scale) or _COLUMNS.get(kind.primitive, JSON)
        if isinstance(kind, _Fixed):
            return _logical_column(kind.logical or "", kind.scale) or ColumnType("hex")
        if isinstance(kind, _Array) and depth < MAX_COLUMN_DEPTH:
            return ColumnType("list", item=self._column(kind.items, depth + 1, expansion))
        if isinstance(kind, _Record) and kind.fields and expansion.may_enter(kind.name, depth):
            return ColumnType("struct", self._fields(kind, depth + 1, expansion))
        return JSON

    def decode(self, data: bytes) -> Any:
        """Return the value of a datum as what JSON can have. WrongData if it is none of this schema."""
        reader = _Reader(data, self._named)
        try:
            value = reader.read(self._root, 0, "the value")
        except RecursionError:
            raise WrongData("the value is nested too deeply") from None
        if reader.at != len(data):
            raise WrongData(f"{len(data) - reader.at} bytes are left after the value")
        return value

    def encode(self, value: Any) -> bytes:
        """Return the datum of a value, which has the form that `decode` returns. WrongData says what does not
        fit.
        """
        out = bytearray()
        _Writer(out, self._named).write(self._root, value, 0, "the value")
        return bytes(out)


_COLUMNS: Final = {
    "boolean": BOOLEAN,
    "int": LONG,
    "long": LONG,
    "float": DOUBLE,
    "double": DOUBLE,
    "bytes": ColumnType("hex"),
    "string": TEXT,
}


def _logical_column(logical: str, scale: int) -> ColumnType | None:
    """The column of a logical type; None if that is the one of the type below."""
    if logical == "decimal":
        return ColumnType("decimal", scale=scale) if scale <= 38 else TEXT
    if logical == "date":
        return ColumnType("date")
    if logical in ("timestamp-millis", "timestamp-micros"):
        return ColumnType("timestamp")
    if logical in ("local-timestamp-millis", "local-timestamp-micros"):
        return ColumnType("local-timestamp")
    if logical in ("time-millis", "time-micros", "uuid"):
        return TEXT
    return JSON if logical == "duration" else None


class _NoDefault:
    __slots__ = ()


_NO_DEFAULT: Final = _NoDefault()


@dataclass(frozen=True, slots=True)
class _Reference:
    name: str


@dataclass(frozen=True, slots=True)
class _Union:
    branches: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Array:
    items: Any


@dataclass(frozen=True, slots=True)
class _Map:
    values: Any


@dataclass(frozen=True, slots=True)
class _Enum:
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fixed:
    size: int
    logical: str | None
    scale: int


@dataclass(frozen=True, slots=True)
class _Logical:
    primitive: str
    logical: str
    scale: int


@dataclass(slots=True, eq=False)
class _Record:
    name: str
    # The name, type and default of each.
    fields: list[tuple[str, Any, Any]] = field(default_factory=list)


def _scale(schema: Mapping[str, Any]) -> int:
    scale = schema.get("scale", 0)
    return scale if isinstance(scale, int) and 0 <= scale <= 1000 else 0


class _Reader:
    __slots__ = ("_data", "_left", "_named", "at")

    def __init__(self, data: bytes, named: Mapping[str, Any]) -> None:
        self._data: Final = data
        self._named: Final = named
        self._left = min(MAX_VALUES, len(data) * _VALUES_OF_A_BYTE + _MAX_EMPTY_VALUES)
        self.at = 0

    def read(self, kind: Any, depth: int, where: str) -> Any:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise WrongData("the value has too many parts, or too many levels")
        if isinstance(kind, str):
            return self._primitive(kind, where)
        if isinstance(kind, _Record):
            return {
                name: self.read(each, depth + 1, f"field {name!r}") for name, each, _default in kind.fields
            }
        if isinstance(kind, _Union):
            branch = self._long(where)
            if not 0 <= branch < len(kind.branches):
                raise WrongData(f"{where} has the branch {branch} of a union of {len(kind.branches)}")
            return self.read(kind.branches[branch], depth, where)
        if isinstance(kind, _Reference):
            return self.read(self._named[kind.name], depth, where)
        if isinstance(kind, _Logical):
            return _logical(kind.logical, kind.scale, self._primitive(kind.primitive, where, raw=True))
        if isinstance(kind, _Array):
            return self._items(kind, depth, where)
        if isinstance(kind, _Map):
            return self._entries(kind, depth, where)
        if isinstance(kind, _Enum):
            index = self._long(where)
            if not 0 <= index < len(kind.symbols):
                raise WrongData(f"{where} has the symbol {index} of an enum of {len(kind.symbols)}")
            return kind.symbols[index]
        assert isinstance(kind, _Fixed)
        return _logical(kind.logical or "", kind.scale, self._take(kind.size, where))

    def _items(self, kind: _Array, depth: int, where: str) -> list[Any]:
        items: list[Any] = []
        while count := self._block(where):
            items += (self.read(kind.items, depth + 1, f"an item of {where}") for _ in range(count))
        return items

    def _entries(self, kind: _Map, depth: int, where: str) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while count := self._block(where):
            for _ in range(count):
                name = self._primitive("string", where)
                entries[name] = self.read(kind.values, depth + 1, f"{where}[{name[:40]!r}]")
        return entries

    def _block(self, where: str) -> int:
        """The number of items of the next block; 0 at the end."""
        count = self._long(where)
        if count < 0:
            count = -count
            self._long(where)  # its size, which is not needed
        if count > self._left:
            raise WrongData(f"{where} has {count} items, which are too many")
        return count

    def _primitive(self, kind: str, where: str, *, raw: bool = False) -> Any:
        if kind in ("int", "long"):
            return self._long(where)
        if kind == "string":
            data = self._take(self._long(where), where)
            try:
                return data.decode()
            except UnicodeDecodeError:
                raise WrongData(f"{where} is no text of UTF-8") from None
        if kind == "bytes":
            data = self._take(self._long(where), where)
            return data if raw else data.hex()
        if kind == "boolean":
            value = self._take(1, where)[0]
            if value > 1:
                raise WrongData(f"{where} is {value}, not true or false")
            return bool(value)
        if kind == "null":
            return None
        layout = _FLOAT if kind == "float" else _DOUBLE
        return _finite(layout.unpack(self._take(layout.size, where))[0])

    def _long(self, where: str) -> int:
        shift = found = 0
        while True:
            if self.at >= len(self._data):
                raise WrongData(f"the value ends inside of {where}")
            byte = self._data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7
            if shift > 63:
                raise WrongData(f"{where} has a number with more than 64 bits")

    def _take(self, size: int, where: str) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise WrongData(f"the value ends inside of {where}")
        self.at += size
        return self._data[self.at - size : self.at]


def _finite(number: float) -> Any:
    """JSON has no NaN and no infinities."""
    return number if number - number == 0 else str(number)


def _logical(kind: str, scale: int, value: Any) -> Any:
    """The value of a logical type as people write it; that of an unknown one as its own type."""
    try:
        if kind == "decimal" and isinstance(value, bytes):
            number = int.from_bytes(value, "big", signed=True)
            if len(value) <= 512:
                return str(Decimal(number).scaleb(-scale, Context(prec=2000)))
        elif kind == "date" and isinstance(value, int):
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        elif kind in ("timestamp-millis", "local-timestamp-millis") and isinstance(value, int):
            return _time_text(value * 1000, kind)
        elif kind in ("timestamp-micros", "local-timestamp-micros") and isinstance(value, int):
            return _time_text(value, kind)
        elif kind in ("time-millis", "time-micros") and isinstance(value, int):
            micros = value * 1000 if kind == "time-millis" else value
            return (_EPOCH + timedelta(microseconds=micros)).time().isoformat()
        elif kind == "duration" and isinstance(value, bytes) and len(value) == 12:
            months, days, millis = struct.unpack("<III", value)
            return {"months": months, "days": days, "millis": millis}
    except (OverflowError, ValueError, ArithmeticError):
        pass
    return value.hex() if isinstance(value, bytes) else value


def _time_text(micros: int, kind: str) -> str:
    text = (_EPOCH + timedelta(microseconds=micros)).isoformat()
    return text.removesuffix("+00:00") + ("" if kind.startswith("local-") else "Z")


class _Writer:
    __slots__ = ("_named", "_out")

    def __init__(self, out: bytearray, named: Mapping[str, Any]) -> None:
        self._out = out
        self._named: Final = named

    def write(self, kind: Any, value: Any, depth: int, where: str) -> None:
        if depth > MAX_DEPTH:
            raise WrongData("the value has too many levels")
        if isinstance(kind, _Reference):
            self.write(self._named[kind.name], value, depth, where)
        elif isinstance(kind, str):
            self._primitive(kind, value, where)
        elif isinstance(kind, _Logical):
            self._primitive(kind.primitive, _plain(kind.logical, kind.scale, value, where), where)
        elif isinstance(kind, _Record):
            self._record(kind, value, depth, where)
        elif isinstance(kind, _Union):
            self._union(kind, value, depth, where)
        elif isinstance(kind, _Array):
            _expect(isinstance(value, list), where, "an array")
            if value:
                self._long(len(value), _LONG_RANGE, where)
            for each in value:
                self.write(kind.items, each, depth + 1, f"an item of {where}")
            self._out.append(0)
        elif isinstance(kind, _Map):
            _expect(isinstance(value, dict), where, "an object")
            if value:
                self._long(len(value), _LONG_RANGE, where)
            for name, each in value.items():
                self._primitive("string", name, where)
                self.write(kind.values, each, depth + 1, f"{where}[{name!r}]")
            self._out.append(0)
        elif isinstance(kind, _Enum):
            _expect(value in kind.symbols, where, f"one of {', '.join(kind.symbols[:20])}")
            self._long(kind.symbols.index(value), _LONG_RANGE, where)
        else:
            assert isinstance(kind, _Fixed)
            plain = _plain(kind.logical or "", kind.scale, value, where, size=kind.size)
            data = plain if isinstance(plain, bytes) else _hex(plain, where)
            _expect(len(data) == kind.size, where, f"{kind.size} bytes as hexadecimal digits")
            self._out += data

    def _record(self, kind: _Record, value: Any, depth: int, where: str) -> None:
        _expect(isinstance(value, dict), where, "an object")
        if unknown := [name for name in value if name not in {each[0] for each in kind.fields}]:
            raise WrongData(f"{where} has no field {unknown[0]!r}")
        for name, each, default in kind.fields:
            if name not in value and isinstance(default, _NoDefault):
                raise WrongData(f"{where} lacks the field {name!r}")
            self.write(each, value.get(name, default), depth + 1, f"field {name!r}")

    def _union(self, kind: _Union, value: Any, depth: int, where: str) -> None:
        before, reasons = len(self._out), []
        for index, branch in enumerate(kind.branches):
            self._long(index, _LONG_RANGE, where)
            try:
                self.write(branch, value, depth + 1, where)
                return
            except WrongData as error:
                reasons.append(str(error))
                del self._out[before:]
        raise WrongData("; ".join(reasons[-2:]))

    def _primitive(self, kind: str, value: Any, where: str) -> None:
        if kind in ("int", "long"):
            _expect(isinstance(value, int) and not isinstance(value, bool), where, "a whole number")
            self._long(value, _INT_RANGE if kind == "int" else _LONG_RANGE, where)
        elif kind == "string":
            _expect(isinstance(value, str), where, "text")
            self._bytes(value.encode(), where)
        elif kind == "bytes":
            self._bytes(value if isinstance(value, bytes) else _hex(value, where), where)
        elif kind == "boolean":
            _expect(isinstance(value, bool), where, "true or false")
            self._out.append(value)
        elif kind == "null":
            _expect(value is None, where, "null")
        else:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            _expect(is_number or value in ("nan", "inf", "-inf"), where, "a number")
            try:
                self._out += (_FLOAT if kind == "float" else _DOUBLE).pack(float(value))
            except OverflowError:
                raise WrongData(f"{where} is too large") from None

    def _bytes(self, data: bytes, where: str) -> None:
        self._long(len(data), _LONG_RANGE, where)
        self._out += data

    def _long(self, value: int, bounds: tuple[int, int], where: str) -> None:
        if not bounds[0] <= value <= bounds[1]:
            raise WrongData(f"{where} is out of range: {value}")
        left = (value << 1) ^ (value >> 63)
        while left > 0x7F:
            self._out.append((left & 0x7F) | 0x80)
            left >>= 7
        self._out.append(left)


def _expect(fits: bool, where: str, wanted: str) -> None:
    if not fits:
        raise WrongData(f"{where} has to be {wanted}")


def _hex(value: Any, where: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise WrongData(f"{where} has to be hexadecimal digits") from None


def _plain(kind: str, scale: int, value: Any, where: str, *, size: int | None = None) -> Any:
    """The value of a logical type from its text; other values are those of the type below."""
    if not isinstance(value, str):
        return value
    try:
        if kind == "decimal":
            scaled = Decimal(value).scaleb(scale, Context(prec=2000))
            number = int(scaled)
            if number != scaled:
                raise ValueError
            return number.to_bytes(size or (number.bit_length() + 8) // 8, "big", signed=True)
        if kind == "date":
            return (date.fromisoformat(value) - date(1970, 1, 1)).days
        if "timestamp-" in kind:
            at = datetime.fromisoformat(value)
            micros = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
            return micros // timedelta(microseconds=1000 if kind.endswith("millis") else 1)
    except (ValueError, ArithmeticError):
        raise WrongData(f"{where} is no {kind}: {value[:40]!r}") from None
    return value
