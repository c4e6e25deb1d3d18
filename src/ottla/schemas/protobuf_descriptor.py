"""The binary descriptor of a `.proto` file as the file's parts, and back.

Options of extensions are left out: what they mean is in other files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from ottla.schemas.parsed import InvalidSchemaError
from ottla.schemas.protobuf import ProtobufSchema
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
    OptionText,
    Range,
    RpcElement,
    ServiceElement,
    map_types,
)

_DESCRIPTOR: Final = """
message File {
  string name = 1; string package = 2; repeated string dependency = 3; repeated Message message_type = 4;
  repeated Enum enum_type = 5; repeated Service service = 6; repeated Field extension = 7;
  FileOptions options = 8; repeated int32 public_dependency = 10; repeated int32 weak_dependency = 11;
  string syntax = 12; int32 edition = 14;
}
message Message {
  string name = 1; repeated Field field = 2; repeated Message nested_type = 3; repeated Enum enum_type = 4;
  repeated Range extension_range = 5; repeated Field extension = 6; MessageOptions options = 7;
  repeated Oneof oneof_decl = 8; repeated Range reserved_range = 9; repeated string reserved_name = 10;
}
message Range { int32 start = 1; int32 end = 2; }
message Oneof { string name = 1; }
message Field {
  string name = 1; string extendee = 2; int32 number = 3; Label label = 4; Type type = 5;
  string type_name = 6; string default_value = 7;
 FieldOptions options = 8; int32 oneof_index = 9; string json_name = 10;
  bool proto3_optional = 17;
}
enum Label { optional = 1; required = 2; repeated = 3; }
enum Type {
  double = 1; float = 2; int64 = 3; uint64 = 4; int32 = 5; fixed64 = 6; fixed32 = 7; bool = 8; string = 9;
  group = 10; message = 11; bytes = 12; uint32 = 13; enum = 14; sfixed32 = 15; sfixed64 = 16; sint32 = 17;
  sint64 = 18;
}
message Enum {
  string name = 1; repeated EnumValue value = 2; EnumOptions options = 3; repeated Range reserved_range = 4;
  repeated string reserved_name = 5;
}
message EnumValue { string name = 1; int32 number = 2; DeprecatedFirst options = 3; }
message DeprecatedFirst { bool deprecated = 1; }
message Service { string name = 1; repeated Method method = 2; DeprecatedLate options = 3; }
message DeprecatedLate { bool deprecated = 33; Idempotency idempotency_level = 34; }
enum Idempotency { IDEMPOTENCY_UNKNOWN = 0; NO_SIDE_EFFECTS = 1; IDEMPOTENT = 2; }
message Method {
  string name = 1; string input_type = 2; string output_type = 3; DeprecatedLate options = 4;
  bool client_streaming = 5; bool server_streaming = 6;
}
message EnumOptions { bool allow_alias = 2; bool deprecated = 3; }
message MessageOptions { bool no_standard_descriptor_accessor = 2; bool deprecated = 3; bool map_entry = 7; }
enum CType { STRING = 0; CORD = 1; STRING_PIECE = 2; }
enum JSType { JS_NORMAL = 0; JS_STRING = 1; JS_NUMBER = 2; }
message FieldOptions { CType ctype = 1; bool packed = 2; JSType jstype = 6; bool deprecated = 3; }
enum OptimizeMode { UNKNOWN = 0; SPEED = 1; CODE_SIZE = 2; LITE_RUNTIME = 3; }
message FileOptions {
  string java_package = 1; string java_outer_classname = 8; bool java_multiple_files = 10;
  bool java_generate_equals_and_hash = 20; bool java_string_check_utf8 = 27; OptimizeMode optimize_for = 9;
  string go_package = 11; bool cc_generic_services = 16; bool java_generic_services = 17;
  bool py_generic_services = 18; bool deprecated = 23; bool cc_enable_arenas = 31;
  string objc_class_prefix = 36; string csharp_namespace = 37; string swift_prefix = 39;
  string php_class_prefix = 40; string php_namespace = 41; string php_metadata_namespace = 44;
  string ruby_package = 45;
}
"""
# In the order in which registries print them.
_ORDER: Final = (
    "java_package",
    "java_outer_classname",
    "java_multiple_files",
    "java_generate_equals_and_hash",
    "java_string_check_utf8",
    "optimize_for",
    "go_package",
    "cc_generic_services",
    "java_generic_services",
    "py_generic_services",
    "cc_enable_arenas",
    "objc_class_prefix",
    "csharp_namespace",
    "swift_prefix",
    "php_class_prefix",
    "php_namespace",
    "php_metadata_namespace",
    "ruby_package",
    "no_standard_descriptor_accessor",
    "allow_alias",
    "ctype",
    "packed",
    "jstype",
    "deprecated",
    "map_entry",
    "idempotency_level",
)
_ENUM_OPTIONS: Final = frozenset(("optimize_for", "ctype", "jstype", "idempotency_level"))
_Parts = dict[str, Any]
Resolve: TypeAlias = "Callable[[str, str], tuple[str, bool] | None]"
"""Gives the full name of a type by its name and the scope in which it stands, and whether it is an enum."""


@cache
def _schema() -> ProtobufSchema:
    return ProtobufSchema(_DESCRIPTOR, "File")


def read_descriptor(data: bytes) -> FileElement | None:
    """Return the parts of a `FileDescriptorProto`; None if it describes nothing. WrongData if it is none."""
    document = _schema().decode(data)
    if not document.get("name") and not document.get("message_type") and not document.get("enum_type"):
        return None
    syntax = document.get("syntax")
    is_proto3 = syntax == "proto3"
    imports = document.get("dependency", [])
    public, weak = document.get("public_dependency", []), document.get("weak_dependency", [])
    return FileElement(
        syntax if syntax in ("proto2", "proto3") else None,
        document.get("package") or None,
        [name for index, name in enumerate(imports) if index not in public and index not in weak],
        [name for index, name in enumerate(imports) if index in public],
        _options(document),
        [
            *(_message(each, is_proto3) for each in document.get("message_type", [])),
            *(_enum(each) for each in document.get("enum_type", [])),
        ],
        _extends(document, is_proto3),
        [
            ServiceElement(
                each.get("name", ""), [_rpc(one) for one in each.get("method", [])], _options(each)
            )
            for each in document.get("service", [])
        ],
    )


def _options(document: _Parts) -> list[OptionElement]:
    given = {name: value for name, value in document.get("options", {}).items() if not name.isdigit()}
    found: list[OptionElement] = []
    for name in sorted(given, key=_ORDER.index):
        value = given[name]
        if isinstance(value, bool):
            found.append(OptionElement(name, OptionText("true" if value else "false")))
        else:
            found.append(OptionElement(name, OptionText(str(value), name not in _ENUM_OPTIONS)))
    return found


def _message(document: _Parts, is_proto3: bool) -> MessageElement:
    found = MessageElement(document.get("name", ""), options=_options(document))
    oneofs = [OneOfElement(each.get("name", "")) for each in document.get("oneof_decl", [])]
    for each in document.get("field", []):
        index = each.get("oneof_index")
        if index is None or each.get("proto3_optional") or not 0 <= index < len(oneofs):
            found.fields.append(_field(each, is_proto3))
        else:
            oneofs[index].fields.append(_field(each, is_proto3, in_oneof=True))
    found.oneofs = [each for each in oneofs if each.fields]
    found.types += (_message(each, is_proto3) for each in document.get("nested_type", []))
    found.types += (_enum(each) for each in document.get("enum_type", []))
    found.reserved += ([_range(each, 1)] for each in document.get("reserved_range", []))
    found.reserved += ([name] for name in document.get("reserved_name", []))
    found.extensions += (([_range(each, 1)], []) for each in document.get("extension_range", []))
    found.extends = _extends(document, is_proto3)
    return found


def _range(document: _Parts, beyond: int) -> Range:
    first, last = document.get("start", 0), document.get("end", 0) - beyond
    return first if first == last else (first, last)


def _enum(document: _Parts) -> EnumElement:
    return EnumElement(
        document.get("name", ""),
        [(each.get("name", ""), each.get("number", 0), _options(each)) for each in document.get("value", [])],
        _options(document),
        [
            *([_range(each, 0)] for each in document.get("reserved_range", [])),
            *([name] for name in document.get("reserved_name", [])),
        ],
    )


def _field(document: _Parts, is_proto3: bool, *, in_oneof: bool = False) -> FieldElement:
    label = document.get("label")
    if document.get("proto3_optional"):
        label = "optional"
    elif in_oneof or (is_proto3 and label != "repeated"):
        label = None
    return FieldElement(
        label if isinstance(label, str) else None,
        document.get("type_name") or str(document.get("type", "int32")),
        document.get("name", ""),
        document.get("number", 0),
        _options(document),
        document.get("default_value") if not is_proto3 else None,
        document.get("json_name"),
    )


def _extends(document: _Parts, is_proto3: bool) -> list[ExtendElement]:
    found: dict[str, ExtendElement] = {}
    for each in document.get("extension", []):
        name = each.get("extendee", "")
        found.setdefault(name, ExtendElement(name)).fields.append(_field(each, is_proto3))
    return list(found.values())


def _rpc(document: _Parts) -> RpcElement:
    return RpcElement(
        document.get("name", ""),
        document.get("input_type", ""),
        document.get("output_type", ""),
        document.get("client_streaming", False),
        document.get("server_streaming", False),
        _options(document),
    )


def write_descriptor(file: FileElement, resolve: Resolve) -> bytes:
    """Return the `FileDescriptorProto` of a file, named `default` as in Confluent's registry.
    InvalidSchemaError if it names a type that is defined nowhere.
    """
    return _schema().encode(_DescriptorWriter(file, resolve).document())


class _DescriptorWriter:
    def __init__(self, file: FileElement, resolve: Resolve) -> None:
        self._file: Final = file
        self._resolve: Final = resolve
        self._is_proto3: Final = file.syntax == "proto3"

    def document(self) -> _Parts:
        file, scope = self._file, self._file.package or ""
        services = [
            _with_options(
                {"name": each.name, "method": [self._method(one, scope) for one in each.rpcs]},
                each.options,
                "DeprecatedLate",
            )
            for each in file.services
        ]
        document = {
            "name": "default",
            "package": file.package,
            "dependency": [*file.imports, *file.public_imports],
            "public_dependency": [len(file.imports) + index for index in range(len(file.public_imports))],
            **self._types(file.types, scope),
            "service": services,
            "extension": self._extensions(file.extends, scope),
            "syntax": file.syntax if self._is_proto3 else None,
        }
        return _with_options(document, file.options, "FileOptions")

    def _types(self, types: Sequence[MessageElement | EnumElement], scope: str) -> dict[str, list[_Parts]]:
        return {
            "message_type": [
                self._message(each, scope) for each in types if isinstance(each, MessageElement)
            ],
            "enum_type": [_enum_document(each) for each in types if isinstance(each, EnumElement)],
        }

    def _message(self, message: MessageElement, around: str) -> _Parts:
        scope = f"{around}.{message.name}" if around else message.name
        types = self._types(message.types, scope)
        nested, oneofs = types["message_type"], [each.name for each in message.oneofs]
        fields = [self._field(each, scope, nested) for each in message.fields]
        for index, oneof in enumerate(message.oneofs):
            fields += (self._field(each, scope, nested) | {"oneof_index": index} for each in oneof.fields)
            fields += (self._group(each, scope, nested) | {"oneof_index": index} for each in oneof.groups)
        fields += (self._group(each, scope, nested) for each in message.groups)
        for each in fields:
            if each.get("proto3_optional"):
                # A compiler makes a oneof for each of these, behind all others.
                each["oneof_index"] = len(oneofs)
                oneofs.append(f"_{each['name']}")
        document = {
            "name": message.name,
            "field": fields,
            "nested_type": nested,
            "enum_type": types["enum_type"],
            "extension_range": [
                _range_document(each, 1) for ranges, _ in message.extensions for each in ranges
            ],
            "extension": self._extensions(message.extends, scope),
            "oneof_decl": [{"name": each} for each in oneofs],
            **_reserved_documents(message.reserved, 1),
        }
        return _with_options(document, message.options, "MessageOptions")

    def _field(self, one: FieldElement, scope: str, nested: list[_Parts]) -> _Parts:
        document: _Parts = {"name": one.name, "number": one.number, "label": one.label or "optional"}
        types = map_types(one.type)
        if types is not None:
            entry = "".join(part[:1].upper() + part[1:] for part in one.name.split("_")) + "Entry"
            key, value = types
            fields = [
                {"name": "key", "number": 1, "label": "optional", **self._type(key, scope)},
                {"name": "value", "number": 2, "label": "optional", **self._type(value, scope)},
            ]
            nested.append({"name": entry, "field": fields, "options": {"map_entry": True}})
            document |= {"label": "repeated", "type": "message", "type_name": f".{scope}.{entry}"}
        else:
            document |= self._type(one.type, scope)
        if self._is_proto3 and one.label == "optional":
            document["proto3_optional"] = True
        document |= {"default_value": one.default, "json_name": one.json_name}
        return _with_options(document, one.options, "FieldOptions")

    def _type(self, kind: str, scope: str) -> _Parts:
        if kind in SCALARS:
            return {"type": kind}
        found = self._resolve(kind, scope)
        if found is None:
            raise InvalidSchemaError(f"Could not resolve type: {kind}")
        name, is_enum = found
        return {"type": "enum" if is_enum else "message", "type_name": f".{name}"}

    def _group(self, group: GroupElement, scope: str, nested: list[_Parts]) -> _Parts:
        name = f"{scope}.{group.name}"
        inner: list[_Parts] = []
        fields = [self._field(each, name, inner) for each in group.fields]
        nested.append(_given({"name": group.name, "field": fields, "nested_type": inner}))
        return {
            "name": group.name.lower(),
            "number": group.number,
            "label": group.label or "optional",
            "type": "group",
            "type_name": f".{name}",
        }

    def _extensions(self, extends: Sequence[ExtendElement], scope: str) -> list[_Parts]:
        found: list[_Parts] = []
        for extend in extends:
            name = self._type(extend.name, scope)["type_name"]
            found += (self._field(each, scope, []) | {"extendee": name} for each in extend.fields)
        return found

    def _method(self, rpc: RpcElement, scope: str) -> _Parts:
        document = {
            "name": rpc.name,
            "input_type": self._type(rpc.request, scope)["type_name"],
            "output_type": self._type(rpc.response, scope)["type_name"],
            "client_streaming": rpc.request_streams or None,
            "server_streaming": rpc.response_streams or None,
        }
        return _with_options(document, rpc.options, "DeprecatedLate")


def _enum_document(enum: EnumElement) -> _Parts:
    values = [
        _with_options({"name": name, "number": number}, options, "DeprecatedFirst")
        for name, number, options in enum.constants
    ]
    document = {"name": enum.name, "value": values, **_reserved_documents(enum.reserved, 0)}
    return _with_options(document, enum.options, "EnumOptions")


def _reserved_documents(reserved: Sequence[Sequence[Range]], beyond: int) -> _Parts:
    ranges = [each for several in reserved for each in several]
    return {
        "reserved_range": [_range_document(each, beyond) for each in ranges if not isinstance(each, str)],
        "reserved_name": [each for each in ranges if isinstance(each, str)],
    }


def _range_document(each: Range, beyond: int) -> _Parts:
    first, last = each if isinstance(each, tuple) else (each, each)
    assert isinstance(first, int)
    assert isinstance(last, int)
    return {"start": first, "end": last + beyond}


def _with_options(document: _Parts, options: Sequence[OptionElement], kind: str) -> _Parts:
    """Add the options that a descriptor has fields for, and leave out what is not set."""
    types = _schema().field_types(kind)
    given = {}
    for each in options:
        if not each.is_extension and each.name in types and isinstance(each.value, OptionText):
            text = each.value.text
            given[each.name] = text == "true" if types[each.name] == "bool" else text
    return _given(document | {"options": given})


def _given(document: Mapping[str, Any]) -> _Parts:
    return {name: value for name, value in document.items() if value not in (None, [], {})}
