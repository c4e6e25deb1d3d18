"""Check JSON values against a JSON Schema: the keywords that schemas of messages use.

Unknown keywords, and `format`, are ignored as the specification allows. References go to places in the same
schema, or in others that are given by name. Patterns are those of RE2, whose time grows with the text and no
more; one that RE2 does not have, as with a lookahead, or that takes too much memory, is not checked.

Bounded: a check has a number of steps, and what a keyword costs is taken from them before it is looked at.
What is left when they are used up is not checked.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ottla.schemas.columns import BOOLEAN, DOUBLE, JSON, LONG, TEXT, ColumnType, Expansion, Fields
from ottla.schemas.columns import MAX_DEPTH as MAX_COLUMN_DEPTH
from ottla.schemas.errors import SchemaError

if TYPE_CHECKING:
    import re2


MAX_PROBLEMS: Final = 5
_NO_REFERENCES: Final[Mapping[str, str]] = MappingProxyType({})
_MAX_STEPS: Final = 50_000
_MAX_DEPTH: Final = 64
# Of a compiled pattern, and of what RE2 keeps for it.
_MAX_PATTERN_MEMORY: Final = 1024 * 1024
# At worst RE2 looks at each instruction of a pattern for each character: these take as long as a step.
_PATTERN_WORK_OF_A_STEP: Final = 256
_TYPES: Final = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


class JsonSchemaDocument:
    __slots__ = ("_others", "_root")

    def __init__(self, text: str, references: Mapping[str, str] = _NO_REFERENCES) -> None:
        """SchemaError if the text is no schema. `references` are others, by the names that `$ref` has."""
        self._root = _parsed(text)
        self._others = {name: _parsed(each) for name, each in references.items()}

    def problems(self, value: Any) -> list[str]:
        """Return what is wrong with a value, the first few things; empty if it is valid."""
        found: list[str] = []
        try:
            for problem in _Check(self._root, self._others).problems(self._root, value, "$", 0):
                found.append(problem)
                if len(found) == MAX_PROBLEMS:
                    break
        except _OutOfSteps:
            pass
        return found

    def columns(self, *, maps: bool = False) -> Fields:
        """The properties of the object that values are, as columns. SchemaError if they are none."""
        fields = self._fields(self._root, 1, Expansion(maps=maps))
        if not fields:
            raise SchemaError("only a JSON Schema of an object with properties has columns")
        return fields

    def _fields(self, schema: Any, depth: int, expansion: Expansion) -> Fields:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict):
            return ()
        return tuple((name, self._column(each, depth, expansion)) for name, each in properties.items())

    def _column(self, schema: Any, depth: int, expansion: Expansion) -> ColumnType:
        expansion.add_column()
        if not isinstance(schema, dict):
            return JSON
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
        others = [each for each in kinds if each != "null"]
        kind = others[0] if len(others) == 1 else None
        if kind == "object" and depth < MAX_COLUMN_DEPTH:
            fields = self._fields(schema, depth + 1, expansion)
            if fields:
                return ColumnType("struct", fields)
            values = schema.get("additionalProperties")
            if expansion.maps and isinstance(values, dict):
                return ColumnType("map", item=self._column(values, depth + 1, expansion))
            return JSON
        if kind == "array" and depth < MAX_COLUMN_DEPTH:
            return ColumnType("list", item=self._column(schema.get("items"), depth + 1, expansion))
        return _COLUMNS.get(str(kind), JSON)


_COLUMNS: Final = {"boolean": BOOLEAN, "integer": LONG, "number": DOUBLE, "string": TEXT}


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON Schema is no JSON: {error}") from None
    if not isinstance(found, dict | bool):
        raise SchemaError("a JSON Schema is an object, true or false")
    return found


class _OutOfSteps(Exception):
    """The steps of a check are used up."""


class _Check:
    __slots__ = ("_left", "_others", "_root")

    def __init__(self, root: Any, others: Mapping[str, Any]) -> None:
        # The document that is looked at: that of the last reference to another one.
        self._root = root
        self._others: Final = others
        self._left = _MAX_STEPS

    def _take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _OutOfSteps

    def problems(self, schema: Any, value: Any, at: str, depth: int) -> Iterator[str]:
        self._take(1)
        if depth > _MAX_DEPTH:
            return
        if schema is False:
            yield f"{at} is not allowed"
        if not isinstance(schema, dict):
            return
        reference = schema.get("$ref")
        if isinstance(reference, str):
            around = self._root
            try:
                yield from self.problems(self._target(reference), value, at, depth + 1)
            finally:
                self._root = around
        yield from self._simple(schema, value, at)
        yield from self._combined(schema, value, at, depth)
        if isinstance(value, dict):
            yield from self._object(schema, value, at, depth)
        elif isinstance(value, list):
            yield from self._array(schema, value, at, depth)

    def _target(self, reference: str) -> Any:
        document, _, place = reference.partition("#")
        if document:
            if document not in self._others:
                return True
            self._root = self._others[document]
        found = self._root
        for part in place.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                return True
            found = found[name]
        return found

    def _is_valid(self, schema: Any, value: Any, at: str, depth: int) -> bool:
        return next(self.problems(schema, value, at, depth + 1), None) is None

    def _combined(self, schema: Mapping[str, Any], value: Any, at: str, depth: int) -> Iterator[str]:
        for each in _list(schema, "allOf"):
            yield from self.problems(each, value, at, depth + 1)
        if (choices := _list(schema, "anyOf")) and not any(
            self._is_valid(each, value, at, depth) for each in choices
        ):
            yield f"{at} matches none of the {len(choices)} schemas of anyOf"
        if choices := _list(schema, "oneOf"):
            matching = sum(self._is_valid(each, value, at, depth) for each in choices)
            if matching != 1:
                yield f"{at} matches {matching} of the {len(choices)} schemas of oneOf, not one"
        if "not" in schema and self._is_valid(schema["not"], value, at, depth):
            yield f"{at} matches what it must not"
        if "if" in schema:
            branch = "then" if self._is_valid(schema["if"], value, at, depth) else "else"
            yield from self.problems(schema.get(branch, True), value, at, depth + 1)

    def _object(
        self, schema: Mapping[str, Any], value: Mapping[str, Any], at: str, depth: int
    ) -> Iterator[str]:
        required = _list(schema, "required")
        self._take(len(required))
        for name in required:
            if name not in value:
                yield f"{at} lacks {name!r}"
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        patterns = schema.get("patternProperties")
        patterns = patterns if isinstance(patterns, dict) else {}
        for name, each in value.items():
            where = f"{at}.{name}"
            known = name in properties
            if known:
                yield from self.problems(properties[name], each, where, depth + 1)
            for pattern, inner in patterns.items():
                if self._matches(pattern, name):
                    known = True
                    yield from self.problems(inner, each, where, depth + 1)
            if not known and "additionalProperties" in schema:
                yield from self.problems(schema["additionalProperties"], each, where, depth + 1)
        yield from _bounds(schema, len(value), at, "Properties", "properties")

    def _array(self, schema: Mapping[str, Any], value: list[Any], at: str, depth: int) -> Iterator[str]:
        items, first = schema.get("items"), _list(schema, "prefixItems")
        if isinstance(items, list):  # before draft 2020-12
            items, first = schema.get("additionalItems", True), items
        for index, each in enumerate(value):
            inner = first[index] if index < len(first) else True if items is None else items
            yield from self.problems(inner, each, f"{at}[{index}]", depth + 1)
        yield from _bounds(schema, len(value), at, "Items", "items")
        if schema.get("uniqueItems") is True:
            self._take(_size(value))
            texts = [json.dumps(each, sort_keys=True) for each in value]
            if len(set(texts)) != len(texts):
                yield f"{at} has an item twice"

    def _simple(self, schema: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
        kinds = schema.get("type")
        if kinds is not None:
            wanted = kinds if isinstance(kinds, list) else [kinds]
            self._take(len(wanted))
            if not any(_is(each, value) for each in wanted):
                yield f"{at} is no {' or '.join(map(str, wanted))[:80]}"
        if "const" in schema:
            self._take(_size(schema["const"]))
            if not _same(schema["const"], value):
                yield f"{at} is not {json.dumps(schema['const'])[:80]}"
        if (choices := schema.get("enum")) is not None:
            self._take(_size(choices))
            if not any(_same(each, value) for each in _list(schema, "enum")):
                yield f"{at} is none of {json.dumps(choices)[:80]}"
        if isinstance(value, str):
            yield from _bounds(schema, len(value), at, "Length", "characters")
            pattern = schema.get("pattern")
            if isinstance(pattern, str) and not self._matches(pattern, value):
                yield f"{at} does not match {pattern[:80]!r}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield from _number(schema, value, at)

    def _matches(self, pattern: str, text: str) -> bool:
        """Whether a pattern is found; also if it is not checked."""
        compiled = compiled_pattern(pattern)
        if compiled is None:
            return True
        self._take(compiled.programsize * len(text) // _PATTERN_WORK_OF_A_STEP)
        return compiled.search(text) is not None


@lru_cache(maxsize=100)
def compiled_pattern(pattern: str) -> re2._Regexp | None:
    """The pattern for RE2; None if it cannot be one."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_PATTERN_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error:
        return None


def _size(value: Any) -> int:
    """The values in a value, in units of a text of 100 characters."""
    size, left = 0, [value]
    while left:
        each = left.pop()
        size += 1
        if isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif isinstance(each, str):
            size += len(each) // 100
    return size


def _number(schema: Mapping[str, Any], value: float, at: str) -> Iterator[str]:
    for name, text, fails in (
        ("minimum", "below", operator.lt),
        ("maximum", "above", operator.gt),
        ("exclusiveMinimum", "not above", operator.le),
        ("exclusiveMaximum", "not below", operator.ge),
    ):
        bound = schema.get(name)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and fails(value, bound):
            yield f"{at} is {text} {bound}"
    step = schema.get("multipleOf")
    if isinstance(step, int | float) and step > 0 and abs(value / step - round(value / step)) > 1e-9:
        yield f"{at} is no multiple of {step}"


def _bounds(schema: Mapping[str, Any], count: int, at: str, name: str, unit: str) -> Iterator[str]:
    least, most = schema.get(f"min{name}"), schema.get(f"max{name}")
    if isinstance(least, int) and count < least:
        yield f"{at} has {count} {unit}, fewer than {least}"
    if isinstance(most, int) and count > most:
        yield f"{at} has {count} {unit}, more than {most}"


def _is(kind: Any, value: Any) -> bool:
    if kind in ("number", "integer"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return kind == "number" or value == int(value)
    wanted = _TYPES.get(kind)
    return wanted is not None and isinstance(value, wanted)


def _same(a: Any, b: Any) -> bool:
    """Equality of JSON, where true is not 1."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []
