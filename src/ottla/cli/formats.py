"""Formats of records: what `consume` prints and `produce` reads.

Bytes are shown as text if they are UTF-8. In JSON, other bytes appear as `<name>_base64`, so that nothing is
lost or guessed. A format string is `kcat`'s, with `%d` added: `%t` topic, `%p` partition, `%o` offset, `%T`
timestamp, `%d` timestamp as a date, `%k` key, `%s` value, `%h` headers, `%K` and `%S` the sizes of key and
value, `%%` a percent sign; and `\\n`, `\\t`, `\\r`, `\\0`, `\\xNN`.

Raw output is bytes: until it is written it travels as text in which each byte that is not UTF-8 is a lone
surrogate (`surrogateescape`), so that it comes out as it was.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol

from ottla.cli.errors import WrongUsage
from ottla.cli.output import time_text

_TOKEN: Final = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_NUMBERS: Final = {"int16": ">h", "int32": ">i", "int64": ">q", "float32": ">f", "float64": ">d"}


class ShownRecord(Protocol):
    """The attributes of a record that printing needs."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def headers(self) -> Any: ...


def readable(data: bytes) -> str:
    """UTF-8 as text; other bytes as Python writes them.

    >>> readable(b"caf\\xc3\\xa9"), readable(b"\\xff\\x00")
    ('café', "b'\\\\xff\\\\x00'")
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return repr(data)
    return text if text.isprintable() else repr(data)


def unchanged(data: bytes) -> str:
    """Bytes as the text that `encode_raw` makes the same bytes of.

    >>> encode_raw(unchanged(b"caf\\xc3\\xa9 \\xff\\x00"))
    b'caf\\xc3\\xa9 \\xff\\x00'
    """
    return data.decode(errors="surrogateescape")


def encode_raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def json_bytes(name: str, data: bytes | None) -> dict[str, Any]:
    """The field of a JSON document that holds these bytes.

    >>> json_bytes("key", b"a"), json_bytes("key", b"\\xff"), json_bytes("key", None)
    ({'key': 'a'}, {'key_base64': '/w=='}, {'key': None})
    """
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def bytes_of_json(document: dict[str, Any], name: str) -> bytes | None:
    """The bytes of a field that `json_bytes` wrote; any other value is taken as JSON text."""
    if f"{name}_base64" in document:
        return base64.b64decode(document[f"{name}_base64"], validate=True)
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


DESERIALIZERS: Final = ("text", "json", "hex", "base64", *_NUMBERS)


class WrongFormat(ValueError):
    """Bytes that do not have the format of `--key-format` or `--value-format`."""


def make_formatter(name: str) -> Callable[[bytes | None], Any]:
    """A function that shows data of this format. It raises WrongFormat for other data.

    >>> make_formatter("int32")(b"\\0\\0\\0\\7")
    7
    """
    if name == "text":
        return lambda data: None if data is None else data.decode(errors="backslashreplace")
    if name == "hex":
        return lambda data: None if data is None else data.hex()
    if name == "base64":
        return lambda data: None if data is None else base64.b64encode(data).decode()
    if name == "json":
        return _from_json
    layout = struct.Struct(_NUMBERS[name])

    def number(data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) != layout.size:
            raise WrongFormat(f"{len(data)} bytes are no {name}, which has {layout.size}")
        return layout.unpack(data)[0]

    return number


def _from_json(data: bytes | None) -> Any:
    import json

    if data is None:
        return None
    try:
        return json.loads(data)
    except ValueError as error:
        raise WrongFormat(f"not JSON: {error}") from None


def encoder(name: str) -> Callable[[str], bytes]:
    """A function that encodes text of this format to bytes."""
    if name in _NUMBERS:
        layout = struct.Struct(_NUMBERS[name])
        number = float if name.startswith("float") else int

        def pack(text: str) -> bytes:
            try:
                return layout.pack(number(text))
            except (ValueError, struct.error, OverflowError):
                raise WrongUsage(f"{text!r} is not a number of type {name}") from None

        return pack
    if name in ("hex", "base64"):
        decode = bytes.fromhex if name == "hex" else lambda text: base64.b64decode(text, validate=True)

        def unpack(text: str) -> bytes:
            try:
                return decode(text)
            except ValueError:
                raise WrongUsage(f"{text!r} is not {name}") from None

        return unpack
    if name == "json":
        return _checked_json
    return encode_raw


def _checked_json(text: str) -> bytes:
    import json

    try:
        json.loads(text)
    except ValueError as error:
        raise WrongUsage(f"{text[:60]!r} is not JSON: {error}") from None
    return text.encode()


def compile_format(
    text: str,
    show_key: Callable[[bytes | None], Any],
    show_value: Callable[[bytes | None], Any],
    escape: Callable[[str], str] = str,
    *,
    raw: bool = False,
) -> Callable[[ShownRecord], str]:
    """A function that formats records by a format string. What the record has goes through `escape`. With
    `raw` the text is for `encode_raw`.

    >>> from types import SimpleNamespace as Record
    >>> show = compile_format("%p@%o: %s\\\\n", make_formatter("text"), make_formatter("text"))
    >>> show(Record(partition=0, offset=7, value=b"v"))
    '0@7: v\\n'
    """
    tokens: dict[str, Callable[[ShownRecord], str]] = {
        "t": lambda r: escape(r.topic),
        "p": lambda r: str(r.partition),
        "o": lambda r: str(r.offset),
        "T": lambda r: str(r.timestamp),
        "d": lambda r: time_text(r.timestamp) or "-",
        "k": lambda r: escape(plain(show_key(r.key))),
        "s": lambda r: escape(plain(show_value(r.value))),
        "h": lambda r: escape(headers_text(r.headers, unchanged if raw else readable)),
        "K": lambda r: str(-1 if r.key is None else len(r.key)),
        "S": lambda r: str(-1 if r.value is None else len(r.value)),
    }
    parts: list[str | Callable[[ShownRecord], str]] = []
    at = 0
    for match in _TOKEN.finditer(text):
        parts.append(text[at : match.start()])
        at = match.end()
        if match[1] is not None:
            if match[1] != "%" and match[1] not in tokens:
                known = " ".join(f"%{token}" for token in tokens)
                raise WrongUsage(f"--format {text!r}: there is no %{match[1]}; known are {known}")
            parts.append("%" if match[1] == "%" else tokens[match[1]])
        elif match[2].startswith("x"):
            code = int(match[2][1:], 16)
            parts.append(unchanged(bytes([code])) if raw else chr(code))
        else:
            parts.append(_ESCAPES.get(match[2], "\\" + match[2]))
    parts.append(text[at:])
    return lambda record: "".join(part if isinstance(part, str) else part(record) for part in parts)


def plain(value: Any) -> str:
    """A decoded key or value as one line of text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    import json

    return json.dumps(value, ensure_ascii=False)


def headers_text(headers: Any, show: Callable[[bytes], str] = readable) -> str:
    """
    >>> headers_text([("a", b"1"), ("b", None)])
    'a=1,b'
    """
    return ",".join(name if value is None else f"{name}={show(value)}" for name, value in headers)
