"""JSON Schemas as registries keep them: drafts 4 to 2020-12, with references to others of the registry.

A schema's keywords are read as the parts that Confluent's registry compares: those for strings, numbers,
arrays and objects, a type without keywords, alternatives, and several of these together. Nothing is fetched:
a reference goes to a place of the same schema or of one that was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urljoin

from ottla.schemas.json_text import json_text, parse_json
from ottla.schemas.parsed import InvalidSchemaError, ParsedSchema, SchemaType

_MAX_PARTS: Final = 50_000
_MAX_REFERENCES: Final = 100
_DRAFTS: Final = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}
_STRING: Final = ("minLength", "maxLength", "pattern")
_NUMBER: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OBJECT: Final = (
    *("properties", "required", "minProperties", "maxProperties", "dependencies", "patternProperties"),
    *("additionalProperties", "propertyNames"),
)
_ARRAY: Final = ("items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains")
_LATER_OBJECT: Final = ("dependentRequired", "dependentSchemas", "unevaluatedProperties")
_LATER_ARRAY: Final = ("prefixItems", "unevaluatedItems", "minContains", "maxContains")
_TYPES: Final = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
_CRITERIA: Final = ("allOf", "anyOf", "oneOf")
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


@dataclass(slots=True, eq=False)
class JsonPart:
    """What one part of a schema says. `kind` is one of empty, true, false, string, number, boolean, null,
    array, object, enum, const, not, conditional, combined, reference.
    """

    kind: str
    keywords: Mapping[str, Any]
    """The keywords of this kind, as they are written."""
    key: str
    """Equal for parts that say the same."""
    is_integer: bool = False
    has_default: bool = False
    connect_type: str | None = None
    criterion: str = ""
    """Of combined parts: allOf, anyOf, oneOf."""
    parts: tuple[JsonPart, ...] = ()
    """Of combined parts, of tuples of items; the excluded part of `not`."""
    named: dict[str, JsonPart] = field(default_factory=dict)
    """Of other keywords with one schema, as `items` and `additionalProperties`."""
    properties: dict[str, JsonPart] = field(default_factory=dict)
    patterns: dict[str, JsonPart] = field(default_factory=dict)
    dependencies: dict[str, JsonPart] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    needs: dict[str, frozenset[str]] = field(default_factory=dict)
    """The properties that others need."""
    target: JsonPart | None = None
    """Of a reference."""

    def resolved(self) -> JsonPart:
        """Follow references."""
        found = self
        for _ in range(_MAX_REFERENCES):
            if found.kind != "reference" or found.target is None:
                return found
            found = found.target
        return JsonPart("empty", {}, "{}")

    @property
    def is_empty(self) -> bool:
        """Whether every value fits."""
        return self.kind in ("empty", "true")


class JsonDefinition(ParsedSchema):
    """A JSON Schema, with those that it refers to."""

    __slots__ = ("document", "references", "root")
    schema_type: ClassVar[SchemaType] = SchemaType.JSON

    def __init__(self, document: Any, references: Mapping[str, JsonDefinition]) -> None:
        super().__init__(json_text(document))
        self.document: Final = document
        self.references: Final = references
        """By the names in `$ref`, also those of references."""
        self.root: Final = _Reader(self).root()

    def normalized_text(self) -> str:
        """Return the text with names in order."""
        return json_text(_sorted(self.document))

    def top_level_fields(self) -> frozenset[str]:
        properties = self.document.get("properties") if isinstance(self.document, dict) else None
        return frozenset(properties if isinstance(properties, dict) else ())


def parse_json_schema(text: str, references: Mapping[str, JsonDefinition] | None = None) -> JsonDefinition:
    """Parse a schema. `references` are those that it refers to, by their names in `$ref`."""
    document = parse_json(text, decimals=True)
    if not isinstance(document, dict | bool):
        raise InvalidSchemaError("Invalid JSON schema: expected an object or boolean at the root")
    known: dict[str, JsonDefinition] = {}
    for name, each in (references or {}).items():
        known |= each.references
        known[name] = each
    try:
        return JsonDefinition(document, known)
    except RecursionError:
        raise InvalidSchemaError("the JSON Schema is nested too deeply") from None


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _Place:
    """A schema's document, and the address that references in it are relative to."""

    document: Any
    base: str
    draft: int


class _Reader:
    """Reads what can be reached from the root. A part is read once for each place in a document."""

    def __init__(self, definition: JsonDefinition) -> None:
        self._definition: Final = definition
        self._parts: Final[dict[int, JsonPart]] = {}
        # Documents stay alive while their parts are known by identity.
        self._anchors: Final[dict[int, dict[str, Any]]] = {}
        self._unresolved: Final[list[tuple[JsonPart, str, _Place]]] = []

    def root(self) -> JsonPart:
        document = self._definition.document
        found = self._part(document, _Place(document, "", _draft(document, 7)))
        while self._unresolved:
            part, reference, place = self._unresolved.pop()
            part.target = self._target(reference, place)
        return found

    def _part(self, value: Any, place: _Place) -> JsonPart:
        if isinstance(value, bool):
            return JsonPart("true" if value else "false", {}, "true" if value else "false")
        if not isinstance(value, dict):
            raise InvalidSchemaError(f"Invalid JSON schema: {_shown(value)} is no schema")
        found = self._parts.get(id(value))
        if found is not None:
            return found
        if len(self._parts) >= _MAX_PARTS:
            raise InvalidSchemaError(f"the JSON Schema has more than {_MAX_PARTS} parts")
        own_id = value.get("id" if place.draft == 4 else "$id")
        if isinstance(own_id, str):
            place = _Place(place.document, urljoin(place.base, own_id), place.draft)
        # It is known before its parts, which may refer to it.
        found = self._parts[id(value)] = JsonPart("empty", {}, "")
        read = self._together(value, place)
        for name in JsonPart.__slots__:
            setattr(found, name, getattr(read, name))
        if read.kind == "reference":
            found.target = read
        found.has_default = "default" in value
        connect_type = value.get("connect.type")
        found.connect_type = connect_type if isinstance(connect_type, str) else None
        return found

    def _together(self, value: dict[str, Any], place: _Place) -> JsonPart:
        """Read all keywords; several kinds of them are parts that all hold."""
        parts = list(self._kinds(value, place))
        if not parts:
            return JsonPart("empty", value, "{}")
        if len(parts) == 1:
            return parts[0]
        return self._combined("allOf", tuple(parts))

    def _combined(self, criterion: str, parts: tuple[JsonPart, ...]) -> JsonPart:
        key = f"{criterion}[{','.join(each.key or str(id(each)) for each in parts)}]"
        return JsonPart(
            "combined", {}, key if len(key) < 10_000 else str(hash(key)), criterion=criterion, parts=parts
        )

    def _kinds(self, value: dict[str, Any], place: _Place) -> Iterator[JsonPart]:
        is_later = place.draft > 7
        if "$ref" in value:
            yield self._reference(value["$ref"], place)
            if not is_later:
                return
        if "$dynamicRef" in value and is_later:
            yield self._reference(value["$dynamicRef"], place)
        if "enum" in value:
            yield JsonPart("enum", value, _key(value, "enum", list))
        for criterion in _CRITERIA:
            if criterion in value:
                listed = _expect(value, criterion, list)
                yield self._combined(criterion, tuple(self._part(each, place) for each in listed))
        if "not" in value:
            yield JsonPart("not", value, _key(value, "not"), parts=(self._part(value["not"], place),))
        if "const" in value and place.draft != 4:
            yield JsonPart("const", value, _key(value, "const"))
        seen: set[str] = set()
        if "type" in value:
            yield self._types(value, place, seen)
        groups = (
            ("array", _ARRAY + (_LATER_ARRAY if is_later else ())),
            ("object", _OBJECT + (_LATER_OBJECT if is_later else ())),
            ("number", _NUMBER),
            ("string", _STRING if is_later else (*_STRING, "format")),
        )
        for kind, keywords in groups:
            if kind not in seen and any(each in value for each in keywords):
                yield self._typed(kind, value, place)
        if place.draft >= 7 and any(each in value for each in ("if", "then", "else")):
            for each in ("if", "then", "else"):
                if each in value:
                    self._part(value[each], place)
            yield JsonPart("conditional", value, _key(value, "if", None))

    def _types(self, value: dict[str, Any], place: _Place, seen: set[str]) -> JsonPart:
        types = value["type"]
        listed = types if isinstance(types, list) else [types]
        parts: list[JsonPart] = []
        for each in listed:
            if not isinstance(each, str) or each not in _TYPES:
                raise InvalidSchemaError(f"Invalid JSON schema: unknown type: [{_shown(each)}]")
            kind = "number" if each == "integer" else each
            seen.add(kind)
            part = self._typed(kind, value, place)
            part.is_integer = each == "integer"
            part.key = f"{each} {part.key}"
            parts.append(part)
        return self._combined("anyOf", tuple(parts)) if isinstance(types, list) else parts[0]

    def _typed(self, kind: str, value: dict[str, Any], place: _Place) -> JsonPart:
        for name in _COUNTS:
            count = value.get(name, 0)
            if isinstance(count, bool) or not isinstance(count, int | Decimal) or count != int(count):
                raise InvalidSchemaError(f"Invalid JSON schema: {name} is no whole number: {_shown(count)}")
        part = JsonPart(kind, value, "")
        if kind == "array":
            self._array(part, value, place)
        elif kind == "object":
            self._object(part, value, place)
        elif kind == "number":
            for name in _NUMBER:
                bound = value.get(name, 0)
                if not isinstance(bound, int | Decimal):
                    raise InvalidSchemaError(f"Invalid JSON schema: {name} is no number: {_shown(bound)}")
            if value.get("multipleOf", 1) == 0:
                raise InvalidSchemaError("Invalid JSON schema: multipleOf should not be 0")
        part.key = f"{kind} {_same_text(value)}"
        return part

    def _array(self, part: JsonPart, value: dict[str, Any], place: _Place) -> None:
        items = value.get("items")
        first: list[Any] = []
        rest: Any = None
        if "prefixItems" in value and place.draft > 7:
            first, rest = _expect(value, "prefixItems", list), items
        elif isinstance(items, list):
            first, rest = items, value.get("additionalItems")
        elif place.draft > 7:
            if items is False:
                rest = False
            elif items is not None and items is not True:
                part.named["items"] = self._part(items, place)
        else:
            rest = value.get("additionalItems")
            if items is not None:
                part.named["items"] = self._part(items, place)
        part.parts = tuple(self._part(each, place) for each in first)
        if rest is not None and rest is not True:
            part.named["additionalItems"] = self._part(rest, place)
        for name in ("contains", "unevaluatedItems"):
            if name in value and (name == "contains" or place.draft > 7):
                part.named[name] = self._part(value[name], place)

    def _object(self, part: JsonPart, value: dict[str, Any], place: _Place) -> None:
        part.properties = self._several(value, "properties", place)
        part.patterns = self._several(value, "patternProperties", place)
        for name in ("additionalProperties", "propertyNames"):
            if name in value and not (name == "additionalProperties" and value[name] is True):
                part.named[name] = self._part(value[name], place)
        required = value.get("required", [])
        if not isinstance(required, list) or any(not isinstance(each, str) for each in required):
            raise InvalidSchemaError(f"Invalid JSON schema: required is no list of names: {_shown(required)}")
        part.required = frozenset(required)
        for name in ("dependencies", "dependentRequired", "dependentSchemas"):
            if name not in value or (name != "dependencies" and place.draft <= 7):
                continue
            for key, each in _expect(value, name, dict).items():
                if isinstance(each, list):
                    part.needs[key] = frozenset(map(str, each))
                else:
                    part.dependencies[key] = self._part(each, place)
        if "unevaluatedProperties" in value and place.draft > 7:
            part.named["unevaluatedProperties"] = self._part(value["unevaluatedProperties"], place)

    def _several(self, value: dict[str, Any], name: str, place: _Place) -> dict[str, JsonPart]:
        return {
            key: self._part(each, place)
            for key, each in (_expect(value, name, dict) if name in value else {}).items()
        }

    def _reference(self, reference: Any, place: _Place) -> JsonPart:
        if not isinstance(reference, str):
            raise InvalidSchemaError(f"Invalid JSON schema: {_shown(reference)} is no reference")
        part = JsonPart("reference", {}, f"{place.base} {reference}")
        self._unresolved.append((part, reference, place))
        return part

    def _target(self, reference: str, place: _Place) -> JsonPart:
        address, _, fragment = reference.partition("#")
        address = urljoin(place.base, address)
        value, target = self._document(address, place, reference)
        if fragment.startswith("/"):
            value = _pointed(value, target.document, fragment, reference)
        elif fragment:
            anchors = self._named_places(target)
            for key in (f"{address}#{fragment}", f"#{fragment}"):
                if key in anchors:
                    return self._part(anchors[key], target)
            raise InvalidSchemaError(f"Unresolved $ref {reference[:200]!r}")
        return self._part(value, target)

    def _document(self, address: str, place: _Place, reference: str) -> tuple[Any, _Place]:
        """Find the document, or the part with an address of its own, that a reference names."""
        if address == place.base:
            found = self._named_places(place).get(address) if address else None
            return (place.document if found is None else found), place
        wanted = reference.partition("#")[0]
        for name, definition in self._definition.references.items():
            if name in (wanted, wanted.removeprefix("./"), address) or urljoin(place.base, name) == address:
                draft = _draft(definition.document, place.draft)
                return definition.document, _Place(definition.document, name, draft)
        named = self._named_places(place)
        if address in named:
            return named[address], _Place(place.document, address, place.draft)
        if _meta_schema(address) is not None:
            return {}, _Place({}, address, place.draft)
        raise InvalidSchemaError(
            f"Unresolved $ref {reference[:200]!r}: it is none of the references, and nothing is fetched"
        )

    def _named_places(self, place: _Place) -> dict[str, Any]:
        """Return what has an address or anchor of its own in a document."""
        found = self._anchors.get(id(place.document))
        if found is None:
            found = self._anchors[id(place.document)] = {}
            id_name = "id" if place.draft == 4 else "$id"
            left: list[tuple[Any, str]] = [(place.document, "")]
            while left:
                value, base = left.pop()
                if isinstance(value, list):
                    left += ((each, base) for each in value)
                if not isinstance(value, dict):
                    continue
                own = value.get(id_name)
                if isinstance(own, str):
                    base = urljoin(base, own)
                    found.setdefault(base.removesuffix("#"), value)
                for name in ("$anchor", "$dynamicAnchor"):
                    anchor = value.get(name)
                    if isinstance(anchor, str):
                        found.setdefault(f"{base}#{anchor}", value)
                        found.setdefault(f"#{anchor}", value)
                left += ((each, base) for each in value.values())
        return found


def _pointed(value: Any, document: Any, fragment: str, reference: str) -> Any:
    """Follow a JSON pointer. `definitions` and `$defs` of a document are one."""
    steps = [unquote(each).replace("~1", "/").replace("~0", "~") for each in fragment.split("/")[1:]]
    for index, step in enumerate(steps):
        if isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
            if index == 0 and step == "$defs" and value is not None and len(steps) > 1:
                inner = document.get("definitions") if isinstance(document, dict) else None
                if isinstance(value, dict) and steps[1] not in value and isinstance(inner, dict):
                    value = inner
        elif index == 0 and step == "$defs" and isinstance(value, dict) and "definitions" in value:
            value = value["definitions"]
        else:
            raise InvalidSchemaError(f"Unresolved $ref {reference[:200]!r}")
    return value


def _draft(document: Any, otherwise: int) -> int:
    schema = document.get("$schema") if isinstance(document, dict) else None
    found = _meta_schema(schema) if isinstance(schema, str) else None
    return otherwise if found is None else found


def _meta_schema(address: str) -> int | None:
    return _DRAFTS.get(address.removeprefix("https://").removeprefix("http://").removesuffix("#"))


def _expect(value: dict[str, Any], name: str, kind: type) -> Any:
    found = value[name]
    if not isinstance(found, kind):
        raise InvalidSchemaError(f"Invalid JSON schema: {name} is no {kind.__name__}: {_shown(found)}")
    return found


def _key(value: dict[str, Any], name: str, kind: type | None = None) -> str:
    if kind is not None:
        _expect(value, name, kind)
    return f"{name} {_same_text(value.get(name))}"


def _same_text(value: Any) -> str:
    """A short text that is the same for the same value."""
    text = json_text(_sorted(value))
    return text if len(text) < 1_000 else f"{len(text)}:{hash(text)}"


def _shown(value: Any) -> str:
    return json_text(value)[:200]
