"""Arrow to Avro's binary encoding: the kernel walks the memory of whole columns.

What columns cannot be written by it, or has a value that does not fit, is left to `AvroEncoder`, which takes
values one by one and says which one it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.records._kernel import AVRO_KINDS, AvroSource, write_avro
from ottla.schemas.avro_arrow import scalar_type
from ottla.schemas.avro_definition import AvroDefinition, AvroField, AvroType
from ottla.schemas.avro_values import encoded_default, logical_type
from ottla.schemas.errors import WrongData

if TYPE_CHECKING:
    import pyarrow as pa


class _Beyond(Exception):
    """The kernel does not write such a column as such a type."""


class AvroArrowEncoder:
    """Writes columns as values of a schema."""

    def __init__(self, definition: AvroDefinition) -> None:
        self._root: Final = definition.root
        self._defaults: Final[dict[int, bytes]] = {}

    def encode(self, values: pa.Array, prefix: bytes = b"") -> pa.Array | None:
        """Return a column of bytes, each after `prefix`, null where a value is; None if there is a value that
        does not fit, or a column that the kernel does not write.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            written = write_avro(self._source(self._root, values), prefix, len(values))
        except (_Beyond, pa.ArrowException, WrongData, RecursionError):
            return None
        if written is None:
            return None
        valid = pc.is_valid(values).buffers()[1] if values.null_count else None
        buffers = [valid, pa.py_buffer(written[0]), pa.py_buffer(written[1])]
        return pa.Array.from_buffers(pa.binary(), len(values), buffers)

    def _source(self, kind: AvroType, values: pa.Array) -> AvroSource:
        """The values as those of a type. _Beyond or pyarrow's error if they cannot be."""
        match kind.kind:
            case "union":
                return self._union(kind, values)
            case "record":
                return self._record(kind, values)
            case "array" | "map":
                return self._items(kind, values)
            case "enum":
                return _enum(kind, values)
        return _scalar(kind, values)

    def _record(self, kind: AvroType, values: pa.Array) -> AvroSource:
        import pyarrow as pa

        if not pa.types.is_struct(values.type):
            raise _Beyond
        names = [each.name for each in values.type]
        if not {each.name for each in kind.fields}.issuperset(names):
            raise _Beyond
        children = [
            self._source(each.type, values.field(each.name))
            if each.name in names
            else self._default(each, len(values))
            for each in kind.fields
        ]
        return AvroSource(
            AVRO_KINDS["record"], children, values.buffers()[0], first=values.offset, rows=len(values)
        )

    def _default(self, one: AvroField, rows: int) -> AvroSource:
        if not one.has_default:
            raise _Beyond
        found = self._defaults.get(id(one))
        if found is None:
            found = self._defaults[id(one)] = encoded_default(one)
        return AvroSource(AVRO_KINDS["null"], [], rows=rows, branches=found)

    def _items(self, kind: AvroType, values: pa.Array) -> AvroSource:
        import pyarrow as pa

        assert kind.item is not None
        valid, offsets = values.buffers()[:2]
        place = {"first": values.offset, "rows": len(values)}
        if kind.kind == "array" and pa.types.is_list(values.type):
            children = [self._source(kind.item, values.values)]
        elif kind.kind == "map" and pa.types.is_map(values.type):
            children = [_scalar(_STRING, values.keys), self._source(kind.item, values.items)]
        else:
            raise _Beyond
        return AvroSource(AVRO_KINDS[kind.kind], children, valid, offsets or pa.py_buffer(bytes(4)), **place)

    def _union(self, kind: AvroType, values: pa.Array) -> AvroSource:
        import pyarrow as pa

        others = [(place, each) for place, each in enumerate(kind.branches) if each.kind != "null"]
        null_branch = next((place for place, each in enumerate(kind.branches) if each.kind == "null"), -1)
        rows = {"valid": values.buffers()[0], "first": values.offset, "rows": len(values)}
        if len(others) == 1 and null_branch >= 0:
            [(branch, one)] = others
            return AvroSource(
                AVRO_KINDS["nullable"],
                [self._source(one, values)],
                null_branch=null_branch,
                branch=branch,
                **rows,
            )
        names = [f"member{place}" for place in range(len(others))]
        if not pa.types.is_struct(values.type) or [each.name for each in values.type] != names:
            raise _Beyond
        children = [
            self._source(one, values.field(name)) for name, (_, one) in zip(names, others, strict=True)
        ]
        places = bytes(place for place, _ in others)
        return AvroSource(AVRO_KINDS["union"], children, null_branch=null_branch, branches=places, **rows)


_STRING: Final = AvroType("string")


def _enum(kind: AvroType, values: pa.Array) -> AvroSource:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(values.type):
        raise _Beyond
    numbers = pc.index_in(values, value_set=pa.array(kind.symbols, pa.string()))
    if numbers.null_count != values.null_count:
        raise _Beyond
    return _wrapped("enum", numbers)


def _scalar(kind: AvroType, values: pa.Array) -> AvroSource:
    import pyarrow as pa

    target = scalar_type(kind)
    given = values.type
    if kind.kind == "null":
        raise _Beyond
    if pa.types.is_decimal(target):
        if not pa.types.is_decimal(given):
            raise _Beyond
        size = kind.size if kind.kind == "fixed" else -1
        return _wrapped("decimal", values.cast(target), size=size)
    if pa.types.is_timestamp(target):
        return _time(kind, target, values)
    if not _is_wider(given, target):
        raise _Beyond
    found = values if given.equals(target) else values.cast(target)
    options = {"size": kind.size} if kind.kind == "fixed" else {}
    return _wrapped(kind.kind, found, **options)


def _time(kind: AvroType, target: pa.DataType, values: pa.Array) -> AvroSource:
    import pyarrow as pa
    import pyarrow.compute as pc

    given = values.type
    if not pa.types.is_timestamp(given) or (given.tz is None) != (target.tz is None) or given.unit != "us":
        raise _Beyond
    if logical_type(kind).endswith("-millis"):
        values = pc.floor_temporal(values, unit="millisecond").cast(pa.timestamp("ms", tz=given.tz))
    return _wrapped("long", values)


def _is_wider(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether each value of a type is one of another, or Arrow says which is not."""
    import pyarrow as pa

    if given.equals(target):
        return True
    if pa.types.is_integer(target):
        return bool(pa.types.is_integer(given))
    return bool(pa.types.is_float64(target) and pa.types.is_float32(given))


def _wrapped(kind: str, values: pa.Array, **options: Any) -> AvroSource:
    import pyarrow as pa

    valid, *rest = values.buffers()
    offsets, data = rest if len(rest) == 2 else (None, rest[0])
    nothing = pa.py_buffer(bytes(4))
    return AvroSource(
        AVRO_KINDS[kind],
        [],
        valid,
        offsets if len(rest) == 1 else offsets or nothing,
        data if len(rest) == 2 else data or nothing,
        first=values.offset,
        rows=len(values),
        **options,
    )
