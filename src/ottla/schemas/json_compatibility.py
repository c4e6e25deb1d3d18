"""Whether values of one JSON Schema are valid for another, as Confluent's registry classifies changes.

A content model is open when an object may have any further properties, closed when it may have none, and
partly open when a schema says which. What is added to an open one may contradict values that were valid.

Pairs of parts are compared once. A pair inside of itself is compatible unless something else says otherwise,
so the comparison is repeated with what was found, until nothing more is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

from ottla.schemas.json_definition import JsonDefinition, JsonPart
from ottla.schemas.json_schema import compiled_pattern

_MAX_PAIRS: Final = 50_000
_MAX_PROBLEMS: Final = 100
_MAX_DEPTH: Final = 120
_Problems = list[tuple[str, str]]
"""The kind of a difference, and where it is, below the pair that is compared."""

_READER: Final = "in the {reader} schema"
_WRITER: Final = "in the {writer} schema"
_KEYWORD: Final = f"The keyword at path '{{path}}' {_READER} is not present {_WRITER}"
_MORE: Final = f"The value at path '{{path}}' {_READER} is more than its value {_WRITER}"
_LESS: Final = f"The value at path '{{path}}' {_READER} is less than its value {_WRITER}"
_VALUE: Final = "The value at path '{path}' is different between the {reader} and {writer} schema"
_ELEMENTS: Final = "elements in the {reader} schema than the {writer} schema"
_FEWER: Final = f"An array or combined type at path '{{path}}' has fewer {_ELEMENTS}"
_FURTHER: Final = f"An array or combined type at path '{{path}}' has more {_ELEMENTS}"
_TYPE: Final = "A type at path '{path}' is different between the {reader} schema and the {writer} schema"
_OPEN: Final = (
    "The {reader} schema has an open content model and has a property or item at path '{path}' which is "
    f"missing {_WRITER}"
)
_CLOSED: Final = (
    "The {reader} has a closed content model and is missing a property or item present at path '{path}' "
    f"{_WRITER}"
)
_NOT_COVERED: Final = (
    f"A property or item is missing {_READER} but present at path '{{path}}' {_WRITER} and is not covered by "
    "its partially open content model"
)
_ADDED_NOT_COVERED: Final = (
    "The {reader} schema has a property or item at path '{path}' which is missing "
    f"{_WRITER} and is not covered by its partially open content model"
)
_UNOPEN: Final = (
    "The {reader} schema has an unopen content model and has a required property at path '{path}' which is "
    f"missing {_WRITER}"
)
_DESCRIPTIONS: Final = {
    "TYPE_CHANGED": _TYPE,
    "TYPE_NARROWED": _TYPE,
    "COMBINED_TYPE_CHANGED": _TYPE,
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED": _TYPE,
    "ENUM_ARRAY_CHANGED": _TYPE,
    "ENUM_ARRAY_NARROWED": _FEWER,
    "SUM_TYPE_NARROWED": _FEWER,
    "ADDITIONAL_ITEMS_NARROWED": _FEWER,
    "ADDITIONAL_PROPERTIES_NARROWED": _FEWER,
    "UNEVALUATED_ITEMS_NARROWED": _FEWER,
    "UNEVALUATED_PROPERTIES_NARROWED": _FEWER,
    "DEPENDENCY_ARRAY_EXTENDED": _FURTHER,
    "PRODUCT_TYPE_EXTENDED": _FURTHER,
    "NOT_TYPE_EXTENDED": _FURTHER,
    "PATTERN_CHANGED": _VALUE,
    "MULTIPLE_OF_CHANGED": _VALUE,
    "DEPENDENCY_ARRAY_CHANGED": _VALUE,
    "MULTIPLE_OF_EXPANDED": _MORE,
    "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "ITEM_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL": _UNOPEN,
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL": _CLOSED,
    "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL": _CLOSED,
    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": _NOT_COVERED,
    "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": _NOT_COVERED,
    "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": _ADDED_NOT_COVERED,
    "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": _ADDED_NOT_COVERED,
    "SCHEMA_ADDED": "",
}


# What the lenient policy allows: producers and consumers that take an object to have no further properties.
_LENIENT: Final = frozenset(
    (
        "ADDITIONAL_PROPERTIES_NARROWED",
        "ADDITIONAL_PROPERTIES_REMOVED",
        "UNEVALUATED_PROPERTIES_NARROWED",
        "UNEVALUATED_PROPERTIES_REMOVED",
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL",
        "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    )
)


class _TooManyPairs(Exception):
    """The schemas are too large, or nested too deeply, to be compared."""


def json_differences(
    reader: JsonDefinition,
    writer: JsonDefinition,
    reader_name: str,
    writer_name: str,
    *,
    lenient: bool = False,
) -> list[str]:
    """Say why a value that the writer's schema allows is not valid for the reader; empty if all are. It is
    `lenient` to take it that objects have no properties but those that their schema names.
    """
    allowed = _LENIENT if lenient else frozenset()
    known: dict[tuple[int, int], _Problems] = {}
    try:
        while True:
            comparison = _Comparison(known, allowed)
            comparison.compare(writer.root, reader.root)
            found = comparison.incompatible()
            if not comparison.assumed or found.keys() == known.keys():
                break
            known = found
    except (_TooManyPairs, RecursionError):
        return ["The schemas are too large, or nested too deeply, to be compared"]
    return [
        f'{{errorType:"{kind}", description:"'
        + _description(kind).format(path=path, reader=reader_name, writer=writer_name)
        + "'}"
        for kind, path in ((kind, f"#/{path}") for kind, path in comparison.problems)
    ]


def _description(kind: str) -> str:
    if kind in _DESCRIPTIONS:
        return _DESCRIPTIONS[kind]
    if kind.endswith("_INCREASED"):
        return _MORE
    return _LESS if kind.endswith("_DECREASED") else _KEYWORD


class _Comparison:
    """Compare parts of the schema that values were valid for (old) with those of the one that reads them."""

    def __init__(self, known: Mapping[tuple[int, int], _Problems], allowed: frozenset[str]) -> None:
        self._known: Final = known
        self._allowed: Final = allowed
        self._compared: Final[dict[tuple[int, int], _Problems]] = {}
        self._under_way: Final[set[tuple[int, int]]] = set()
        self._left = _MAX_PAIRS
        self._path: list[str] = []
        self.assumed = False
        """Whether a pair inside of itself was taken to be compatible."""
        self.problems: _Problems = []

    def incompatible(self) -> dict[tuple[int, int], _Problems]:
        """Return the pairs that differ."""
        return {pair: found for pair, found in self._compared.items() if found}

    @contextmanager
    def _at(self, *names: str) -> Iterator[None]:
        self._path += names
        yield
        del self._path[-len(names) :]

    def _add(self, kind: str, *names: str) -> None:
        if kind not in self._allowed and len(self.problems) < _MAX_PROBLEMS:
            self.problems.append((kind, "/".join((*self._path, *names))))

    def _take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooManyPairs

    def compare(self, old: JsonPart | None, new: JsonPart | None) -> None:
        """Add what differs between two parts. None stands for a keyword that is not there."""
        if new is None:
            return
        if old is None:
            self._add("SCHEMA_ADDED")
            return
        prefix = "/".join(self._path)
        for kind, path in self._pair(old.resolved(), new.resolved()):
            if len(self.problems) < _MAX_PROBLEMS:
                self.problems.append((kind, f"{prefix}/{path}" if prefix and path else prefix or path))

    def _pair(self, old: JsonPart, new: JsonPart) -> _Problems:
        pair = (id(old), id(new))
        found = self._compared.get(pair)
        if found is not None:
            return found
        if pair in self._under_way:
            if pair in self._known:
                return self._known[pair]
            self.assumed = True
            return []
        self._take(1)
        if len(self._under_way) > _MAX_DEPTH:
            raise _TooManyPairs
        self._under_way.add(pair)
        around = self._path, self.problems
        self._path, self.problems = [], []
        try:
            self._parts(old, new)
            found = self._compared[pair] = self.problems
        finally:
            self._path, self.problems = around
            self._under_way.discard(pair)
        return found

    def _fits(self, old: JsonPart, new: JsonPart) -> bool:
        """Whether two parts are compatible; what differs is not added."""
        return not self._pair(old.resolved(), new.resolved())

    def _parts(self, old: JsonPart, new: JsonPart) -> None:
        if new.kind == "combined" and old.kind != "combined":
            alternatives = len(new.parts) == 1 or new.criterion in ("anyOf", "oneOf")
            if alternatives and any(self._fits(old, each) for each in new.parts):
                return
        elif old.kind == "combined" and new.kind != "combined":
            product = len(old.parts) == 1 or old.criterion == "allOf"
            if product and any(self._fits(each, new) for each in old.parts):
                return
        if old.kind != new.kind:
            is_bytes = old.connect_type == new.connect_type == "bytes"
            if old.kind != "false" and not new.is_empty and not is_bytes:
                self._add("TYPE_CHANGED")
            return
        match old.kind:
            case "string":
                self._bounds(old, new, "Length")
                self._pattern(old.keywords.get("pattern"), new.keywords.get("pattern"))
            case "number":
                self._number(old, new)
            case "enum":
                self._enum(old, new)
            case "const":
                if old.key != new.key:
                    self._add("ENUM_ARRAY_CHANGED", "const")
            case "combined":
                self._combined(old, new)
            case "not":
                if not self._fits(new.parts[0], old.parts[0]):
                    self._add("NOT_TYPE_EXTENDED", "not")
            case "object":
                self._object(old, new)
            case "array":
                self._array(old, new)

    def _bounds(self, old: JsonPart, new: JsonPart, unit: str) -> None:
        for keyword in (f"max{unit}", f"min{unit}"):
            self._bound(keyword, old.keywords.get(keyword), new.keywords.get(keyword))

    def _bound(self, keyword: str, old: Any, new: Any) -> None:
        """Compare numbers that bound values from above, as maximum does, or from below."""
        if new is None or old == new or isinstance(old, bool) or isinstance(new, bool):
            return
        name = "".join(f"_{each}" if each.isupper() else each for each in keyword).upper()
        if old is None:
            self._add(f"{name}_ADDED", keyword)
        elif "max" in keyword.lower():
            if new < old:
                self._add(f"{name}_DECREASED", keyword)
        elif new > old:
            self._add(f"{name}_INCREASED", keyword)

    def _pattern(self, old: Any, new: Any) -> None:
        if new is not None and old != new:
            self._add("PATTERN_ADDED" if old is None else "PATTERN_CHANGED", "pattern")

    def _number(self, old: JsonPart, new: JsonPart) -> None:
        for keyword in ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"):
            self._bound(keyword, old.keywords.get(keyword), new.keywords.get(keyword))
        before, after = old.keywords.get("multipleOf"), new.keywords.get("multipleOf")
        if after is not None and before != after:
            if before is None:
                self._add("MULTIPLE_OF_ADDED", "multipleOf")
            elif _divides(before, after):
                self._add("MULTIPLE_OF_EXPANDED", "multipleOf")
            elif not _divides(after, before):
                self._add("MULTIPLE_OF_CHANGED", "multipleOf")
        if new.is_integer and not old.is_integer:
            self._add("TYPE_NARROWED")

    def _enum(self, old: JsonPart, new: JsonPart) -> None:
        before = {_value_key(each) for each in old.keywords["enum"]}
        after = {_value_key(each) for each in new.keywords["enum"]}
        if not before <= after:
            self._add("ENUM_ARRAY_NARROWED" if after <= before else "ENUM_ARRAY_CHANGED", "enum")

    def _combined(self, old: JsonPart, new: JsonPart) -> None:
        if old.criterion != new.criterion and not (
            new.criterion == "anyOf"
            or (len(old.parts) == 1 and (len(new.parts) == 1 or new.criterion == "oneOf"))
            or (len(new.parts) == 1 and old.criterion == "allOf")
        ):
            self._add("COMBINED_TYPE_CHANGED")
            return
        before = list({each.key or id(each): each for each in old.parts}.values())
        after = list({each.key or id(each): each for each in new.parts}.values())
        if len(before) < len(after):
            if new.criterion == "allOf":
                self._add("PRODUCT_TYPE_EXTENDED")
        elif len(before) > len(after) and old.criterion != "allOf":
            self._add("SUM_TYPE_NARROWED")
        self._take(len(before) * len(after))
        fitting = [[place for place, each in enumerate(after) if self._fits(one, each)] for one in before]
        if _most_pairs(fitting) < min(len(before), len(after)):
            self._add("COMBINED_TYPE_SUBSCHEMAS_CHANGED")

    def _object(self, old: JsonPart, new: JsonPart) -> None:
        for name, part in new.properties.items():
            if name in old.properties and name in new.required - old.required and not _default(part):
                self._add("REQUIRED_ATTRIBUTE_ADDED", "required", name)
        for name in {**old.properties, **new.properties}:
            with self._at("properties", name):
                self._property(name, old, new)
        for name, needed in new.needs.items():
            before = old.needs.get(name)
            if before is None:
                self._add("DEPENDENCY_ARRAY_ADDED", "dependencies", name)
            elif not needed <= before:
                kind = "EXTENDED" if before <= needed else "CHANGED"
                self._add(f"DEPENDENCY_ARRAY_{kind}", "dependencies", name)
        for name, part in new.dependencies.items():
            if name not in old.dependencies:
                self._add("DEPENDENCY_SCHEMA_ADDED", "dependencies", name)
            else:
                with self._at("dependencies", name):
                    self.compare(old.dependencies[name], part)
        self._further(old, new, "additionalProperties", "ADDITIONAL_PROPERTIES")
        self._unevaluated(old, new, "unevaluatedProperties", "UNEVALUATED_PROPERTIES")
        self._bounds(old, new, "Properties")

    def _property(self, name: str, old: JsonPart, new: JsonPart) -> None:
        before, after = old.properties.get(name), new.properties.get(name)
        if before is not None and after is not None:
            self.compare(before, after)
        elif before is not None:
            if _is_open(new, "additionalProperties", "unevaluatedProperties"):
                return
            covering = _covering(new, name)
            self._removed("PROPERTY", before, covering)
        elif after is not None:
            kind = "REQUIRED_PROPERTY_ADDED_TO_" if name in new.required else "OPTIONAL_PROPERTY_ADDED_TO_"
            with_default = name in new.required and _default(after)
            if _is_open(old, "additionalProperties", "unevaluatedProperties"):
                if with_default:
                    kind = "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_"
                if not after.is_empty:
                    self._add(f"{kind}OPEN_CONTENT_MODEL")
                return
            self._added("PROPERTY", _covering(old, name), after)
            if name in new.required and not with_default:
                self._add("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL")

    def _removed(self, what: str, before: JsonPart, covering: JsonPart | None) -> None:
        if covering is None:
            if before.kind != "false":
                self._add(f"{what}_REMOVED_FROM_CLOSED_CONTENT_MODEL")
        elif not self._fits(before, covering):
            self.compare(before, covering)
            self._add(f"{what}_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")

    def _added(self, what: str, covering: JsonPart | None, after: JsonPart) -> None:
        if covering is not None and not self._fits(covering, after):
            self.compare(covering, after)
            self._add(f"{what}_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")

    def _further(self, old: JsonPart, new: JsonPart, keyword: str, kind: str) -> None:
        before, after = old.named.get(keyword), new.named.get(keyword)
        old_permits, new_permits = not _is_false(before), not _is_false(after)
        if old_permits != new_permits:
            if not new_permits:
                self._add(f"{kind}_REMOVED", keyword)
        elif old_permits:
            if before is None and after is not None:
                self._add(f"{kind}_NARROWED", keyword)
            elif before is not None and after is not None:
                with self._at(keyword):
                    self.compare(before, after)

    def _unevaluated(self, old: JsonPart, new: JsonPart, keyword: str, kind: str) -> None:
        before, after = old.named.get(keyword), new.named.get(keyword)
        if after is None or _is_false(before):
            return
        if _is_false(after):
            self._add(f"{kind}_REMOVED", keyword)
        elif before is None or (before.is_empty and not after.is_empty):
            self._add(f"{kind}_NARROWED", keyword)
        elif not after.is_empty:
            with self._at(keyword):
                self.compare(before, after)

    def _array(self, old: JsonPart, new: JsonPart) -> None:
        with self._at("items"):
            self.compare(old.named.get("items"), new.named.get("items"))
        self._tuple(old, new)
        self._further(old, new, "additionalItems", "ADDITIONAL_ITEMS")
        self._unevaluated(old, new, "unevaluatedItems", "UNEVALUATED_ITEMS")
        self._bounds(old, new, "Items")
        if new.keywords.get("uniqueItems") is True and old.keywords.get("uniqueItems") is not True:
            self._add("UNIQUE_ITEMS_ADDED", "uniqueItems")
        if "contains" in old.named or "contains" in new.named:
            for keyword, otherwise in (("maxContains", None), ("minContains", 1)):
                before, after = (
                    each.keywords.get(keyword, otherwise) if "contains" in each.named else None
                    for each in (old, new)
                )
                self._bound(keyword, before, after)

    def _tuple(self, old: JsonPart, new: JsonPart) -> None:
        for index in range(max(len(old.parts), len(new.parts))):
            with self._at(f"items/{index}"):
                if index < min(len(old.parts), len(new.parts)):
                    self.compare(old.parts[index], new.parts[index])
                elif index < len(old.parts):
                    if not _is_open(new, "additionalItems", "unevaluatedItems"):
                        self._removed("ITEM", old.parts[index], _covering_items(new))
                elif _is_open(old, "additionalItems", "unevaluatedItems"):
                    if not new.parts[index].is_empty:
                        self._add("ITEM_ADDED_TO_OPEN_CONTENT_MODEL")
                else:
                    self._added("ITEM", _covering_items(old), new.parts[index])


def _is_false(part: JsonPart | None) -> bool:
    return part is not None and part.kind == "false"


def _default(part: JsonPart) -> bool:
    return part.has_default


def _is_open(part: JsonPart, additional: str, unevaluated: str) -> bool:
    """Whether anything may be added to an object or array of this part."""
    rest = part.named.get(unevaluated)
    return additional not in part.named and not part.patterns and (rest is None or rest.is_empty)


def _covering(part: JsonPart, name: str) -> JsonPart | None:
    """Return what holds for a property that is not listed; None if there is no such schema."""
    for pattern, found in part.patterns.items():
        compiled = compiled_pattern(pattern)
        if compiled is not None and compiled.search(name) is not None:
            return found
    return _rest(part, "additionalProperties", "unevaluatedProperties")


def _covering_items(part: JsonPart) -> JsonPart | None:
    return _rest(part, "additionalItems", "unevaluatedItems")


def _rest(part: JsonPart, additional: str, unevaluated: str) -> JsonPart | None:
    found = part.named.get(additional)
    if found is not None:
        return None if found.kind == "false" else found
    found = part.named.get(unevaluated)
    return found if found is not None and found.kind != "false" and not found.is_empty else None


def _divides(divisor: Any, number: Any) -> bool:
    try:
        return bool(divisor) and Decimal(number) % Decimal(divisor) == 0
    except ArithmeticError:
        return False


def _value_key(value: Any) -> str:
    """Text that is the same for equal values, and another one for values of other types."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{name!r}:{_value_key(value[name])}' for name in sorted(value))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_value_key, value))}]"
    return repr(value)


def _most_pairs(fitting: Sequence[Sequence[int]]) -> int:
    """Return how many of the first can each have one of the second that fits, and no other has."""
    taken: dict[int, int] = {}

    def find(one: int, seen: set[int]) -> bool:
        for place in fitting[one]:
            if place not in seen:
                seen.add(place)
                if place not in taken or find(taken[place], seen):
                    taken[place] = one
                    return True
        return False

    return sum(find(one, set()) for one in range(len(fitting)))
