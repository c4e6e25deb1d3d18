"""Avro's binary encoding to Arrow: columns of a reader's schema, of data that another schema has written.

The kernel decodes by the writer's schema into memory of Arrow's layout, and no Python object is made per
value; what the reader's schema adds is done with whole columns: promotions, defaults, the units of times. Two
kinds of schemas are beyond that and are decoded value by value: those with a type inside of itself, which is
text of JSON, and unions of which two types become one of the reader's.

Types become what Spark's own `from_avro` makes of them: a union of several types is a struct of `member0`,
`member1` and so on, an enum is text, a `fixed` bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from ottla.records._kernel import AVRO_FAULTS, AVRO_KINDS, AvroColumn, BinaryInput, read_avro
from ottla.schemas.avro_definition import AvroDefinition, AvroField, AvroType
from ottla.schemas.avro_values import (
    PROMOTIONS,
    AvroDecoder,
    accepts,
    default_of,
    logical_type,
    matches,
    scale_of,
)
from ottla.schemas.columns import MAX_COLUMNS, Expansion
from ottla.schemas.errors import WrongData

if TYPE_CHECKING:
    import pyarrow as pa


# Columns of about this size are handed over, however many rows are left.
BATCH_BYTES: Final = 32 * 1024 * 1024
_MAX_PRECISION: Final = 38
_INT: Final = (-(2**31), 2**31 - 1)
_DAY_MS: Final = 86_400_000
# The years 1 to 9999, in days since 1970.
_DAYS: Final = (-719_162, 2_932_896)
_MILLIS: Final = (_DAYS[0] * _DAY_MS, (_DAYS[1] + 1) * _DAY_MS - 1)
_MICROS: Final = (_MILLIS[0] * 1000, _MILLIS[1] * 1000 + 999)

# Rows that do not parse, and why.
RowErrors: TypeAlias = list[tuple[int, str]]
_Build: TypeAlias = "Callable[[AvroColumn], pa.Array]"


class AvroArrowDecoder:
    """Decodes data of one schema into columns of another, or of the same."""

    def __init__(self, writer: AvroDefinition, reader: AvroDefinition | None = None) -> None:
        """SchemaError if the reader's schema has too many columns."""
        wanted = reader or writer
        self.type: Final = arrow_type(wanted)
        self._plan: _Plan | None = None
        try:
            self._plan = _Compiler().compiled(writer.root, wanted.root, self.type)
        except _Beyond:
            self._slow: Final = _SlowDecoder(AvroDecoder(writer, reader), wanted.root, self.type)

    @property
    def is_columnar(self) -> bool:
        return self._plan is not None

    def decode(self, values: pa.Array, head: int = 0) -> Iterator[tuple[pa.Array, RowErrors]]:
        """Yield the values of a column of bytes, in parts, with the rows of each part that do not parse:
        these are null. `head` bytes before each value are read over.
        """
        if self._plan is None:
            yield self._slow.decode(values, head)
            return
        valid, offsets, data = values.buffers()
        given = BinaryInput(valid, offsets, data, first=values.offset, rows=len(values))
        at = 0
        while at < len(values):
            column = self._plan.column()
            begin = at
            at, faults = read_avro(column, given, at, head, BATCH_BYTES)
            yield self._plan.build(column), [(row - begin, AVRO_FAULTS[fault]) for row, fault in faults]


# Types


def arrow_type(definition: AvroDefinition) -> pa.DataType:
    """The Arrow type of a schema's values. SchemaError if it has too many columns."""
    return _arrow_type(definition.root, 1, Expansion())


def _arrow_type(kind: AvroType, depth: int, expansion: Expansion) -> pa.DataType:
    import pyarrow as pa

    expansion.add_column()
    match kind.kind:
        case "record":
            if not expansion.may_enter(kind.full_name, depth) or not kind.fields:
                return pa.string()
            with expansion.inside(kind.full_name):
                return pa.struct(
                    [
                        pa.field(each.name, _arrow_type(each.type, depth + 1, expansion))
                        for each in kind.fields
                    ]
                )
        case "array":
            assert kind.item is not None
            return pa.list_(pa.field("element", _arrow_type(kind.item, depth, expansion)))
        case "map":
            assert kind.item is not None
            return pa.map_(pa.string(), _arrow_type(kind.item, depth, expansion))
        case "union":
            others = _others(kind)
            if len(others) == 1:
                return _arrow_type(others[0], depth, expansion)
            if not others:
                return pa.string()
            return pa.struct(
                [
                    pa.field(_member(place), _arrow_type(each, depth, expansion))
                    for place, each in enumerate(others)
                ]
            )
    return scalar_type(kind)


def scalar_type(kind: AvroType) -> pa.DataType:
    """The Arrow type of values that have none inside of them."""
    import pyarrow as pa

    logical = logical_type(kind)
    if _is_decimal(kind):
        return pa.decimal128(kind.props["precision"], scale_of(kind))
    if kind.kind == "int" and logical == "date":
        return pa.date32()
    if kind.kind == "long" and logical in ("timestamp-millis", "timestamp-micros"):
        return pa.timestamp("us", tz="UTC")
    if kind.kind == "long" and logical in ("local-timestamp-millis", "local-timestamp-micros"):
        return pa.timestamp("us")
    return {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "fixed": pa.binary(),
    }.get(kind.kind, pa.string())


def _is_decimal(kind: AvroType) -> bool:
    """Whether a type is a decimal that a column can have; one that it cannot have is the bytes below it."""
    precision = kind.props.get("precision")
    return (
        kind.kind in ("bytes", "fixed")
        and logical_type(kind) == "decimal"
        and isinstance(precision, int)
        and 1 <= precision <= _MAX_PRECISION
        and scale_of(kind) <= precision
    )


def _others(union: AvroType) -> list[AvroType]:
    return [each for each in union.branches if each.kind != "null"]


def _member(place: int) -> str:
    return f"member{place}"


# Columns


class _Beyond(Exception):
    """The kernel has no columns for these schemas."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the values of a type are read, and made a column of the reader's type."""

    kind: str
    build: _Build
    children: tuple[_Plan, ...] = ()
    kept: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def column(self) -> AvroColumn:
        children = [each.column() for each in self.children]
        return AvroColumn(AVRO_KINDS[self.kind], children, kept=self.kept, **self.options)


class _Compiler:
    def __init__(self) -> None:
        # Types that are read over, in all and around the next one.
        self._read_over_count = 0
        self._around: Final[list[AvroType]] = []

    def compiled(self, writer: AvroType, reader: AvroType, target: pa.DataType) -> _Plan:
        """The plan of a type, resolved as the specification says. `target` is the reader's type in Arrow."""
        import pyarrow as pa

        if writer.kind == "union":
            return self._union(writer, reader, target)
        if reader.kind == "union":
            return self._into_union(writer, reader, target)
        if not matches(writer, reader) and reader.kind not in PROMOTIONS.get(writer.kind, ()):
            return _refused(target)
        if reader.kind == "record" and not pa.types.is_struct(target):
            raise _Beyond
        match writer.kind:
            case "record":
                return self._record(writer, reader, target)
            case "array":
                return self._list(writer, reader, target)
            case "map":
                return self._map(writer, reader, target)
        return _scalar(writer, reader, target)

    def _record(self, writer: AvroType, reader: AvroType, target: pa.DataType) -> _Plan:
        import pyarrow as pa

        by_name = {each.name: each for each in reader.fields}
        for each in reader.fields:
            for alias in each.aliases:
                by_name.setdefault(alias, each)
        children: list[_Plan] = []
        places: dict[str, int] = {}
        for each in writer.fields:
            found = by_name.get(each.name)
            if found is None or found.name in places:
                children.append(self._read_over(each.type))
            else:
                places[found.name] = len(children)
                children.append(self.compiled(each.type, found.type, target.field(found.name).type))
        defaults: dict[str, pa.Scalar] = {}
        for each in reader.fields:
            if each.name not in places:
                if not each.has_default:
                    return _refused(target)
                defaults[each.name] = _default_scalar(each, target.field(each.name).type)
        plans = tuple(children)

        def build(column: AvroColumn) -> pa.Array:
            arrays = [
                plans[places[each.name]].build(column.children[places[each.name]])
                if each.name in places
                else pa.repeat(defaults[each.name], column.rows)
                for each in reader.fields
            ]
            return pa.Array.from_buffers(target, column.rows, [_validity(column)], children=arrays)

        return _Plan("record", build, plans)

    def _list(self, writer: AvroType, reader: AvroType, target: pa.DataType) -> _Plan:
        import pyarrow as pa

        assert writer.item is not None
        assert reader.item is not None
        item = self.compiled(writer.item, reader.item, target.value_type)

        def build(column: AvroColumn) -> pa.Array:
            buffers = [_validity(column), _buffer(column.buffers()[1])]
            children = [item.build(column.children[0])]
            return pa.Array.from_buffers(target, column.rows, buffers, children=children)

        return _Plan("array", build, (item,))

    def _map(self, writer: AvroType, reader: AvroType, target: pa.DataType) -> _Plan:
        import pyarrow as pa

        assert writer.item is not None
        assert reader.item is not None
        keys = _Plan("string", _array_of(pa.string()))
        item = self.compiled(writer.item, reader.item, target.item_type)
        entry = pa.struct([target.key_field, target.item_field])

        def build(column: AvroColumn) -> pa.Array:
            buffers = [_validity(column), _buffer(column.buffers()[1])]
            names, values = keys.build(column.children[0]), item.build(column.children[1])
            entries = pa.Array.from_buffers(entry, len(names), [None], children=[names, values])
            return pa.Array.from_buffers(target, column.rows, buffers, children=[entries])

        return _Plan("map", build, (keys, item))

    def _union(self, writer: AvroType, reader: AvroType, target: pa.DataType) -> _Plan:
        others = _others(writer)
        reader_others = _others(reader) if reader.kind == "union" else [reader]
        takes_null = reader.kind == "union" and len(reader_others) < len(reader.branches)
        if len(others) == 1 and len(reader_others) == 1:
            inner = self.compiled(others[0], reader_others[0], target)
            place = next((n for n, each in enumerate(writer.branches) if each.kind == "null"), -1)
            options = {"null_branch": place, "branches": len(writer.branches), "may_be_null": takes_null}
            return _Plan(
                "nullable", lambda column: inner.build(column.children[0]), (inner,), options=options
            )
        if len(reader_others) < 2:
            raise _Beyond
        members: dict[int, int] = {}
        children: list[_Plan] = []
        for each in writer.branches:
            found = _branch(each, reader_others)
            if each.kind == "null" and takes_null:
                children.append(_unkept("null"))
            elif found is None:
                children.append(_unkept("refused"))
            elif found in members:
                raise _Beyond
            else:
                members[found] = len(children)
                children.append(self.compiled(each, reader_others[found], target.field(found).type))
        return _Plan("union", _members(target, members, children), tuple(children))

    def _into_union(self, writer: AvroType, reader: AvroType, target: pa.DataType) -> _Plan:
        """A type that is none, for a reader that has a union."""
        others = _others(reader)
        if writer.kind == "null" and len(others) < len(reader.branches):
            return _Plan("null", lambda column: _nulls(column, target))
        found = _branch(writer, others)
        if found is None:
            return _refused(target)
        if len(others) == 1:
            return self.compiled(writer, others[found], target)
        plan = self.compiled(writer, others[found], target.field(found).type)
        # A record of one field is read as what is in it.
        return _Plan("record", _members(target, {found: 0}, [plan]), (plan,))

    def _read_over(self, kind: AvroType) -> _Plan:
        """The plan of what the reader does not have."""
        self._read_over_count += 1
        if kind in self._around or self._read_over_count > MAX_COLUMNS:
            raise _Beyond
        self._around.append(kind)
        try:
            match kind.kind:
                case "record":
                    return _unkept("record", *(self._read_over(each.type) for each in kind.fields))
                case "array":
                    assert kind.item is not None
                    return _unkept("array", self._read_over(kind.item))
                case "map":
                    assert kind.item is not None
                    return _unkept("map", _unkept("string"), self._read_over(kind.item))
                case "union":
                    return _unkept("union", *map(self._read_over, kind.branches))
            options: dict[str, Any] = {}
            if kind.kind == "int":
                options = {"low": _INT[0], "high": _INT[1]}
            elif kind.kind == "fixed":
                options = {"size": kind.size}
            elif kind.kind == "enum":
                options = {"allowed": b"\1" * len(kind.symbols)}
            return _Plan(kind.kind, _no_column, kept=False, options=options)
        finally:
            self._around.pop()


def _members(target: pa.DataType, members: Mapping[int, int], plans: Sequence[_Plan]) -> _Build:
    """What makes the struct of a union; `members` are the places of plans by those of the struct's fields."""
    import pyarrow as pa

    def build(column: AvroColumn) -> pa.Array:
        arrays = [
            plans[members[place]].build(column.children[members[place]])
            if place in members
            else pa.nulls(column.rows, target.field(place).type)
            for place in range(target.num_fields)
        ]
        return pa.Array.from_buffers(target, column.rows, [_validity(column)], children=arrays)

    return build


def _branch(writer: AvroType, others: Sequence[AvroType]) -> int | None:
    """The place of the reader's type that takes a value of the writer's."""
    for place, each in enumerate(others):
        if matches(writer, each):
            return place
    for place, each in enumerate(others):
        if each.kind in PROMOTIONS.get(writer.kind, ()):
            return place
    return None


def _no_column(_: AvroColumn) -> pa.Array:
    raise AssertionError("what is read over has no column")


def _unkept(kind: str, *children: _Plan) -> _Plan:
    return _Plan(kind, _no_column, children, kept=False)


def _refused(kind: pa.DataType) -> _Plan:
    """A type that the reader cannot take: each value of it is an error."""
    return _Plan("refused", lambda column: _nulls(column, kind))


def _nulls(column: AvroColumn, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(column.rows, kind)


def _default_scalar(one: AvroField, kind: pa.DataType) -> pa.Scalar:
    import pyarrow as pa

    convert = _converter(one.type, kind)
    try:
        return pa.array([convert(default_of(one)())], kind)[0]
    except (WrongData, pa.ArrowException, TypeError, ValueError, OverflowError):
        raise _Beyond from None


def _validity(column: AvroColumn) -> pa.Buffer | None:
    valid = column.buffers()[0]
    return None if valid is None else _bits(valid, column.rows)


def _bits(data: Any, rows: int) -> pa.Buffer:
    """A bit for each byte that is not 0."""
    import pyarrow as pa

    whole = pa.Array.from_buffers(pa.uint8(), rows, [None, _buffer(data)])
    return whole.cast(pa.bool_()).buffers()[1]


def _buffer(block: Any) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(block)


def _array_of(kind: pa.DataType) -> _Build:
    """What wraps a column's memory as an array of this type."""
    import pyarrow as pa

    has_offsets = pa.types.is_binary(kind) or pa.types.is_string(kind)

    def build(column: AvroColumn) -> pa.Array:
        _, offsets, data = column.buffers()
        rest = [_buffer(offsets), _buffer(data)] if has_offsets else [_buffer(data)]
        return pa.Array.from_buffers(
            kind, column.rows, [_validity(column), *rest], null_count=column.null_count
        )

    return build


def _scalar(writer: AvroType, reader: AvroType, target: pa.DataType) -> _Plan:
    kind = writer.kind
    if kind == "null":
        return _Plan("null", lambda column: _nulls(column, target))
    if kind == "boolean":
        import pyarrow as pa

        def build_booleans(column: AvroColumn) -> pa.Array:
            bits = _bits(column.buffers()[2], column.rows)
            return pa.Array.from_buffers(target, column.rows, [_validity(column), bits])

        return _Plan("boolean", build_booleans)
    if kind == "enum":
        return _enum(writer, reader)
    if _is_decimal(reader) and kind in ("bytes", "fixed", "string"):
        options = {"size": writer.size if kind == "fixed" else -1, "decimal_limit": 10**target.precision}
        return _Plan("decimal", _array_of(target), options=options)
    if kind in ("bytes", "string", "fixed"):
        as_text = reader.kind == "string"
        read_as = "fixed" if kind == "fixed" else "string" if as_text else "bytes"
        options = {"size": writer.size} if kind == "fixed" else {}
        return _Plan(read_as, _array_of(target), options=options)
    return _number(writer, reader, target)


_STORED: Final = {"int": "int32", "long": "int64", "float": "float32", "double": "float64"}


def _number(writer: AvroType, reader: AvroType, target: pa.DataType) -> _Plan:
    import pyarrow as pa

    kind, logical = writer.kind, logical_type(reader)
    stored = getattr(pa, _STORED[kind])()
    wrap = _array_of(stored)
    options: dict[str, Any] = {}
    if kind == "int":
        options = {"low": _INT[0], "high": _INT[1]}
    if pa.types.is_date32(target):
        options = {"low": _DAYS[0], "high": _DAYS[1]}
        wrap = _array_of(target)
    elif pa.types.is_timestamp(target):
        unit, (low, high) = ("ms", _MILLIS) if logical.endswith("-millis") else ("us", _MICROS)
        in_unit = pa.timestamp(unit, tz=target.tz)
        if kind == "long":
            options = {"low": low, "high": high}
            wrap = _array_of(in_unit)
        else:
            before = wrap

            def wrap(column: AvroColumn) -> pa.Array:
                return before(column).cast(pa.int64()).cast(in_unit)

    def build(column: AvroColumn) -> pa.Array:
        found = wrap(column)
        return found if found.type.equals(target) else found.cast(target, safe=False)

    return _Plan(kind, build, options=options)


def _enum(writer: AvroType, reader: AvroType) -> _Plan:
    import pyarrow as pa

    known = set(reader.symbols)
    symbols = [each if each in known else reader.default for each in writer.symbols]
    texts = pa.array([each or "" for each in symbols], pa.string())
    numbers = _array_of(pa.int32())

    def build(column: AvroColumn) -> pa.Array:
        return pa.DictionaryArray.from_arrays(numbers(column), texts, safe=False).dictionary_decode()

    return _Plan("enum", build, options={"allowed": bytes(each is not None for each in symbols)})


# Value by value


class _SlowDecoder:
    """What the kernel has no columns for."""

    def __init__(self, decoder: AvroDecoder, reader: AvroType, kind: pa.DataType) -> None:
        self._decoder: Final = decoder
        self._type: Final = kind
        self._convert: Final = _converter(reader, kind)

    def decode(self, values: pa.Array, head: int) -> tuple[pa.Array, RowErrors]:
        found: list[Any] = []
        errors: RowErrors = []
        for row, value in enumerate(values.to_pylist()):
            try:
                if value is not None and len(value) < head:
                    raise WrongData("the data end inside of a value")
                found.append(None if value is None else self._convert(self._decoder.decode(value[head:])))
            except (WrongData, TypeError, ValueError, ArithmeticError, RecursionError) as error:
                found.append(None)
                errors.append((row, str(error) or type(error).__name__))
        return fitting_array(found, self._type, errors), errors


def fitting_array(values: list[Any], kind: pa.DataType, errors: RowErrors) -> pa.Array:
    """The values as a column; those that it cannot have are null, and added to the errors."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                values[row] = None
                errors.append((row, str(error)))
        return pa.array(values, kind)


def _converter(kind: AvroType, target: pa.DataType) -> Callable[[Any], Any]:
    """What makes of a value of `AvroDecoder` one that Arrow takes for its type."""
    import pyarrow as pa

    match kind.kind:
        case "record":
            if not pa.types.is_struct(target):
                return as_json
            parts = [(each.name, _converter(each.type, target.field(each.name).type)) for each in kind.fields]
            return lambda value: {name: part(value[name]) for name, part in parts}
        case "array":
            assert kind.item is not None
            item = _converter(kind.item, target.value_type)
            return lambda value: [item(each) for each in value]
        case "map":
            assert kind.item is not None
            inner = _converter(kind.item, target.item_type)
            return lambda value: [(name, inner(each)) for name, each in value.items()]
        case "union":
            return _union_converter(kind, target)
    if pa.types.is_binary(target):
        return lambda value: value.bytes if isinstance(value, UUID) else value
    if pa.types.is_string(target):
        return lambda value: str(value) if isinstance(value, UUID) else value
    return lambda value: value


def _union_converter(kind: AvroType, target: pa.DataType) -> Callable[[Any], Any]:
    others = _others(kind)
    if not others:
        return lambda _: None
    if len(others) == 1:
        only = _converter(others[0], target)
        return lambda value: None if value is None else only(value)
    parts = [(accepts(each), _converter(each, target.field(place).type)) for place, each in enumerate(others)]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        for place, (takes, part) in enumerate(parts):
            if takes(value):
                return {_member(place): part(value)}
        raise WrongData("the value is none of the union")

    return convert


def as_json(value: Any) -> str:
    """A value as text of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_part)


def _json_part(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
