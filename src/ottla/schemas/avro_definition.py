"""Avro schemas as registries keep them: names, aliases, defaults and further attributes, and the text that
Java's parser prints of them.

`avro` decodes values by the same schemas and keeps only what that needs. Bounded: types are nested to a
depth, also through the names that they have, and a definition has a number of names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from ottla.schemas.json_text import json_text, parse_json
from ottla.schemas.parsed import InvalidSchemaError, ParsedSchema, SchemaType

MAX_DEPTH: Final = 100
_MAX_NAMES: Final = 20_000
_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED: Final = frozenset(("record", "enum", "fixed"))
_TYPE_NAMES: Final = _PRIMITIVES | _NAMED | {"array", "map", "union"}
_RESERVED: Final = frozenset(
    ("doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases")
)
_FIELD_RESERVED: Final = frozenset(("default", "doc", "name", "order", "type", "aliases"))
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LENIENT_NAME: Final = re.compile(r"[^\W\d]\w*")
_MAX_FIXED_SIZE: Final = 2**31 - 1
# Of values of defaults: those of records inside of each other multiply.
_MAX_DEFAULT_STEPS: Final = 200_000


class AvroType:
    """A type, with what is known of its kind. A named type appears once, wherever it is used."""

    __slots__ = (
        "aliases",
        "branches",
        "default",
        "doc",
        "fields",
        "is_error",
        "item",
        "kind",
        "name",
        "namespace",
        "props",
        "size",
        "symbols",
    )

    def __init__(self, kind: str, name: str = "", namespace: str = "") -> None:
        self.kind: Final = kind
        """A primitive's name, or record, enum, fixed, array, map, union."""
        self.name: Final = name
        self.namespace: Final = namespace
        self.doc: str | None = None
        self.aliases: tuple[str, ...] = ()
        """Full names; one without a namespace in a type that has one begins with a dot."""
        self.props: dict[str, Any] = {}
        self.fields: tuple[AvroField, ...] = ()
        self.is_error = False
        self.symbols: tuple[str, ...] = ()
        self.default: str | None = None
        self.size = 0
        self.item: AvroType | None = None
        """Of an array or map."""
        self.branches: tuple[AvroType, ...] = ()

    @property
    def full_name(self) -> str:
        """The name of a named type with its namespace; of another its kind."""
        if self.kind not in _NAMED:
            return self.kind
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def shown_kind(self) -> str:
        """The kind in the capital letters of messages."""
        return self.kind.upper()


class AvroField:
    """A field of a record."""

    __slots__ = ("aliases", "default", "doc", "has_default", "name", "order", "props", "type")

    def __init__(self, name: str, kind: AvroType) -> None:
        self.name: Final = name
        self.type = kind
        self.doc: str | None = None
        self.has_default = False
        self.default: Any = None
        self.order = "ascending"
        self.aliases: tuple[str, ...] = ()
        self.props: dict[str, Any] = {}


class AvroDefinition(ParsedSchema):
    """An Avro schema, with the types that it and its references name."""

    __slots__ = ("named", "references", "root")
    schema_type: ClassVar[SchemaType] = SchemaType.AVRO

    def __init__(
        self, root: AvroType, named: Mapping[str, AvroType], references: tuple[AvroDefinition, ...]
    ) -> None:
        self.root: Final = root
        self.named: Final = named
        self.references: Final = references
        """Those that it names, and those that they need, before them."""
        super().__init__(json_text(_Printer(self._foreign_names()).document(root, "", 0)))

    def _foreign_names(self) -> set[str]:
        return {each.root.full_name for each in self.references if each.root.kind in _NAMED}

    def normalized_text(self) -> str:
        """Return the text with attributes and aliases in order, and full names."""
        return json_text(_Printer(self._foreign_names(), normalized=True).document(self.root, "", 0))

    def top_level_fields(self) -> frozenset[str]:
        return frozenset(each.name for each in self.root.fields)

    def formatted_text(self, name: str) -> str:
        if name == "resolved":
            # With the definitions of its references where they are first named.
            return json_text(_Printer(set()).document(self.root, "", 0))
        return super().formatted_text(name)


def parse_avro(
    text: str, references: Iterable[AvroDefinition] = (), *, is_new: bool = True
) -> AvroDefinition:
    """Parse a schema. With `is_new` its names are those that the specification allows, and defaults have the
    types of their fields.
    """
    known: dict[str, AvroType] = {}
    needed: dict[int, AvroDefinition] = {}
    for reference in references:
        for each in (*reference.references, reference):
            needed[id(each)] = each
        for name, kind in reference.named.items():
            _add_name(known, name, kind)
    parser = _Parser(known, is_new)
    try:
        root = parser.resolved(parser.parse(parse_json(_quoted(text), comments=True), "", 0))
        parser.resolve_all()
        return AvroDefinition(root, known, tuple(needed.values()))
    except RecursionError:
        raise InvalidSchemaError("the Avro schema is nested too deeply") from None


def _quoted(text: str) -> str:
    """A name alone, as `string`, is a schema too."""
    bare = text.strip()
    return f'"{bare}"' if bare in _PRIMITIVES else text


def _add_name(known: dict[str, AvroType], name: str, kind: AvroType) -> None:
    found = known.setdefault(name, kind)
    if found is not kind and _alone(found) != _alone(kind):
        raise InvalidSchemaError(f"Can't redefine: {name}")
    if len(known) > _MAX_NAMES:
        raise InvalidSchemaError(f"the Avro schema has more than {_MAX_NAMES} names")


def _alone(kind: AvroType) -> str:
    """Print a definition in which all other types are names."""
    return json_text(_Printer(_EveryName()).definition(kind, "", 0))


class _EveryName(set[str]):
    def __contains__(self, name: object) -> bool:
        return True


class _Unresolved(AvroType):
    """A name whose type may be defined further on."""

    __slots__ = ()


class _Parser:
    def __init__(self, known: dict[str, AvroType], is_new: bool) -> None:
        self._known: Final = known
        self._is_new: Final = is_new
        self._records: Final[list[AvroType]] = []
        # Types that were defined a second time: compared when all names are known.
        self._again: Final[list[tuple[str, AvroType]]] = []
        self._new: Final[list[AvroType]] = []
        self._defaults: Final = _Defaults()

    def parse(self, document: Any, namespace: str, depth: int) -> AvroType:
        if depth > MAX_DEPTH:
            raise InvalidSchemaError("the Avro schema is nested too deeply")
        if isinstance(document, str):
            return self._find(document, namespace)
        if isinstance(document, list):
            return self._union(document, namespace, depth)
        if not isinstance(document, dict):
            raise InvalidSchemaError(f"Schema not yet supported: {_shown(document)}")
        kind = document.get("type")
        if not isinstance(kind, str):
            raise InvalidSchemaError(f"No type: {_shown(document)}")
        if kind in _PRIMITIVES:
            found = AvroType(kind)
        elif kind in ("record", "error"):
            return self._record(document, namespace, depth)
        elif kind == "enum":
            return self._enum(document, namespace)
        elif kind == "fixed":
            return self._fixed(document, namespace)
        elif kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            if key not in document:
                raise InvalidSchemaError(f"{kind.capitalize()} has no {key} type: {_shown(document)}")
            found = AvroType(kind)
            found.item = self.parse(document[key], namespace, depth + 1)
            self._new.append(found)
        else:
            return self._find(kind, namespace)
        found.props = _props(document, _RESERVED)
        return found

    def _find(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._known.get(full) or self._known.get(name)
        return found or _Unresolved("unresolved", full)

    def resolved(self, kind: AvroType) -> AvroType:
        """Return the type of a name, wherever it was defined."""
        if not isinstance(kind, _Unresolved):
            return kind
        found = self._known.get(kind.name)
        if found is None:
            raise InvalidSchemaError(f'Undefined schema: "{kind.name[:200]}"')
        return found

    def resolve_all(self) -> None:
        for each in self._new:
            if each.item is not None:
                each.item = self.resolved(each.item)
            if each.branches:
                each.branches = tuple(map(self.resolved, each.branches))
                _check_union(each.branches)
        for record in self._records:
            for one in record.fields:
                one.type = self.resolved(one.type)
        for name, kind in self._again:
            _add_name(self._known, name, kind)
        for record in self._records:
            for one in record.fields:
                self._check_default(one)

    def _check_default(self, one: AvroField) -> None:
        if not one.has_default:
            return
        if isinstance(one.default, str) and one.type.kind in ("float", "double"):
            try:
                one.default = float(one.default)
            except ValueError:
                raise InvalidSchemaError(
                    f"Invalid default for field {one.name}: {_shown(one.default)}"
                ) from None
        if self._is_new and not self._defaults.fits(one.type, one.default):
            raise InvalidSchemaError(
                f"Invalid default for field {one.name}: {_shown(one.default)} not a {one.type.full_name}"
            )

    def _union(self, document: list[Any], namespace: str, depth: int) -> AvroType:
        found = AvroType("union")
        found.branches = tuple(self.parse(each, namespace, depth + 1) for each in document)
        self._new.append(found)
        return found

    def _record(self, document: dict[str, Any], namespace: str, depth: int) -> AvroType:
        found = self._named("record", document, namespace)
        found.is_error = document["type"] == "error"
        listed = document.get("fields")
        if not isinstance(listed, list):
            raise InvalidSchemaError(f"Record has no fields: {_shown(document)}")
        fields: dict[str, AvroField] = {}
        for each in listed:
            one = self._field(each, found.namespace, depth)
            if one.name in fields:
                raise InvalidSchemaError(f"Duplicate field {one.name} in record {found.full_name}")
            fields[one.name] = one
        found.fields = tuple(fields.values())
        self._records.append(found)
        return self._define(found)

    def _field(self, document: Any, namespace: str, depth: int) -> AvroField:
        if not isinstance(document, dict) or not isinstance(document.get("name"), str):
            raise InvalidSchemaError(f"No field name: {_shown(document)}")
        name = self._checked(document["name"])
        if "type" not in document:
            raise InvalidSchemaError(f"No field type: {_shown(document)}")
        one = AvroField(name, self.parse(document["type"], namespace, depth + 1))
        one.doc = _text(document, "doc")
        one.has_default = "default" in document
        one.default = document.get("default")
        order = str(document.get("order", "ascending")).lower()
        if order not in ("ascending", "descending", "ignore"):
            raise InvalidSchemaError(f"the field {name} has the unknown order {order[:100]!r}")
        one.order = order
        one.aliases = _aliases(document)
        one.props = _props(document, _FIELD_RESERVED)
        return one

    def _enum(self, document: dict[str, Any], namespace: str) -> AvroType:
        found = self._named("enum", document, namespace)
        symbols = document.get("symbols")
        if not isinstance(symbols, list):
            raise InvalidSchemaError(f"Enum has no symbols: {_shown(document)}")
        seen: set[str] = set()
        for symbol in symbols:
            if not isinstance(symbol, str):
                raise InvalidSchemaError(f"the enum {found.full_name} has a symbol that is no text")
            if self._checked(symbol) in seen:
                raise InvalidSchemaError(f"Duplicate enum symbol: {symbol}")
            seen.add(symbol)
        found.symbols = tuple(symbols)
        found.default = _text(document, "default")
        if found.default is not None and found.default not in seen:
            raise InvalidSchemaError(
                f"The Enum Default: {found.default[:100]} is not in the enum symbol set of {found.full_name}"
            )
        found.props.pop("default", None)
        return self._define(found)

    def _fixed(self, document: dict[str, Any], namespace: str) -> AvroType:
        found = self._named("fixed", document, namespace)
        size = document.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_FIXED_SIZE:
            raise InvalidSchemaError(f"Invalid or no size: {_shown(document)}")
        found.size = size
        return self._define(found)

    def _named(self, kind: str, document: dict[str, Any], around: str) -> AvroType:
        name, namespace = _text(document, "name"), _text(document, "namespace")
        if name is None:
            raise InvalidSchemaError(f"No name in schema: {_shown(document)}")
        space, _, simple = name.rpartition(".")
        if not space:
            space = around if namespace is None else namespace
        for part in space.split(".") if space else ():
            self._checked(part)
        found = AvroType(kind, self._checked(simple), space)
        if found.full_name in _PRIMITIVES:
            raise InvalidSchemaError(f"Schemas may not be named after primitives: {found.full_name}")
        found.doc = _text(document, "doc")
        found.aliases = tuple(dict.fromkeys(_full_alias(each, space) for each in _aliases(document)))
        found.props = _props(document, _RESERVED)
        return found

    def _define(self, found: AvroType) -> AvroType:
        name = found.full_name
        before = self._known.get(name)
        if before is not None:
            self._again.append((name, found))
            return before
        _add_name(self._known, name, found)
        return found

    def _checked(self, name: str) -> str:
        if not (_NAME if self._is_new else _LENIENT_NAME).fullmatch(name):
            raise InvalidSchemaError(f"Illegal name: {name[:200]!r}" if name else "Empty name")
        return name


def _check_union(branches: tuple[AvroType, ...]) -> None:
    seen: set[str] = set()
    for branch in branches:
        if branch.kind == "union":
            raise InvalidSchemaError("Nested union: a union is a branch of another")
        if branch.full_name in seen:
            raise InvalidSchemaError(f"Duplicate in union: {branch.full_name}")
        seen.add(branch.full_name)


def _full_alias(alias: str, namespace: str) -> str:
    space, _, simple = alias.rpartition(".")
    if not space and not alias.startswith("."):
        space = namespace
    if not simple:
        raise InvalidSchemaError(f"Illegal alias: {alias[:200]!r}")
    return f"{space}.{simple}" if space else f".{simple}" if namespace else simple


def _aliases(document: dict[str, Any]) -> tuple[str, ...]:
    listed = document.get("aliases")
    if listed is None and "aliases" not in document:
        return ()
    if not isinstance(listed, list):
        raise InvalidSchemaError(f"aliases not an array: {_shown(document)}")
    for each in listed:
        if not isinstance(each, str):
            raise InvalidSchemaError(f"alias not a string: {_shown(each)}")
    return tuple(dict.fromkeys(listed))


def _props(document: dict[str, Any], reserved: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in reserved}


def _text(document: dict[str, Any], name: str) -> str | None:
    found = document.get(name)
    return found if isinstance(found, str) else None


def _shown(value: Any) -> str:
    try:
        return json_text(value)[:200]
    except InvalidSchemaError:
        return "(nested too deeply)"


class _Defaults:
    """Compare defaults with types."""

    def __init__(self) -> None:
        self._left = _MAX_DEFAULT_STEPS

    def fits(self, kind: AvroType, value: Any, depth: int = 0) -> bool:
        """Whether a value can be the default of a field of this type."""
        self._left -= 1
        if self._left < 0:
            raise InvalidSchemaError("the defaults of the Avro schema have too many values")
        if depth > MAX_DEPTH:
            return False
        match kind.kind:
            case "string" | "bytes" | "enum" | "fixed":
                return isinstance(value, str)
            case "int" | "long":
                bits = 31 if kind.kind == "int" else 63
                is_whole = isinstance(value, int) and not isinstance(value, bool)
                return is_whole and -(2**bits) <= value < 2**bits
            case "float" | "double":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "boolean":
                return isinstance(value, bool)
            case "null":
                return value is None
            case "array":
                return isinstance(value, list) and self._all_fit(kind, value, depth)
            case "map":
                return isinstance(value, dict) and self._all_fit(kind, list(value.values()), depth)
            case "union":
                return any(self.fits(each, value, depth + 1) for each in kind.branches)
            case _:
                return isinstance(value, dict) and all(
                    (one.name in value or one.has_default)
                    and self.fits(one.type, value.get(one.name, one.default), depth + 1)
                    for one in kind.fields
                )

    def _all_fit(self, kind: AvroType, values: list[Any], depth: int) -> bool:
        assert kind.item is not None
        item = kind.item
        return all(self.fits(item, each, depth + 1) for each in values)

    def normal(self, kind: AvroType, value: Any, depth: int = 0) -> Any:
        """Write whole numbers of a fractional type with a fraction, and sort the names of objects."""
        if depth > MAX_DEPTH:
            return value
        if kind.kind == "union":
            for branch in kind.branches:
                if branch.kind != "null" and self.fits(branch, value, depth):
                    return self.normal(branch, value, depth + 1)
            return value
        if kind.kind in ("float", "double") and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, list) and kind.item is not None:
            item = kind.item
            return [self.normal(item, each, depth + 1) for each in value]
        if isinstance(value, dict):
            fields = {one.name: one.type for one in kind.fields}
            types = {name: kind.item or fields.get(name) for name in value}
            return {
                name: value[name] if inner is None else self.normal(inner, value[name], depth + 1)
                for name, inner in sorted(types.items(), key=lambda each: each[0])
            }
        return value


class _Printer:
    """Make the document of a type. Each named type is written where it is first met, and then named."""

    def __init__(self, known: set[str], *, normalized: bool = False) -> None:
        self._known: Final = known
        self._normalized: Final = normalized
        self._defaults: Final = _Defaults()

    def document(self, kind: AvroType, namespace: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise InvalidSchemaError("the Avro schema is nested too deeply")
        if kind.kind == "union":
            return [self.document(each, namespace, depth + 1) for each in kind.branches]
        if kind.kind in _NAMED:
            return self._named(kind, namespace, depth)
        props = self._props(kind)
        if kind.item is not None:
            key = "items" if kind.kind == "array" else "values"
            return {"type": kind.kind, key: self.document(kind.item, namespace, depth + 1), **props}
        return {"type": kind.kind, **props} if props else kind.kind

    def _named(self, kind: AvroType, namespace: str, depth: int) -> Any:
        if kind.full_name in self._known:
            is_short = kind.namespace == namespace and (namespace == "" or kind.name not in _TYPE_NAMES)
            return kind.name if is_short else kind.full_name
        self._known.add(kind.full_name)
        return self.definition(kind, namespace, depth)

    def definition(self, kind: AvroType, namespace: str, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {"type": "error" if kind.is_error else kind.kind, "name": kind.name}
        if kind.namespace != namespace:
            out["namespace"] = kind.namespace
        if kind.doc is not None and (kind.doc or not self._normalized):
            out["doc"] = kind.doc
        if kind.kind == "record":
            out["fields"] = [self._field(each, kind.namespace, depth) for each in kind.fields]
        elif kind.kind == "enum":
            out["symbols"] = list(kind.symbols)
            if kind.default is not None:
                out["default"] = kind.default
        else:
            out["size"] = kind.size
        out |= self._props(kind)
        if kind.aliases:
            aliases = sorted(kind.aliases) if self._normalized else kind.aliases
            out["aliases"] = [_short_alias(each, kind.namespace) for each in aliases]
        return out

    def _field(self, one: AvroField, namespace: str, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {"name": one.name, "type": self.document(one.type, namespace, depth + 1)}
        if one.doc is not None:
            out["doc"] = one.doc
        if one.has_default:
            out["default"] = self._defaults.normal(one.type, one.default) if self._normalized else one.default
        if one.order != "ascending":
            out["order"] = one.order
        if one.aliases:
            out["aliases"] = sorted(one.aliases) if self._normalized else list(one.aliases)
        props = one.props
        return out | ({name: _sorted(props[name]) for name in sorted(props)} if self._normalized else props)

    def _props(self, kind: AvroType) -> dict[str, Any]:
        props = kind.props
        if not self._normalized:
            return props
        first = [name for name in _logical_props(props) if name in props]
        return {name: _sorted(props[name]) for name in (*first, *sorted(props.keys() - set(first)))}


def _logical_props(props: Mapping[str, Any]) -> tuple[str, ...]:
    if "logicalType" not in props:
        return ()
    return ("logicalType", "precision", "scale") if props["logicalType"] == "decimal" else ("logicalType",)


def _short_alias(alias: str, namespace: str) -> str:
    space, _, simple = alias.rpartition(".")
    return simple if space == namespace or not space else alias


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value
