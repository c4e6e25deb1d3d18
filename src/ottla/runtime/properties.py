"""Java's properties format, in which Kafka's configuration files are written.

A line is a key and a value, separated by `=`, `:` or white space; `#` and `!` begin a comment; a backslash
at the end of a line continues it, and elsewhere escapes what follows. As in Java, a later line for the same
key wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_BLANK: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """The keys and values of a file's text. ValueError, with the line's number, for a broken \\u escape."""
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        try:
            key, value = _split(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        properties[key] = value
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, comments and blank lines left out."""
    pending: list[str] = []
    start = 0
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = raw.lstrip(_BLANK)
        if not pending:
            if not line or line[0] in "#!":
                continue
            start = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending.append(line[:-1])
            continue
        yield start, "".join([*pending, line])
        pending = []
    if pending:
        yield start, "".join(pending)


def _split(line: str) -> tuple[str, str]:
    """The key ends at the first separator that is not escaped; one `=` or `:` may stand among the blanks."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return _unescape(line[:end]), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise ValueError(
                    f"malformed escape {chr(92)}u{digits}: four hexadecimal digits must follow {chr(92)}u"
                )
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(char, char))
    # Java writes characters beyond the basic plane as two \u escapes; put such pairs together.
    return "".join(out).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
