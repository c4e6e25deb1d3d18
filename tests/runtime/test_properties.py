"""Java's properties format, read as Java reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.runtime.properties import parse_properties
from tests.support.rows import for_each


@for_each(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("  a \t = \f 1 ", {"a": "1 "}),
        ("a==1", {"a": "=1"}),
        ("a = : 1", {"a": ": 1"}),
        ("a", {"a": ""}),
        ("=x", {"": "x"}),
        ("# a=1\n! b=2\n\n  # c=3\nd=4", {"d": "4"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1,\\\n   2,\\\n\t3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("a=1\\", {"a": "1"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\:b\\ c:d", {"a:b c": "d"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u00e9\\u4E2D", {"a": "é中"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("password=a\\#b", {"password": "a#b"}),
    ],
)
def test_reads_what_java_reads(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_broken_escape_names_its_line() -> None:
    with pytest.raises(ValueError, match=r"line 3: malformed escape \\u12"):
        parse_properties("a=1\nb=2\nc=\\u12")


@given(st.text().filter(lambda text: "\\u" not in text))
def test_any_text_without_unicode_escapes_is_read(text: str) -> None:
    assert all(isinstance(value, str) for value in parse_properties(text).values())


def _escape(text: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _utf16_units(text))


def _utf16_units(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_fully_escaped_text_comes_back(properties: dict[str, str]) -> None:
    text = "\n".join(f"{_escape(key)}={_escape(value)}" for key, value in properties.items())
    assert parse_properties(text) == properties
