"""Columns in the words of SQL, as `id long, items array<struct<sku: string>>`, to types of Arrow.

Spark parses them in its JVM, which the processes that plan a source cannot ask.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa


_TOKEN: Final = re.compile(r"\s*(?:([`](?:[^`]|[`]{2})+[`]|[\w$]+)|([<>(),:]))")
_MAX_DEPTH: Final = 50


def parse_ddl(text: str) -> pa.StructType:
    """The struct of the columns. ValueError says what is no column."""
    parser = _Parser(text)
    found = parser.fields("")
    if not found:
        raise ValueError("it names no columns")
    import pyarrow as pa

    return pa.struct(found)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"{text[at : at + 20]!r} is no column of SQL")
            self._tokens.append(match[1] or match[2])
            at = match.end()
        self._at = 0

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise ValueError("it ends in the middle of a column")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _expect(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            raise ValueError(f"it has {found!r} where {wanted!r} is expected")

    def fields(self, end: str, depth: int = 0) -> list[pa.Field]:
        import pyarrow as pa

        found: list[pa.Field] = []
        names: set[str] = set()
        while self._peek() != end:
            name = self._next()
            name = name[1:-1].replace(2 * "`", "`") if name.startswith("`") else name
            if self._peek() == ":":
                self._next()
            if name.lower() in names or name in "<>(),:":
                raise ValueError(f"it has the column {name!r} twice, or no name")
            names.add(name.lower())
            found.append(pa.field(name, self._type(depth)))
            if self._peek() == ",":
                self._next()
        return found

    def _type(self, depth: int) -> pa.DataType:
        import pyarrow as pa

        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        name = self._next().lower()
        if name in ("array", "map", "struct"):
            self._expect("<")
            if name == "struct":
                found = pa.struct(self.fields(">", depth + 1))
            elif name == "array":
                found = pa.list_(pa.field("element", self._type(depth + 1)))
            else:
                key = self._type(depth + 1)
                if not pa.types.is_string(key):
                    raise ValueError("the names of an object of JSON are texts: map<string, ...>")
                self._expect(",")
                found = pa.map_(key, self._type(depth + 1))
            self._expect(">")
            return found
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        scalars = {
            **dict.fromkeys(("string", "varchar", "char"), pa.string()),
            **dict.fromkeys(("long", "bigint"), pa.int64()),
            **dict.fromkeys(("int", "integer"), pa.int32()),
            **dict.fromkeys(("short", "smallint"), pa.int16()),
            **dict.fromkeys(("byte", "tinyint"), pa.int8()),
            **dict.fromkeys(("float", "real"), pa.float32()),
            "double": pa.float64(),
            "boolean": pa.bool_(),
            "binary": pa.binary(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "timestamp_ntz": pa.timestamp("us"),
        }
        if name not in scalars:
            raise ValueError(f"it has the type {name!r}, which no column of JSON has")
        if self._peek() == "(":  # the length of a varchar
            self._numbers()
        return scalars[name]

    def _decimal(self) -> pa.DataType:
        import pyarrow as pa

        precision, scale = 10, 0
        if self._peek() == "(":
            numbers = self._numbers()
            precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError(f"there is no decimal({precision}, {scale})")
        return pa.decimal128(precision, scale)

    def _numbers(self) -> list[int]:
        self._expect("(")
        found = []
        while (word := self._next()) != ")":
            if word != ",":
                if not word.isdecimal():
                    raise ValueError(f"it has {word!r} where a number is expected")
                found.append(int(word[:4]))
        if not found:
            raise ValueError("it has () without a number")
        return found
