"""Whether data of one Avro schema can be read by another: Avro's rules of schema resolution, with the paths
and words of Java's `SchemaCompatibility`.

A pair of types is compared once, and one inside of itself is compatible unless another part says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ottla.schemas.avro_definition import MAX_DEPTH, AvroField, AvroType

_MAX_PAIRS: Final = 50_000
# A pair that differs is counted wherever it is used, so that few differences could be found endlessly often.
_MAX_PROBLEMS: Final = 100
_PROMOTIONS: Final = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}


class _TooMuchWork(Exception):
    """The schemas are too large, or nested too deeply, to be compared."""


@dataclass(frozen=True, slots=True)
class _Problem:
    kind: str
    message: str
    path: str

    def text(self, reader: str, writer: str) -> str:
        description = {
            "FIXED_SIZE_MISMATCH": f"The size of FIXED type field at path '{self.path}' in the {reader} "
            f"schema does not match with the {writer} schema",
            "TYPE_MISMATCH": f"The type (path '{self.path}') of a field in the {reader} schema does not "
            f"match with the {writer} schema",
            "NAME_MISMATCH": f"The name of the schema has changed (path '{self.path}')",
            "MISSING_ENUM_SYMBOLS": f"The {reader} schema is missing enum symbols '{self.message}' at path "
            f"'{self.path}' in the {writer} schema",
            "MISSING_UNION_BRANCH": f"The {reader} schema is missing a type inside a union field at path "
            f"'{self.path}' in the {writer} schema",
            "READER_FIELD_MISSING_DEFAULT_VALUE": f"The field '{self.message}' at path '{self.path}' in the "
            f"{reader} schema has no default value and is missing in the {writer} schema",
        }[self.kind]
        return f"{{errorType:'{self.kind}', description:'{description}', additionalInfo:'{self.message}'}}"


_Problems = tuple[_Problem, ...]


def avro_differences(reader: AvroType, writer: AvroType, reader_name: str, writer_name: str) -> list[str]:
    """Say why the reader cannot read what the writer wrote; empty if it can."""
    try:
        return [each.text(reader_name, writer_name) for each in _Comparison().root(reader, writer)]
    except (_TooMuchWork, RecursionError):
        return ["The schemas are too large, or nested too deeply, to be compared"]


def _merged(found: _Problems, more: _Problems) -> _Problems:
    return (found + more)[:_MAX_PROBLEMS] if more else found


class _Comparison:
    def __init__(self) -> None:
        # None while the pair is being compared.
        self._known: Final[dict[tuple[int, int], _Problems | None]] = {}
        self._path: list[str] = []
        self._left = _MAX_PAIRS
        self._depth = 0

    @contextmanager
    def _at(self, *parts: str) -> Iterator[None]:
        self._path += parts
        yield
        del self._path[-len(parts) :]

    def _problem(self, kind: str, message: str) -> _Problems:
        path = "/".join(each.replace("~", "~0").replace("/", "~1") for each in self._path)
        return (_Problem(kind, message, f"/{path}"),)

    def root(self, reader: AvroType, writer: AvroType) -> _Problems:
        """Compare a pair with paths that begin at it, as those of branches do."""
        around, self._path = self._path, []
        try:
            return self._compare(reader, writer)
        finally:
            self._path = around

    def _compare(self, reader: AvroType, writer: AvroType) -> _Problems:
        pair = (id(reader), id(writer))
        if pair in self._known:
            return self._known[pair] or ()
        self._left -= 1
        self._depth += 1
        if self._left < 0 or self._depth > MAX_DEPTH * 2:
            raise _TooMuchWork
        self._known[pair] = None
        found = self._known[pair] = self._differences(reader, writer)
        self._depth -= 1
        return found

    def _differences(self, reader: AvroType, writer: AvroType) -> _Problems:
        if reader.kind == writer.kind:
            return self._same_kind(reader, writer)
        if writer.kind == "union":
            found: _Problems = ()
            for index, branch in enumerate(writer.branches):
                with self._at(str(index)):
                    found = _merged(found, self._compare(reader, branch))
            return found
        if reader.kind == "union":
            if any(not self.root(branch, writer) for branch in reader.branches):
                return ()
            return self._missing_branch(writer)
        if writer.kind in _PROMOTIONS.get(reader.kind, ()):
            return ()
        return self._problem(
            "TYPE_MISMATCH",
            f"reader type: {reader.shown_kind} not compatible with writer type: {writer.shown_kind}",
        )

    def _missing_branch(self, writer: AvroType) -> _Problems:
        return self._problem("MISSING_UNION_BRANCH", f"reader union lacking writer type: {writer.shown_kind}")

    def _same_kind(self, reader: AvroType, writer: AvroType) -> _Problems:
        match reader.kind:
            case "array" | "map":
                assert reader.item is not None
                assert writer.item is not None
                with self._at("items" if reader.kind == "array" else "values"):
                    return self._compare(reader.item, writer.item)
            case "fixed":
                return self._names(reader, writer) + self._size(reader, writer)
            case "enum":
                return self._names(reader, writer) + self._symbols(reader, writer)
            case "record":
                return self._names(reader, writer) + self._fields(reader, writer)
            case "union":
                found: _Problems = ()
                for index, branch in enumerate(writer.branches):
                    with self._at(str(index)):
                        if self.root(reader, branch):
                            found = _merged(found, self._missing_branch(branch))
                return found
            case _:
                return ()

    def _names(self, reader: AvroType, writer: AvroType) -> _Problems:
        if reader.name == writer.name or writer.full_name in reader.aliases:
            return ()
        with self._at("name"):
            return self._problem("NAME_MISMATCH", f"expected: {writer.full_name}")

    def _size(self, reader: AvroType, writer: AvroType) -> _Problems:
        if reader.size == writer.size:
            return ()
        with self._at("size"):
            return self._problem("FIXED_SIZE_MISMATCH", f"expected: {writer.size}, found: {reader.size}")

    def _symbols(self, reader: AvroType, writer: AvroType) -> _Problems:
        missing = sorted(set(writer.symbols) - set(reader.symbols))
        if not missing or reader.default is not None:
            return ()
        with self._at("symbols"):
            return self._problem("MISSING_ENUM_SYMBOLS", f"[{', '.join(missing)}]")

    def _fields(self, reader: AvroType, writer: AvroType) -> _Problems:
        by_name = {one.name: one for one in writer.fields}
        found: _Problems = ()
        for index, one in enumerate(reader.fields):
            with self._at("fields", str(index)):
                found = _merged(found, self._field(one, by_name, writer))
        return found

    def _field(self, one: AvroField, by_name: dict[str, AvroField], writer: AvroType) -> _Problems:
        names = dict.fromkeys((one.name, *one.aliases))
        matching = [by_name[name] for name in names if name in by_name]
        if len(matching) > 1:
            # Java's registry refuses it too, by an exception.
            return self._problem(
                "NAME_MISMATCH", f"field {one.name} matches several fields of {writer.full_name}"
            )
        if matching:
            with self._at("type"):
                return self._compare(one.type, matching[0].type)
        if one.has_default:
            return ()
        if one.type.kind == "enum" and one.type.default is not None:
            with self._at("type"):
                return self._compare(one.type, writer)
        return self._problem("READER_FIELD_MISSING_DEFAULT_VALUE", one.name)
