"""Whether data of one Protobuf schema can be read by another, as Confluent's registry classifies changes.

What Protobuf itself reads (other fields, other names, types with the same encoding) is compatible; a change
of the meaning of bytes, of a package, of what a `oneof` excludes, or a message that is gone, is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.schemas.protobuf_definition import ProtobufDefinition, ProtobufType, entry_types
from ottla.schemas.protobuf_file import SCALARS, EnumElement, FieldElement, MessageElement, map_types

_MAX_STEPS: Final = 200_000
_MAX_PROBLEMS: Final = 100
_ENCODINGS: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool"), "number"),
    **dict.fromkeys(("sint32", "sint64"), "signed"),
    **dict.fromkeys(("string", "bytes"), "text"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
    "float": "float",
    "double": "double",
}
_DESCRIPTIONS: Final = {
    "PACKAGE_CHANGED": "The package at '{path}' in the {reader} schema does not match the package in the "
    "{writer} schema",
    "MESSAGE_REMOVED": "The {reader} schema is missing a MESSAGE type at path '{path}' in the "
    "{writer} schema",
    "FIELD_KIND_CHANGED": "The type of a field at path '{path}' in the {reader} schema does not match the "
    "{writer} schema",
    "FIELD_SCALAR_KIND_CHANGED": "The kind of a SCALAR field at path '{path}' in the {reader} schema does not"
    " match its kind in the {writer} schema",
    "FIELD_NAMED_TYPE_CHANGED": "The type of a MESSAGE field at path '{path}' in the {reader} schema does not"
    " match its type in the {writer} schema",
    "FIELD_NUMERIC_LABEL_CHANGED": "The label for a NUMERIC field at path '{path}' in the {reader} schema"
    " does not match its label in the {writer} schema",
    "REQUIRED_FIELD_ADDED": "A required field  at path '{path}' in the {reader} schema is missing in the "
    "{writer} schema",
    "REQUIRED_FIELD_REMOVED": "The {reader} schema is missing a required field at path: '{path}' in the "
    "{writer} schema",
    "ONEOF_FIELD_REMOVED": "The {reader} schema is missing a oneof field at path '{path}' in the {writer}"
    " schema",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": "Multiple fields in the oneof at path '{path}' in the {reader} schema"
    " are outside a oneof in the {writer} schema",
    "FIELD_MOVED_TO_EXISTING_ONEOF": "A field in the oneof at path '{path}' in the {reader} schema is"
    " outside an existing oneof in the {writer} schema",
}


class _TooManySteps(Exception):
    """The schemas are too large to be compared."""


def protobuf_differences(
    reader: ProtobufDefinition, writer: ProtobufDefinition, reader_name: str, writer_name: str
) -> list[str]:
    """Say why the reader cannot read what the writer wrote; empty if it can."""
    comparison = _Comparison(reader, writer)
    try:
        comparison.files()
    except (_TooManySteps, RecursionError):
        return ["The schemas are too large, or nested too deeply, to be compared"]
    return [
        f'{{errorType:"{kind}", description:"'
        + _DESCRIPTIONS[kind].format(path=path, reader=reader_name, writer=writer_name)
        + '"}'
        for kind, path in comparison.problems
    ]


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where names are looked up, and how messages name the place."""

    original: str
    update: str
    path: tuple[str, ...] = ()

    def inside(self, name: str) -> _Scope:
        return _Scope(_joined(self.original, name), _joined(self.update, name), (*self.path, name))

    def at(self, *parts: str) -> _Scope:
        return _Scope(self.original, self.update, (*self.path, *parts))


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


class _Comparison:
    """`original` is the schema that wrote the data, `update` the one that is to read them."""

    def __init__(self, update: ProtobufDefinition, original: ProtobufDefinition) -> None:
        self._update: Final = update
        self._original: Final = original
        self._left = _MAX_STEPS
        self.problems: list[tuple[str, str]] = []
        # Messages of imported files, by identity, with whether they are compatible. None: being compared.
        self._imported: Final[dict[tuple[int, int], bool | None]] = {}

    def _add(self, kind: str, scope: _Scope) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append((kind, f"#/{'/'.join(scope.path)}"))

    def files(self) -> None:
        original, update = self._original.file, self._update.file
        scope = _Scope(original.package or "", update.package or "")
        if (original.package or None) != (update.package or None):
            self._add("PACKAGE_CHANGED", scope)
        self._types(original.types, update.types, scope)

    def _types(
        self,
        original: Sequence[MessageElement | EnumElement],
        update: Sequence[MessageElement | EnumElement],
        scope: _Scope,
    ) -> None:
        updates = {each.name: each for each in update if isinstance(each, MessageElement)}
        for each in original:
            if not isinstance(each, MessageElement):
                continue
            inside = scope.inside(each.name)
            found = updates.get(each.name)
            if found is not None:
                self._message(each, found, inside)
            elif not each.is_map_entry:
                self._add("MESSAGE_REMOVED", inside)

    def _message(self, original: MessageElement, update: MessageElement, scope: _Scope) -> None:
        self._left -= 1 + len(original.fields) + len(update.fields)
        if self._left < 0:
            raise _TooManySteps
        old, old_oneofs = _fields(original)
        new, new_oneofs = _fields(update)
        self._oneofs(update, old, old_oneofs, scope)
        surviving = {old_oneofs[number] for number in new if number in old_oneofs}
        still_there = {each.name for each in update.oneofs} | surviving
        for number in sorted(old.keys() | new.keys()):
            at = scope.at(*([new_oneofs[number]] if number in new_oneofs else []), str(number))
            if number not in new:
                if number not in old_oneofs:
                    if old[number].label == "required":
                        self._add("REQUIRED_FIELD_REMOVED", at)
                elif old_oneofs[number] in still_there:
                    self._add("ONEOF_FIELD_REMOVED", scope.at(old_oneofs[number], str(number)))
            elif number not in old:
                if new[number].label == "required":
                    self._add("REQUIRED_FIELD_ADDED", at)
            else:
                self._field(old[number], new[number], at)
        self._types(original.types, update.types, scope)

    def _oneofs(
        self, update: MessageElement, old: dict[int, FieldElement], old_oneofs: dict[int, str], scope: _Scope
    ) -> None:
        """Find fields that could be set together and now exclude each other."""
        for oneof in update.oneofs:
            moved = [one.number for one in oneof.fields if one.number in old and one.number not in old_oneofs]
            origins = {old_oneofs[one.number] for one in oneof.fields if one.number in old_oneofs}
            if len(moved) + len(origins) > 1:
                several = len(moved) > 1
                kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if several else "FIELD_MOVED_TO_EXISTING_ONEOF"
                self._add(kind, scope.at(oneof.name))

    def _field(self, old: FieldElement, new: FieldElement, scope: _Scope) -> None:
        self._kinds(old.type, new.type, scope, (old.label, new.label))

    def _kinds(self, old: str, new: str, scope: _Scope, labels: tuple[str | None, str | None]) -> None:
        old_type = None if old in SCALARS else self._original.resolve(old, scope.original)
        new_type = None if new in SCALARS else self._update.resolve(new, scope.update)
        old_map = map_types(old) or (None if old_type is None else entry_types(old_type.element))
        new_map = map_types(new) or (None if new_type is None else entry_types(new_type.element))
        old_encoding = "map" if old_map else _encoding(old, old_type)
        new_encoding = "map" if new_map else _encoding(new, new_type)
        if old_map and new_map:
            for one, other in zip(old_map, new_map, strict=True):
                self._kinds(one, other, scope, (None, None))
        elif (old_encoding in ("map", "message")) != (new_encoding in ("map", "message")) or (
            "map" in (old_encoding, new_encoding)
        ):
            self._add("FIELD_KIND_CHANGED", scope)
        elif old_encoding == "message":
            self._messages(old, new, old_type, new_type, scope)
        elif old_encoding != new_encoding:
            self._add("FIELD_SCALAR_KIND_CHANGED", scope)
        elif None not in labels and labels[0] != labels[1] and old_encoding != "text":
            self._add("FIELD_NUMERIC_LABEL_CHANGED", scope)

    def _messages(
        self, old: str, new: str, old_type: ProtobufType | None, new_type: ProtobufType | None, scope: _Scope
    ) -> None:
        if old_type is None or new_type is None:
            is_same = old == new
        elif old_type.local_name != new_type.local_name:
            is_same = False
        else:
            is_local = old_type.file is self._original.file and new_type.file is self._update.file
            is_same = is_local or self._is_same_import(old_type, new_type)
        if not is_same:
            self._add("FIELD_NAMED_TYPE_CHANGED", scope)

    def _is_same_import(self, old: ProtobufType, new: ProtobufType) -> bool:
        """Compare messages of which at least one is of another file."""
        if old.element is new.element or old.file is new.file:
            return True
        if isinstance(old.element, EnumElement) or isinstance(new.element, EnumElement):
            return False
        pair = (id(old.element), id(new.element))
        if pair in self._imported:
            return self._imported[pair] is not False
        self._imported[pair] = None
        before = len(self.problems)
        path = tuple(old.local_name.split("."))
        self._message(old.element, new.element, _Scope(old.full_name, new.full_name, path))
        self._imported[pair] = is_same = len(self.problems) == before < _MAX_PROBLEMS
        return is_same


def _encoding(kind: str, found: ProtobufType | None) -> str:
    if kind in _ENCODINGS:
        return _ENCODINGS[kind]
    return "number" if found is not None and isinstance(found.element, EnumElement) else "message"


def _fields(message: MessageElement) -> tuple[dict[int, FieldElement], dict[int, str]]:
    """Return the fields by number, and the names of the `oneof` of those that have one."""
    found = {one.number: one for one in message.fields}
    oneofs: dict[int, str] = {}
    for oneof in message.oneofs:
        for one in oneof.fields:
            found[one.number] = one
            oneofs[one.number] = oneof.name
    return found, oneofs
