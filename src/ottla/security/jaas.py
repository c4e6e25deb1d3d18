"""Read JAAS text, the form in which Kafka's settings have credentials, as Kafka's `JaasConfig` reads it.

`org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="x";` is one
entry: the class of a login module, a control flag and options. Java's `StreamTokenizer` defines the tokens,
with all its habits: `//`, `/*` and a single `/` begin comments, a quoted text ends at the end of its line,
and a value that is not quoted must not begin with a digit. Messages have no values: most are secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_FLAGS: Final = frozenset(("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"))
_QUOTES: Final = "\"'"
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasError(ValueError):
    """The text is no JAAS configuration; the message says what is missing, without any value."""


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """One login module and its options."""

    login_module: str
    options: Mapping[str, str] = field(repr=False)


class _Token(NamedTuple):
    # What kind it is: "word" (also a quoted one), "number", or the character itself.
    kind: str
    text: str | None


def parse_jaas(text: str) -> JaasEntry:
    """Read a setting that has exactly one entry. JaasError if it has none, several, or is malformed."""
    entries = list(_entries(text))
    if not entries:
        raise JaasError("Login module not specified in JAAS config")
    if len(entries) > 1:
        raise JaasError(f"JAAS config property contains {len(entries)} login modules, should be 1 module")
    return entries[0]


def _entries(text: str) -> Iterator[JaasEntry]:
    tokens = _tokens(text)
    for token in tokens:
        flag = next(tokens, None)
        if flag is None:
            raise JaasError("Login module control flag not specified in JAAS config")
        if flag.text is None:
            raise JaasError("Login module control flag is not available in the JAAS config")
        if flag.text.upper() not in _FLAGS:
            raise JaasError(
                f"Invalid login module control flag in JAAS config; it is one of {', '.join(sorted(_FLAGS))}"
            )
        options: dict[str, str] = {}
        for key in tokens:
            if key.kind == ";":
                break
            equals, value = next(tokens, None), None
            if equals is not None and equals.kind == "=":
                value = next(tokens, None)
            if key.text is None or value is None or value.text is None:
                raise JaasError(
                    f"Value not specified for key '{key.text}' in JAAS config; quote what is no word"
                )
            options[key.text] = value.text
        else:
            raise JaasError("JAAS config entry not terminated by semi-colon")
        if token.text is None:
            raise JaasError("Login module not specified in JAAS config")
        yield JaasEntry(token.text, options)


def _is_word(char: str) -> bool:
    """Whether the character may begin a word. Digits, dots and dashes only continue one."""
    return ("a" <= char <= "z") or ("A" <= char <= "Z") or char in "_$" or char >= "\xa0"


def _continues_word(char: str) -> bool:
    return _is_word(char) or ("0" <= char <= "9") or char in ".-"


def _tokens(text: str) -> Iterator[_Token]:
    position, end = 0, len(text)
    while position < end:
        char = text[position]
        if char <= " ":
            position += 1
        elif char == "/":
            position = _skip_comment(text, position)
        elif char in _QUOTES:
            value, position = _quoted(text, position)
            yield _Token("word", value)
        elif ("0" <= char <= "9") or char in ".-":
            token, position = _number(text, position)
            yield token
        elif _is_word(char):
            start = position
            while position < end and _continues_word(text[position]):
                position += 1
            yield _Token("word", text[start:position])
        else:
            position += 1
            yield _Token(char, None)


def _skip_comment(text: str, position: int) -> int:
    if text.startswith("/*", position):
        closing = text.find("*/", position + 2)
        return len(text) if closing < 0 else closing + 2
    while position < len(text) and text[position] not in "\r\n":
        position += 1
    return position


def _number(text: str, position: int) -> tuple[_Token, int]:
    first, position, digits, dots = position, position, 0, 0
    if text[position] == "-":
        position += 1
    while position < len(text):
        char = text[position]
        if "0" <= char <= "9":
            digits += 1
        elif char == "." and not dots:
            dots += 1
        else:
            break
        position += 1
    if not digits and not dots:
        return _Token("-", None), first + 1
    return _Token("number", None), position


def _quoted(text: str, position: int) -> tuple[str, int]:
    quote = text[position]
    position += 1
    out: list[str] = []
    while position < len(text):
        char = text[position]
        if char == quote:
            return "".join(out), position + 1
        if char in "\r\n":
            break
        position += 1
        if char == "\\" and position < len(text):
            char, position = _escaped(text, position)
        out.append(char)
    return "".join(out), position


def _escaped(text: str, position: int) -> tuple[str, int]:
    char = text[position]
    if not "0" <= char <= "7":
        return _ESCAPES.get(char, char), position + 1
    length = 3 if char <= "3" else 2
    end = position + 1
    while end < min(position + length, len(text)) and "0" <= text[end] <= "7":
        end += 1
    return chr(int(text[position:end], 8)), end
