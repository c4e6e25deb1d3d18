"""JSON as Java's registries read and print it: the same schema has the same text in theirs and in ours."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final, NoReturn

from ottla.schemas.parsed import InvalidSchemaError, check_size

# What looks like a comment in a string is none.
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_START: Final = re.compile(r'"|/\*|//')
_MAX_DEPTH: Final = 200
_ESCAPED: Final = re.compile(r"\\(?:u([0-9a-f]{4})|.)")


def parse_json(text: str, *, comments: bool = False, decimals: bool = False) -> Any:
    """Return the value of a text. InvalidSchemaError if it is no JSON, or nested too deeply.

    `comments` allows those of Java. `decimals` keeps the digits of a number with a fraction as they are.
    """
    check_size(text)
    number: Any = Decimal if decimals else float
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=number)
    except (ValueError, ArithmeticError) as error:
        if comments and ("/*" in text or "//" in text):
            return parse_json(_without_comments(text), decimals=decimals)
        raise InvalidSchemaError(f"the schema is no JSON: {error}") from None
    except RecursionError:
        raise InvalidSchemaError("the schema is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _without_comments(text: str) -> str:
    kept: list[str] = []
    at = 0
    while (start := _START.search(text, at)) is not None:
        kept.append(text[at : start.start()])
        if start[0] == '"':
            string = _STRING.match(text, start.start())
            if string is None:
                at = start.start()
                break
            kept.append(string[0])
            at = string.end()
            continue
        end = text.find("\n" if start[0] == "//" else "*/", start.end())
        if end < 0:
            return "".join(kept)
        kept.append(" ")
        at = end + (1 if start[0] == "//" else 2)
    kept.append(text[at:])
    return "".join(kept)


def json_text(value: Any) -> str:
    """Print a value without white space, with numbers and characters as Java's Jackson does."""
    parts: list[str] = []
    _print(value, parts, 0)
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidSchemaError("the schema has half of a character that takes two") from None
    return text


def _print(value: Any, parts: list[str], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise InvalidSchemaError("the schema is nested too deeply")
    if isinstance(value, dict):
        before = "{"
        for name, each in value.items():
            parts.append(f"{before}{_string(name)}:")
            _print(each, parts, depth + 1)
            before = ","
        parts.append("}" if value else "{}")
    elif isinstance(value, list):
        before = "["
        for each in value:
            parts.append(before)
            _print(each, parts, depth + 1)
            before = ","
        parts.append("]" if value else "[]")
    elif isinstance(value, str):
        parts.append(_string(value))
    elif isinstance(value, float):
        parts.append(_double(value))
    elif isinstance(value, Decimal):
        parts.append(str(value))
    else:
        parts.append(json.dumps(value))


def _string(text: str) -> str:
    """Quote a text. Java's letters in escapes are large."""
    quoted = json.dumps(text, ensure_ascii=False)
    if "\\u" not in quoted:
        return quoted
    return _ESCAPED.sub(lambda match: f"\\u{match[1].upper()}" if match[1] else match[0], quoted)


def _double(number: float) -> str:
    if not math.isfinite(number):
        return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{exponent + len(digits) - 1}"
