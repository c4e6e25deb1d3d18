"""Avro's binary encoding for programs: Python's own values, and data of one schema as values of another.

`avro` shows values to people; here a decimal is a `Decimal`, a timestamp a `datetime`. A schema is compiled
to functions, one for each type; with the schema of a reader, by the specification's rules of resolution.

Bounded as `avro` is: lengths are checked against what is left, and values that take no bytes are counted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final, TypeAlias
from uuid import UUID

from ottla.schemas.avro_definition import AvroDefinition, AvroField, AvroType
from ottla.schemas.errors import WrongData

_VALUES_OF_A_BYTE: Final = 8
_MAX_EMPTY_VALUES: Final = 1_000
_MAX_DECIMAL_BYTES: Final = 512
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - local timestamps have no zone
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_BITS: Final = {"int": 31, "long": 63}
# What a reader may have where the writer has another primitive.
PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class _Input:
    __slots__ = ("at", "data", "left")

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self.at = 0
        self.left = len(data) * _VALUES_OF_A_BYTE + _MAX_EMPTY_VALUES

    def long(self) -> int:
        data, at, found, shift = self.data, self.at, 0, 0
        try:
            while True:
                byte = data[at]
                at += 1
                found |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 63:
                    raise WrongData("a number has more than 64 bits")
        except IndexError:
            raise WrongData("the data end inside of a number") from None
        if found >> 64:
            raise WrongData("a number has more than 64 bits")
        self.at = at
        return (found >> 1) ^ -(found & 1)

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise WrongData("the data end inside of a value")
        found = self.data[self.at : end]
        self.at = end
        return found

    def count(self, values: int) -> None:
        self.left -= values
        if self.left < 0:
            raise WrongData("the data have too many values")


_Read: TypeAlias = Callable[[_Input], Any]
_Write: TypeAlias = Callable[[bytearray, Any], None]


class AvroDecoder:
    """Reads what was written with one schema; as values of `reader`, if that is given."""

    def __init__(self, writer: AvroDefinition, reader: AvroDefinition | None = None) -> None:
        compiler = _ReaderCompiler()
        self._read: Final = (
            compiler.plain(writer.root) if reader is None else compiler.resolved(writer.root, reader.root)
        )

    def decode(self, data: bytes) -> Any:
        """Return the value. WrongData if the data are none of the schema."""
        given = _Input(data)
        try:
            value = self._read(given)
        except RecursionError:
            raise WrongData("the value is nested too deeply") from None
        if given.at != len(data):
            raise WrongData(f"{len(data) - given.at} bytes are left after the value")
        return value


class AvroEncoder:
    """Writes values of a schema. Records may be dicts, dataclasses or Pydantic models; a value of a union is
    that of the first type that takes it, or a tuple of the type's name and the value.
    """

    def __init__(self, definition: AvroDefinition) -> None:
        self._write: Final = _WriterCompiler().compiled(definition.root)

    def encode(self, value: Any) -> bytes:
        """Return the data. WrongData says what does not fit, and where."""
        out = bytearray()
        try:
            self._write(out, value)
        except RecursionError:
            raise WrongData("the value is nested too deeply") from None
        return bytes(out)


# Read


def logical_type(kind: AvroType) -> str:
    found = kind.props.get("logicalType")
    return found if isinstance(found, str) else ""


def scale_of(kind: AvroType) -> int:
    found = kind.props.get("scale", 0)
    return found if isinstance(found, int) and 0 <= found <= 10_000 else 0


def _native(kind: AvroType) -> Callable[[Any], Any] | None:
    """What makes a value of a logical type of one of the type below it; None if there is none."""
    logical = logical_type(kind)
    if logical == "decimal" and kind.kind in ("bytes", "fixed"):
        scale = scale_of(kind)
        return lambda data: _decimal(data, scale)
    if logical == "uuid" and kind.kind == "string":
        return UUID
    if logical == "uuid" and kind.kind == "fixed" and kind.size == 16:
        return lambda data: UUID(bytes=data)
    return _FROM_NUMBERS.get((kind.kind, logical))


def _decimal(data: bytes, scale: int) -> Decimal:
    if len(data) > _MAX_DECIMAL_BYTES:
        raise WrongData(f"a decimal has {len(data)} bytes")
    number = int.from_bytes(data, "big", signed=True)
    return Decimal(number).scaleb(-scale, Context(prec=2000))


def _time_of(micros: int) -> time:
    if not 0 <= micros < 86_400_000_000:
        raise ValueError("no time of a day")
    return (_EPOCH + timedelta(microseconds=micros)).time()


_FROM_NUMBERS: Final[dict[tuple[str, str], Callable[[Any], Any]]] = {
    ("int", "date"): lambda days: date.fromordinal(days + _EPOCH_DAY),
    ("int", "time-millis"): lambda millis: _time_of(millis * 1000),
    ("long", "time-micros"): _time_of,
    ("long", "timestamp-millis"): lambda millis: _EPOCH + timedelta(milliseconds=millis),
    ("long", "timestamp-micros"): lambda micros: _EPOCH + timedelta(microseconds=micros),
    ("long", "local-timestamp-millis"): lambda millis: _LOCAL_EPOCH + timedelta(milliseconds=millis),
    ("long", "local-timestamp-micros"): lambda micros: _LOCAL_EPOCH + timedelta(microseconds=micros),
}


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WrongData("a string is no UTF-8") from None


def _boolean(given: _Input) -> bool:
    byte = given.take(1)[0]
    if byte > 1:
        raise WrongData(f"a boolean is {byte}")
    return byte == 1


def _int(given: _Input) -> int:
    found = given.long()
    if not -(2**31) <= found < 2**31:
        raise WrongData("an int has more than 32 bits")
    return found


_PRIMITIVES: Final[dict[str, _Read]] = {
    "null": lambda _: None,
    "boolean": _boolean,
    "int": _int,
    "long": _Input.long,
    "float": lambda given: _FLOAT.unpack(given.take(4))[0],
    "double": lambda given: _DOUBLE.unpack(given.take(8))[0],
    "bytes": lambda given: given.take(given.long()),
    "string": lambda given: _text(given.take(given.long())),
}


def _converted(read: _Read, convert: Callable[[Any], Any] | None) -> _Read:
    if convert is None:
        return read

    def converted(given: _Input) -> Any:
        value = read(given)
        try:
            return convert(value)
        except (ArithmeticError, ValueError) as error:
            raise WrongData(f"a value is none of its logical type: {error}") from None

    return converted


def _failing(reason: str) -> _Read:
    def fail(_: _Input) -> Any:
        raise WrongData(reason)

    return fail


class _ReaderCompiler:
    """A type that is inside of itself is compiled once: its function is found when it is called."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], list[_Read]] = {}

    def plain(self, kind: AvroType) -> _Read:
        return self.resolved(kind, kind)

    def resolved(self, writer: AvroType, reader: AvroType) -> _Read:
        key = (id(writer), id(reader))
        cell = self._made.get(key)
        if cell is None:
            cell = self._made[key] = []
            cell.append(self._resolved(writer, reader))
        elif not cell:
            return lambda given: cell[0](given)
        return cell[0]

    def _resolved(self, writer: AvroType, reader: AvroType) -> _Read:
        if writer.kind == "union":
            branches = [
                self.plain(each) if writer is reader else self.resolved(each, reader)
                for each in writer.branches
            ]
            return _union(branches)
        if reader.kind == "union" and writer is not reader:
            found = next((each for each in reader.branches if matches(writer, each)), None) or next(
                (each for each in reader.branches if each.kind in PROMOTIONS.get(writer.kind, ())), None
            )
            if found is None:
                return _failing(f"the reader has no type for the writer's {writer.full_name}")
            return self.resolved(writer, found)
        if writer.kind != reader.kind:
            return self._promoted(writer, reader)
        if not matches(writer, reader):
            return _failing(f"the reader has {reader.full_name} where the writer has {writer.full_name}")
        match writer.kind:
            case "record":
                return self._record(writer, reader)
            case "array":
                assert writer.item is not None
                assert reader.item is not None
                return _array(self.resolved(writer.item, reader.item))
            case "map":
                assert writer.item is not None
                assert reader.item is not None
                return _map(self.resolved(writer.item, reader.item))
            case "enum":
                return _enum(writer, reader)
            case "fixed":
                size = writer.size
                return _converted(lambda given: given.take(size), _native(reader))
        return _converted(_PRIMITIVES[writer.kind], _native(reader))

    def _promoted(self, writer: AvroType, reader: AvroType) -> _Read:
        if reader.kind not in PROMOTIONS.get(writer.kind, ()):
            return _failing(f"the reader has {reader.full_name} where the writer has {writer.full_name}")
        read = _PRIMITIVES[writer.kind]
        if reader.kind in ("float", "double"):
            return lambda given: float(read(given))
        if reader.kind == "long":
            return _converted(read, _native(reader))
        raw = _PRIMITIVES["bytes"]
        if reader.kind == "bytes":
            return _converted(raw, _native(reader))
        return _converted(lambda given: _text(raw(given)), _native(reader))

    def _record(self, writer: AvroType, reader: AvroType) -> _Read:
        by_name = {each.name: each for each in reader.fields}
        for each in reader.fields:
            for alias in each.aliases:
                by_name.setdefault(alias, each)
        steps: list[tuple[str | None, _Read]] = []
        written: set[str] = set()
        for each in writer.fields:
            target = by_name.get(each.name)
            if target is None or target.name in written:
                steps.append((None, self.plain(each.type)))
            else:
                written.add(target.name)
                steps.append((target.name, self.resolved(each.type, target.type)))
        order = [each.name for each in reader.fields]
        defaults: dict[str, Callable[[], Any]] = {}
        for each in reader.fields:
            if each.name not in written:
                if not each.has_default:
                    return _failing(
                        f"the writer's {writer.full_name} has no field {each.name!r}, which has no default"
                    )
                defaults[each.name] = default_of(each)
        is_same_order = not defaults and [name for name, _ in steps if name is not None] == order

        def read(given: _Input) -> Any:
            given.count(1)
            found: dict[str, Any] = {}
            for name, step in steps:
                value = step(given)
                if name is not None:
                    found[name] = value
            if is_same_order:
                return found
            return {name: found[name] if name in found else defaults[name]() for name in order}

        return read


def matches(writer: AvroType, reader: AvroType) -> bool:
    """Whether two types are the same but for what is inside; of names the last part counts."""
    if writer.kind != reader.kind:
        return False
    if writer.kind not in ("record", "enum", "fixed"):
        return True
    names = {reader.name, *(each.rpartition(".")[2] for each in reader.aliases)}
    return writer.name in names and (writer.kind != "fixed" or writer.size == reader.size)


def _union(branches: Sequence[_Read]) -> _Read:
    def read(given: _Input) -> Any:
        branch = given.long()
        if not 0 <= branch < len(branches):
            raise WrongData(f"a union of {len(branches)} has the branch {branch}")
        return branches[branch](given)

    return read


def _block(given: _Input) -> int:
    count = given.long()
    if count < 0:
        count = -count
        given.long()  # its size, which is not needed
    given.count(count)
    return count


def _array(item: _Read) -> _Read:
    def read(given: _Input) -> Any:
        found: list[Any] = []
        while count := _block(given):
            found += [item(given) for _ in range(count)]
        return found

    return read


def _map(item: _Read) -> _Read:
    def read(given: _Input) -> Any:
        found: dict[str, Any] = {}
        while count := _block(given):
            for _ in range(count):
                name = _text(given.take(given.long()))
                found[name] = item(given)
        return found

    return read


def _enum(writer: AvroType, reader: AvroType) -> _Read:
    symbols = [each if each in reader.symbols else reader.default for each in writer.symbols]

    def read(given: _Input) -> Any:
        index = given.long()
        if not 0 <= index < len(symbols):
            raise WrongData(f"an enum of {len(symbols)} has the symbol {index}")
        found = symbols[index]
        if found is None:
            raise WrongData(f"the reader's {reader.full_name} has no symbol {writer.symbols[index]!r}")
        return found

    return read


def encoded_default(one: AvroField) -> bytes:
    """The data of a field's default. WrongData if it is none of its type."""
    out = bytearray()
    _WriterCompiler().compiled(one.type)(out, default_of(one)())
    return bytes(out)


def default_of(one: AvroField) -> Callable[[], Any]:
    """What makes the default of a field, each time a new one. That of a union may be of any of its types."""
    try:
        value = _default(one.type, one.default)
    except (TypeError, KeyError, ValueError, ArithmeticError):
        reason = f"the default of {one.name!r} is none of its type"

        def fail() -> Any:
            raise WrongData(reason)

        return fail
    if not isinstance(value, dict | list):
        return lambda: value
    return lambda: _default(one.type, one.default)


def _default(kind: AvroType, value: Any) -> Any:
    if kind.kind == "union":
        for branch in kind.branches:
            try:
                return _default(branch, value)
            except (TypeError, KeyError, ValueError, ArithmeticError):
                continue
        raise ValueError("no type of the union")
    if kind.kind == "record":
        return {each.name: _default(each.type, value.get(each.name, each.default)) for each in kind.fields}
    if kind.kind == "array":
        assert kind.item is not None
        return [_default(kind.item, each) for each in _checked(value, list)]
    if kind.kind == "map":
        assert kind.item is not None
        return {name: _default(kind.item, each) for name, each in _checked(value, dict).items()}
    if kind.kind in ("bytes", "fixed"):
        found: Any = _checked(value, str).encode("latin-1")
    elif kind.kind in ("float", "double"):
        found = float(value)
    else:
        expected = {"null": type(None), "boolean": bool, "int": int, "long": int}.get(kind.kind, str)
        found = _checked(value, expected)
    convert = _native(kind)
    return found if convert is None else convert(found)


def _checked(value: Any, expected: type[Any]) -> Any:
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} is no {expected.__name__}")
    return value


# Write


def as_mapping(value: Any) -> Mapping[str, Any] | None:
    """The fields of a record: a mapping, a dataclass or a Pydantic model; None if it is none of these."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    names = getattr(type(value), "model_fields", None)
    return {name: getattr(value, name) for name in names} if isinstance(names, Mapping) else None


def _wrong(value: Any, kind: AvroType) -> WrongData:
    logical = logical_type(kind)
    shown = f"{kind.full_name} ({logical})" if logical else kind.full_name
    return WrongData(f"{repr(value)[:80]} is no {shown}")


def _put_long(out: bytearray, value: int) -> None:
    left = (value << 1) ^ (value >> 63)
    while left > 0x7F:
        out.append((left & 0x7F) | 0x80)
        left >>= 7
    out.append(left)


def _put_bytes(out: bytearray, data: bytes) -> None:
    _put_long(out, len(data))
    out += data


class _WriterCompiler:
    def __init__(self) -> None:
        self._made: dict[int, list[_Write]] = {}

    def compiled(self, kind: AvroType) -> _Write:
        cell = self._made.get(id(kind))
        if cell is None:
            cell = self._made[id(kind)] = []
            cell.append(self._compiled(kind))
        elif not cell:
            return lambda out, value: cell[0](out, value)
        return cell[0]

    def _compiled(self, kind: AvroType) -> _Write:
        match kind.kind:
            case "record":
                return self._record(kind)
            case "union":
                return self._union(kind)
            case "array":
                return self._array(kind)
            case "map":
                return self._map(kind)
            case "enum":
                places = {symbol: place for place, symbol in enumerate(kind.symbols)}

                def write_enum(out: bytearray, value: Any) -> None:
                    value = getattr(value, "value", value)  # an Enum of Python
                    place = places.get(value) if isinstance(value, str) else None
                    if place is None:
                        raise _wrong(value, kind)
                    _put_long(out, place)

                return write_enum
            case "fixed":
                return self._fixed(kind)
            case "int" | "long":
                return _whole(kind)
            case "bytes":
                return _bytes(kind)
        return _SIMPLE[kind.kind](kind)

    def _record(self, kind: AvroType) -> _Write:
        steps = [
            (each.name, self.compiled(each.type), default_of(each) if each.has_default else None)
            for each in kind.fields
        ]
        names = frozenset(each.name for each in kind.fields)

        def write(out: bytearray, value: Any) -> None:
            given = as_mapping(value)
            if given is None:
                raise _wrong(value, kind)
            if not names.issuperset(given):
                unknown = next(each for each in given if each not in names)
                raise WrongData(f"{kind.full_name} has no field {unknown!r}")
            for name, step, default in steps:
                if name in given:
                    each = given[name]
                elif default is not None:
                    each = default()
                else:
                    raise WrongData(f"{kind.full_name} lacks the field {name!r}")
                try:
                    step(out, each)
                except WrongData as error:
                    raise WrongData(f"{name}: {error}") from None

        return write

    def _array(self, kind: AvroType) -> _Write:
        assert kind.item is not None
        item = self.compiled(kind.item)

        def write(out: bytearray, value: Any) -> None:
            if not isinstance(value, list | tuple):
                raise _wrong(value, kind)
            if value:
                _put_long(out, len(value))
                for each in value:
                    item(out, each)
            out.append(0)

        return write

    def _map(self, kind: AvroType) -> _Write:
        assert kind.item is not None
        item = self.compiled(kind.item)

        def write(out: bytearray, value: Any) -> None:
            if not isinstance(value, Mapping):
                raise _wrong(value, kind)
            if value:
                _put_long(out, len(value))
                for name, each in value.items():
                    if not isinstance(name, str):
                        raise WrongData(f"{name!r} is no name in a map")
                    _put_bytes(out, name.encode())
                    item(out, each)
            out.append(0)

        return write

    def _union(self, kind: AvroType) -> _Write:
        branches = [(each.full_name, accepts(each), self.compiled(each)) for each in kind.branches]

        def write(out: bytearray, value: Any) -> None:
            if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
                for place, (name, _, step) in enumerate(branches):
                    if value[0] in (name, name.rpartition(".")[2]):
                        _put_long(out, place)
                        step(out, value[1])
                        return
            begin, reason = len(out), None
            for place, (_, accepts, step) in enumerate(branches):
                if accepts(value):
                    _put_long(out, place)
                    try:
                        step(out, value)
                        return
                    except WrongData as error:
                        reason = error
                        del out[begin:]
            names = ", ".join(name for name, _, _ in branches)
            raise reason or WrongData(f"{repr(value)[:80]} is none of the union {names}")

        return write

    def _fixed(self, kind: AvroType) -> _Write:
        logical, size, scale = logical_type(kind), kind.size, scale_of(kind)

        def write(out: bytearray, value: Any) -> None:
            if logical == "decimal" and isinstance(value, Decimal):
                value = _unscaled(value, kind, scale, size)
            elif logical == "uuid" and isinstance(value, UUID):
                value = value.bytes
            if not isinstance(value, bytes | bytearray | memoryview) or len(value) != size:
                raise _wrong(value, kind)
            out += value

        return write


def _unscaled(value: Decimal, kind: AvroType, scale: int, size: int | None) -> bytes:
    exact = Context(prec=2000, traps=[Inexact, InvalidOperation])
    try:
        number = int(value.scaleb(scale, exact).quantize(Decimal(1), context=exact))
    except (ArithmeticError, ValueError):
        raise WrongData(f"{value} has more than {scale} digits after the point") from None
    precision = kind.props.get("precision")
    if isinstance(precision, int) and len(str(abs(number))) > precision:
        raise WrongData(f"{value} has more than {precision} digits")
    try:
        return number.to_bytes(size or (number.bit_length() + 8) // 8, "big", signed=True)
    except OverflowError:
        raise _wrong(value, kind) from None


def _bytes(kind: AvroType) -> _Write:
    is_decimal, scale = logical_type(kind) == "decimal", scale_of(kind)

    def write(out: bytearray, value: Any) -> None:
        if is_decimal and isinstance(value, Decimal):
            value = _unscaled(value, kind, scale, None)
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _wrong(value, kind)
        _put_bytes(out, bytes(value))

    return write


def _since(at: datetime, *, is_local: bool) -> timedelta:
    if is_local:
        if at.tzinfo is not None:
            raise WrongData(f"{at} has a time zone, which a local timestamp has not")
        return at - _LOCAL_EPOCH
    if at.tzinfo is None:
        raise WrongData(f"{at} has no time zone: say which with tzinfo, as datetime.now(UTC)")
    return at - _EPOCH


def _number_of(value: Any, logical: str) -> Any:
    """The number of a value of a logical type; what is none of it stays as it is."""
    if logical == "date" and isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - _EPOCH_DAY
    if "timestamp-" in logical and isinstance(value, datetime):
        unit = timedelta(milliseconds=1) if logical.endswith("-millis") else timedelta(microseconds=1)
        found = _since(value, is_local=logical.startswith("local-")) // unit
        return found * 1000 if logical.endswith("-nanos") else found
    if logical.startswith("time-") and isinstance(value, time):
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        return micros // 1000 if logical == "time-millis" else micros
    return value


def _whole(kind: AvroType) -> _Write:
    bound, logical = 2 ** _BITS[kind.kind], logical_type(kind)

    def write(out: bytearray, value: Any) -> None:
        if logical:
            value = _number_of(value, logical)
        if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
            raise _wrong(value, kind)
        _put_long(out, value)

    return write


def _null(kind: AvroType) -> _Write:
    def write(_: bytearray, value: Any) -> None:
        if value is not None:
            raise _wrong(value, kind)

    return write


def _boolean_writer(kind: AvroType) -> _Write:
    def write(out: bytearray, value: Any) -> None:
        if not isinstance(value, bool):
            raise _wrong(value, kind)
        out.append(value)

    return write


def _floating(kind: AvroType) -> _Write:
    layout = _FLOAT if kind.kind == "float" else _DOUBLE

    def write(out: bytearray, value: Any) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _wrong(value, kind)
        try:
            out += layout.pack(value)
        except OverflowError:
            raise _wrong(value, kind) from None

    return write


def _string(kind: AvroType) -> _Write:
    is_uuid = logical_type(kind) == "uuid"

    def write(out: bytearray, value: Any) -> None:
        if is_uuid and isinstance(value, UUID):
            value = str(value)
        value = getattr(value, "value", value)  # an Enum of Python
        if not isinstance(value, str):
            raise _wrong(value, kind)
        try:
            _put_bytes(out, value.encode())
        except UnicodeEncodeError:
            raise _wrong(value, kind) from None

    return write


_SIMPLE: Final[dict[str, Callable[[AvroType], _Write]]] = {
    "null": _null,
    "boolean": _boolean_writer,
    "float": _floating,
    "double": _floating,
    "string": _string,
}


def accepts(kind: AvroType) -> Callable[[Any], bool]:
    """Whether a value may be of a type of a union, by its class alone."""
    logical = logical_type(kind)
    match kind.kind:
        case "null":
            return lambda value: value is None
        case "boolean":
            return lambda value: isinstance(value, bool)
        case "int" | "long":
            times = (int, date, time) if logical else (int,)
            return lambda value: isinstance(value, times) and not isinstance(value, bool)
        case "float" | "double":
            return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
        case "string" | "enum":
            return lambda value: isinstance(getattr(value, "value", value), str | UUID)
        case "bytes" | "fixed":
            return lambda value: isinstance(value, bytes | bytearray | memoryview | Decimal | UUID)
        case "array":
            return lambda value: isinstance(value, list | tuple)
        case "map":
            return lambda value: isinstance(value, Mapping)
    return lambda value: as_mapping(value) is not None
