"""Check JSON values against a JSON Schema: the keywords that schemas of messages use.

Unknown keywords, and `format`, are ignored as the specification allows. References go to places in the same
schema only.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ottla.schemas.columns import BOOLEAN, DOUBLE, JSON, LONG, TEXT, ColumnType, Fields
from ottla.schemas.columns import MAX_DEPTH as MAX_COLUMN_DEPTH
from ottla.schemas.errors import SchemaError

__all__ = ["JsonSchema"]

MAX_PROBLEMS: Final = 5
_MAX_CHECKS: Final = 50_000
_MAX_DEPTH: Final = 64
_MAX_PATTERN_TEXT: Final = 1_000
_NESTED_REPEATS: Final = re.compile(r"[+*}]\)?[^()]*\)(?:[+*]|\{\d+,)")
_TYPES: Final = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


class JsonSchema:
    __slots__ = ("_root",)

    def __init__(self, text: str) -> None:
        try:
            self._root = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"the JSON Schema is no JSON: {error}") from None
        if not isinstance(self._root, dict | bool):
            raise SchemaError("a JSON Schema is an object, true or false")

    def problems(self, value: Any) -> list[str]:
        """Return what is wrong with a value, the first few things; empty if it is valid."""
        check = _Check(self._root)
        found: list[str] = []
        for problem in check.problems(self._root, value, "$", 0):
            found.append(problem)
            if len(found) == MAX_PROBLEMS:
                break
        return found

    def columns(self) -> Fields:
        """The properties of the object that values are, as columns. SchemaError if they are none."""
        fields = self._fields(self._root, 1)
        if not fields:
            raise SchemaError("only a JSON Schema of an object with properties has columns")
        return fields

    def _fields(self, schema: Any, depth: int) -> Fields:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict):
            return ()
        return tuple((name, self._column(each, depth)) for name, each in properties.items())

    def _column(self, schema: Any, depth: int) -> ColumnType:
        if not isinstance(schema, dict):
            return JSON
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
        others = [each for each in kinds if each != "null"]
        kind = others[0] if len(others) == 1 else None
        if kind == "object" and depth < MAX_COLUMN_DEPTH:
            fields = self._fields(schema, depth + 1)
            return ColumnType("struct", fields) if fields else JSON
        if kind == "array" and depth < MAX_COLUMN_DEPTH:
            return ColumnType("list", item=self._column(schema.get("items"), depth + 1))
        return _COLUMNS.get(str(kind), JSON)


_COLUMNS: Final = {"boolean": BOOLEAN, "integer": LONG, "number": DOUBLE, "string": TEXT}


class _Check:
    __slots__ = ("_left", "_root")

    def __init__(self, root: Any) -> None:
        self._root: Final = root
        self._left = _MAX_CHECKS

    def problems(self, schema: Any, value: Any, at: str, depth: int) -> Iterator[str]:
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            return
        if schema is False:
            yield f"{at} is not allowed"
        if not isinstance(schema, dict):
            return
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield from self.problems(self._target(reference), value, at, depth + 1)
        yield from _simple(schema, value, at)
        yield from self._combined(schema, value, at, depth)
        if isinstance(value, dict):
            yield from self._object(schema, value, at, depth)
        elif isinstance(value, list):
            yield from self._array(schema, value, at, depth)

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return True
        found = self._root
        for part in reference[1:].split("/")[1:]:
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
        for name in _list(schema, "required"):
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
                if _matches(pattern, name):
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
            texts = [json.dumps(each, sort_keys=True) for each in value]
            if len(set(texts)) != len(texts):
                yield f"{at} has an item twice"


def _simple(schema: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
    kinds = schema.get("type")
    if kinds is not None:
        wanted = kinds if isinstance(kinds, list) else [kinds]
        if not any(_is(each, value) for each in wanted):
            yield f"{at} is no {' or '.join(map(str, wanted))}"
    if "const" in schema and not _same(schema["const"], value):
        yield f"{at} is not {json.dumps(schema['const'])[:80]}"
    if (choices := schema.get("enum")) is not None and not any(
        _same(each, value) for each in _list(schema, "enum")
    ):
        yield f"{at} is none of {json.dumps(choices)[:80]}"
    if isinstance(value, str):
        yield from _bounds(schema, len(value), at, "Length", "characters")
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not _matches(pattern, value):
            yield f"{at} does not match {pattern[:80]!r}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(schema, value, at)


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


def _matches(pattern: str, text: str) -> bool:
    """Whether a pattern is found. A pattern that could take exponential time, and a text that is very long,
    are not looked at.
    """
    if len(text) > _MAX_PATTERN_TEXT or _NESTED_REPEATS.search(pattern):
        return True
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []
