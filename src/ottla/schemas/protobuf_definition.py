"""Protobuf schemas as registries keep them: a file with those that it imports, and the names of their types.

A text is a `.proto` file, or the descriptor of one in base64, as Python's serializers register it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Final

from ottla.schemas.errors import WrongData
from ottla.schemas.parsed import InvalidSchemaError, ParsedSchema, SchemaType
from ottla.schemas.protobuf_descriptor import read_descriptor, write_descriptor
from ottla.schemas.protobuf_file import (
    SCALARS,
    EnumElement,
    ExtendElement,
    FieldElement,
    FileElement,
    GroupElement,
    MessageElement,
    OneOfElement,
    OptionElement,
    OptionValue,
    Range,
    RpcElement,
    map_types,
    parse_file,
    print_file,
)

_MAX_TYPES: Final = 20_000
# What a file may import without a reference: only their names matter here.
_KNOWN_MESSAGES: Final = {
    "google.protobuf": """Any Api Method Mixin Duration Empty FieldMask SourceContext Struct Value ListValue
        Timestamp Type Field Enum EnumValue Option DoubleValue FloatValue Int64Value UInt64Value Int32Value
        UInt32Value BoolValue StringValue BytesValue FileDescriptorSet FileDescriptorProto DescriptorProto
        ExtensionRangeOptions FieldDescriptorProto OneofDescriptorProto EnumDescriptorProto
        EnumValueDescriptorProto ServiceDescriptorProto MethodDescriptorProto FileOptions MessageOptions
        FieldOptions OneofOptions EnumOptions EnumValueOptions ServiceOptions MethodOptions
        UninterpretedOption FeatureSet FeatureSetDefaults SourceCodeInfo GeneratedCodeInfo""",
    "google.type": """Color Date DateTime TimeZone Decimal Expr Fraction Interval LatLng Money PhoneNumber
        PostalAddress Quaternion TimeOfDay""",
    "confluent": "Meta",
    "confluent.type": "Decimal Variant",
}
_KNOWN_ENUMS: Final = {
    "google.protobuf": "NullValue Syntax Edition",
    "google.type": "CalendarPeriod DayOfWeek Month",
}


@dataclass(frozen=True, slots=True)
class ProtobufType:
    """A message or enum of a file, or of one that it imports."""

    full_name: str
    package: str
    element: MessageElement | EnumElement
    file: FileElement

    @property
    def local_name(self) -> str:
        """The name without the package."""
        return self.full_name[len(self.package) + 1 :] if self.package else self.full_name


def _known_types() -> dict[str, ProtobufType]:
    found: dict[str, ProtobufType] = {}
    file = FileElement()
    for kind, names in ((MessageElement, _KNOWN_MESSAGES), (EnumElement, _KNOWN_ENUMS)):
        for package, listed in names.items():
            for name in listed.split():
                full = f"{package}.{name}"
                found[full] = ProtobufType(full, package, kind(name), file)
    return found


_KNOWN: Final = _known_types()


class ProtobufDefinition(ParsedSchema):
    """A Protobuf schema, with the types that it and its imports define."""

    __slots__ = ("_extensions", "dependencies", "file", "types")
    schema_type: ClassVar[SchemaType] = SchemaType.PROTOBUF

    def __init__(self, file: FileElement, dependencies: Mapping[str, ProtobufDefinition]) -> None:
        super().__init__(print_file(file))
        self.file: Final = file
        self.dependencies: Final = dependencies
        """By the names of imports, also those of imports."""
        self.types: Final[dict[str, ProtobufType]] = {}
        self._extensions: Final[set[str]] = set()
        for each in (*dependencies.values(), self):
            package = each.file.package or ""
            self._collect(each.file, each.file.types, package, package)
            self._collect_extensions(each.file.extends, package)

    def _collect(
        self,
        file: FileElement,
        elements: Sequence[MessageElement | EnumElement],
        package: str,
        scope: str,
    ) -> None:
        for each in elements:
            name = f"{scope}.{each.name}" if scope else each.name
            self.types[name] = ProtobufType(name, package, each, file)
            if len(self.types) > _MAX_TYPES:
                raise InvalidSchemaError(f"the Protobuf schema has more than {_MAX_TYPES} types")
            if isinstance(each, MessageElement):
                self._collect_extensions(each.extends, name)
                self._collect(file, each.types, package, name)

    def _collect_extensions(self, extends: Sequence[ExtendElement], scope: str) -> None:
        for extend in extends:
            self._extensions.update(f"{scope}.{one.name}" if scope else one.name for one in extend.fields)

    def resolve(self, name: str, scope: str) -> ProtobufType | None:
        """Return the type that a name means inside of a package or message; None if there is none."""
        for candidate in _candidates(name, scope):
            found = self.types.get(candidate) or _KNOWN.get(candidate)
            if found is not None:
                return found
        return None

    def resolve_extension(self, name: str, scope: str) -> str | None:
        """Return the full name of a field of an extension."""
        return next((each for each in _candidates(name, scope) if each in self._extensions), None)

    def normalized_text(self) -> str:
        """Return the text with full names, and in the order of numbers and names."""
        return print_file(_Normalization(self).file())

    def top_level_fields(self) -> frozenset[str]:
        messages = [each for each in self.file.types if isinstance(each, MessageElement)]
        return frozenset(field.name for each in messages for field in _all_fields(each))

    def formatted_text(self, name: str) -> str:
        if name == "serialized":
            return base64.b64encode(write_descriptor(self.file, self._full_name)).decode()
        if name == "ignore_extensions":
            file: FileElement = _without_extensions(self.file)
            return print_file(file)
        return super().formatted_text(name)

    def _full_name(self, name: str, scope: str) -> tuple[str, bool] | None:
        found = self.resolve(name, scope)
        return None if found is None else (found.full_name, isinstance(found.element, EnumElement))

    def check_types(self) -> None:
        """Refuse types that are defined nowhere, and numbers and names that come twice."""
        package = self.file.package or ""
        seen: set[str] = set()
        for each in self.file.types:
            _check_once(each.name, seen, "type")
        for each in self.file.types:
            if isinstance(each, MessageElement):
                self._check_message(each, f"{package}.{each.name}" if package else each.name)
            else:
                _check_enum(each)
        if not self.file.types and not self.file.public_imports and not self.file.extends:
            raise InvalidSchemaError("Protobuf schema definition contains no type definitions")

    def _check_message(self, message: MessageElement, scope: str) -> None:
        numbers: set[int] = set()
        names: set[str] = set()
        for one in _all_fields(message):
            if one.number in numbers:
                raise InvalidSchemaError(f"the number {one.number} comes twice in {scope}")
            numbers.add(one.number)
            _check_once(one.name, names, f"field of {scope}")
            for name in map_types(one.type) or (one.type,):
                if name not in SCALARS and self.resolve(name, scope) is None:
                    raise InvalidSchemaError(f"Could not resolve type: {name}")
        types: set[str] = set()
        for each in message.types:
            _check_once(each.name, types, f"type of {scope}")
            if isinstance(each, MessageElement):
                self._check_message(each, f"{scope}.{each.name}")
            else:
                _check_enum(each)


def parse_protobuf(
    text: str, references: Mapping[str, ProtobufDefinition] | None = None, *, is_new: bool = True
) -> ProtobufDefinition:
    """Parse a schema. `references` are the files that it imports, by the names in its imports."""
    dependencies: dict[str, ProtobufDefinition] = {}
    for name, each in (references or {}).items():
        dependencies |= each.dependencies
        dependencies[name] = each
    try:
        file = parse_file(text)
    except InvalidSchemaError as error:
        found = _from_base64(text)
        if found is None:
            raise error from None
        file = found
    except RecursionError:
        raise InvalidSchemaError("the Protobuf schema is nested too deeply") from None
    definition = ProtobufDefinition(file, dependencies)
    if is_new:
        definition.check_types()
    return definition


def _from_base64(text: str) -> FileElement | None:
    try:
        file = read_descriptor(base64.b64decode(text, validate=True))
    except (binascii.Error, WrongData, ValueError):
        return None
    # Any bytes can be a descriptor, and any text its names.
    return None if file is None else parse_file(print_file(file))


def _without_extensions(part: Any) -> Any:
    """A file, or a part of one, without extensions and without options that are extensions."""
    if isinstance(part, list):
        return [
            _without_extensions(each)
            for each in part
            if not isinstance(each, ExtendElement)
            and not (isinstance(each, OptionElement) and each.is_extension)
        ]
    if isinstance(part, tuple):
        return tuple(_without_extensions(each) for each in part)
    if not is_dataclass(part) or isinstance(part, type):
        return part
    return replace(
        part, **{each.name: _without_extensions(getattr(part, each.name)) for each in fields(part)}
    )


def _candidates(name: str, scope: str) -> Iterator[str]:
    if name.startswith("."):
        yield name[1:]
        return
    while scope:
        yield f"{scope}.{name}"
        scope = scope.rpartition(".")[0]
    yield name


def _all_fields(message: MessageElement) -> Iterator[FieldElement]:
    yield from message.fields
    for oneof in message.oneofs:
        yield from oneof.fields


def _check_once(name: str, seen: set[str], what: str) -> None:
    if name in seen:
        raise InvalidSchemaError(f"{name} is already defined as a {what}")
    seen.add(name)


def _check_enum(enum: EnumElement) -> None:
    seen: set[str] = set()
    for name, _, _ in enum.constants:
        _check_once(name, seen, f"constant of {enum.name}")


class _Normalization:
    """Make the file that has the same meaning and one form."""

    def __init__(self, definition: ProtobufDefinition) -> None:
        self._definition: Final = definition

    def file(self) -> FileElement:
        file = self._definition.file
        scope = file.package or ""
        return FileElement(
            "proto3" if file.syntax == "proto3" else None,
            file.package,
            sorted(set(file.imports)),
            sorted(set(file.public_imports)),
            self._options(file.options, scope),
            self._types(file.types, scope),
            self._extends(file.extends, scope),
            [
                replace(
                    service,
                    options=self._options(service.options, scope),
                    rpcs=[self._rpc(each, scope) for each in service.rpcs],
                )
                for service in file.services
            ],
        )

    def _rpc(self, rpc: RpcElement, scope: str) -> RpcElement:
        return replace(
            rpc,
            request=self._full(rpc.request, scope),
            response=self._full(rpc.response, scope),
            options=self._options(rpc.options, scope),
        )

    def _full(self, name: str, scope: str) -> str:
        found = self._definition.resolve(name, scope)
        if found is None:
            raise InvalidSchemaError(f"Could not resolve type: {name}")
        return f".{found.full_name}"

    def _types(
        self, elements: list[MessageElement | EnumElement], scope: str
    ) -> list[MessageElement | EnumElement]:
        found: list[MessageElement | EnumElement] = []
        for each in elements:
            if isinstance(each, EnumElement):
                found.append(self._enum(each, scope))
            elif not each.is_map_entry:
                found.append(self._message(each, f"{scope}.{each.name}" if scope else each.name))
        return found

    def _enum(self, enum: EnumElement, scope: str) -> EnumElement:
        constants = sorted(enum.constants, key=lambda each: (each[1], each[0]))
        return EnumElement(
            enum.name,
            [(name, number, self._options(options, scope)) for name, number, options in constants],
            self._options(enum.options, scope),
            _sorted_ranges(enum.reserved),
        )

    def _message(self, message: MessageElement, scope: str) -> MessageElement:
        oneofs = [
            OneOfElement(
                each.name,
                self._fields(each.fields, scope),
                self._groups(each.groups, scope),
                self._options(each.options, scope),
            )
            for each in message.oneofs
            if each.fields
        ]
        extensions = [
            ([_single(each)], self._options(options, scope))
            for ranges, options in message.extensions
            for each in ranges
        ]
        return MessageElement(
            message.name,
            self._fields(message.fields, scope),
            sorted(oneofs, key=lambda each: each.fields[0].number),
            self._groups(message.groups, scope),
            self._types(message.types, scope),
            self._options(message.options, scope),
            _sorted_ranges(message.reserved),
            sorted(extensions, key=lambda each: _range_key(each[0][0])),
            self._extends(message.extends, scope),
        )

    def _groups(self, groups: list[GroupElement], scope: str) -> list[GroupElement]:
        found = [replace(each, fields=self._fields(each.fields, scope)) for each in groups]
        return sorted(found, key=lambda each: each.number)

    def _extends(self, extends: list[ExtendElement], scope: str) -> list[ExtendElement]:
        grouped: dict[str, list[FieldElement]] = {}
        for each in extends:
            name = self._full(each.name, scope)
            grouped.setdefault(name, []).extend(each.fields)
        return [ExtendElement(name, self._fields(fields, scope)) for name, fields in grouped.items()]

    def _fields(self, fields: list[FieldElement], scope: str) -> list[FieldElement]:
        return [self._field(each, scope) for each in sorted(fields, key=lambda each: each.number)]

    def _field(self, one: FieldElement, scope: str) -> FieldElement:
        label, kind = one.label, one.type
        if kind not in SCALARS:
            types = map_types(kind)
            if types is None:
                found = self._definition.resolve(kind, scope)
                kind = self._full(kind, scope)
                if found is not None:
                    types = entry_types(found.element)
            if types is not None:
                key, value = types
                value = value if value in SCALARS else self._full(value, scope)
                label, kind = None, f"map<{key}, {value}>"
        return replace(one, label=label, type=kind, options=self._options(one.options, scope))

    def _options(self, options: list[OptionElement], scope: str) -> list[OptionElement]:
        return sorted((self._option(each, scope) for each in options), key=lambda each: each.name)

    def _option(self, option: OptionElement, scope: str) -> OptionElement:
        name = option.name
        if not option.is_extension:
            return OptionElement(name, _sorted_value(option.value), is_extension=False)
        resolved = self._definition.resolve_extension(name, scope)
        value = option.value
        if resolved is not None:
            name = resolved
            # A field of an option is the same as the option with that field only.
            value = _as_map(value)
        return OptionElement(name, _sorted_value(value), is_extension=True)


def entry_types(element: MessageElement | EnumElement) -> tuple[str, str] | None:
    """Return the types of keys and values, if the message is what a compiler makes of a map."""
    if not isinstance(element, MessageElement) or not element.is_map_entry:
        return None
    return element.field_type("key") or "string", element.field_type("value") or "string"


def _as_map(value: OptionValue) -> OptionValue:
    return {value.name: _as_map(value.value)} if isinstance(value, OptionElement) else value


def _sorted_value(value: OptionValue) -> OptionValue:
    if isinstance(value, dict):
        return {name: _sorted_value(value[name]) for name in sorted(value) if value[name] != []}
    if isinstance(value, list):
        return [_sorted_value(each) for each in value]
    return value


def _single(each: Range) -> Range:
    return each[0] if isinstance(each, tuple) and each[0] == each[1] else each


def _range_key(each: Range) -> tuple[int, str]:
    if isinstance(each, str):
        return 2**31 - 1, each
    return (each, "") if isinstance(each, int) else (each[0], "")


def _sorted_ranges(ranges: list[list[Range]]) -> list[list[Range]]:
    return [
        [_single(each)] for each in sorted((one for several in ranges for one in several), key=_range_key)
    ]
