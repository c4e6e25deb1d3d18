"""Payloads for people: the bytes of a key, value or header as text, decoded by a schema where one is known.

What is shown is bounded, however large the payload is, and no payload can fail a page: data that a decoder
does not understand are shown as text or as hexadecimal digits, with a note that says why.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ottla.console.messages.secrets import hide_secrets
from ottla.console.messages.topic_schemas import TopicSchemas
from ottla.log.dump.internal_records import DECODABLE_TOPICS, decode_record
from ottla.protocol.names import CLUSTER_METADATA_TOPIC
from ottla.runtime.pool import Pool
from ottla.schemas.errors import WrongData
from ottla.schemas.registry import SchemaRegistry, message_indexes, parse_wire_format
from ottla.schemas.schema import MessageSchema, SchemaFormat

FORMATS: Final = (
    *("auto", "json", "text", "hex", "avro", "protobuf", "json-schema"),
    *("int32", "int64", "float64"),
)
MAX_LIST_TEXT: Final = 16 * 1024
MAX_ONE_TEXT: Final = 1024 * 1024
# Larger data are shown as they are: to decode megabytes for some kilobytes of text is a waste.
MAX_JSON_BYTES: Final = 1024 * 1024
MAX_DECODED_BYTES: Final = 16 * 1024 * 1024
# What takes longer to decode by a schema, or is checked by a JSON Schema, is decoded in the pool.
_INLINE_BYTES: Final = 4 * 1024
_LOOKED_BYTES: Final = 64 * 1024
_NUMBERS: Final = {"int32": ">i", "int64": ">q", "float64": ">d"}
_JSON_START: Final = re.compile(rb"\s*[\[{]")
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+|[{}\[\],:]')
_NOT_TEXT: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_INDENT: Final = "  "


class _Nothing(Enum):
    NOTHING = "no document"


@dataclass(frozen=True, slots=True)
class DecodedPayload:
    """`document` is what a JSON path looks at; NOTHING if the payload is none. `json_text` is its text where
    the payload is JSON itself: numbers are shown as they were written.
    """

    data: bytes
    format: str
    document: Any = _Nothing.NOTHING
    json_text: str | None = None
    schema: str | None = None
    note: str | None = None

    @property
    def has_document(self) -> bool:
        return self.document is not _Nothing.NOTHING

    def to_json(self, max_text: int) -> dict[str, Any]:
        """The payload as the API has it, with at most `max_text` characters of text."""
        text, truncated = self._text(max_text)
        return {
            "size": len(self.data),
            "format": self.format,
            "text": text,
            "truncated": truncated,
            "schema": self.schema,
            "note": self.note,
        }

    def _text(self, most: int) -> tuple[str, bool]:
        if not self.data:
            return "", False
        if self.json_text is not None:
            return indented(self.json_text, most)
        if self.has_document:
            return _document_text(self.document, most)
        if self.format == "hex":
            return hex_dump(self.data, most)
        start = self.data[: most * 4].decode("utf-8", "replace")
        return start[:most], len(start) > most or len(self.data) > most * 4


class PayloadDecoder:
    """Finds the schema of a payload, and decodes it."""

    def __init__(self, schemas: TopicSchemas, registry: SchemaRegistry | None, pool: Pool) -> None:
        self.schemas: Final = schemas
        self._registry: Final = registry
        self._pool: Final = pool

    async def decode(
        self, topic: str, part: str, data: bytes | None, format: str = "auto"
    ) -> DecodedPayload | None:
        """Decode a `key` or `value` of a topic, or a `header`; None if there is none."""
        if data is None:
            return None
        if not data:
            return DecodedPayload(data, "empty")
        if format in ("text", "hex"):
            return DecodedPayload(data, format)
        if format in _NUMBERS:
            return _number(data, format)
        if format == "json":
            found = _json(data)
            return found or DecodedPayload(data, *_plain_format(data), note="not JSON")
        if part == "header":
            return _guess(data, None)
        note: str | None = None
        if len(data) > MAX_DECODED_BYTES:
            if self._known(topic, part, data):
                note = f"larger than {MAX_DECODED_BYTES >> 20} MiB: not decoded"
        else:
            decoded, note = await self._by_schema(topic, part, data, format)
            if decoded is not None:
                return decoded
        return _guess(data, note)

    def _known(self, topic: str, part: str, data: bytes) -> bool:
        return self.schemas.of(topic, part) is not None or (
            self._registry is not None and parse_wire_format(data) is not None
        )

    async def _by_schema(
        self, topic: str, part: str, data: bytes, format: str
    ) -> tuple[DecodedPayload | None, str | None]:
        """The payload by the schema of the topic, or of the registry; otherwise why not."""
        wire = parse_wire_format(data)
        schema = self.schemas.of(topic, part)
        given = schema is not None
        note: str | None = None
        if schema is None and wire is not None:
            if self._registry is None:
                if format != "auto":
                    note = f"begins like a message of schema id {wire.schema_id}; no schema registry is set"
            else:
                found = await self._registry.schema(wire.schema_id)
                if isinstance(found, str):
                    note = found
                else:
                    schema = found
        if schema is None:
            if format != "auto" and note is None:
                note = f"no schema is set for the {part}s of {topic}"
            return None, note
        if format not in ("auto", schema.format):
            return None, f"the schema is one of {schema.format}"
        if not given and wire is not None:
            return await self._decoded(schema, data, wire.start)
        decoded, note = await self._decoded(schema, data, None)
        if decoded is None and wire is not None:
            again, _ = await self._decoded(schema, data, wire.start)
            decoded = again
        return decoded, note

    async def _decoded(
        self, schema: MessageSchema, data: bytes, start: int | None
    ) -> tuple[DecodedPayload | None, str | None]:
        if len(data) <= _INLINE_BYTES and schema.format is not SchemaFormat.JSON_SCHEMA:
            return _decoded(schema, data, start)
        return await self._pool.run(_decoded, schema, data, start)


def internal_payloads(
    topic: str, key: bytes | None, value: bytes | None
) -> tuple[DecodedPayload | None, DecodedPayload | None] | None:
    """The key and value of a record of an internal topic; None for other topics."""
    if topic not in DECODABLE_TOPICS:
        return None
    found = decode_record(topic, key, value)
    error = found.get("error")

    def part(name: str, data: bytes | None) -> DecodedPayload | None:
        if data is None:
            return None
        document = found.get(name)
        if error is not None or document is None:
            if topic == CLUSTER_METADATA_TOPIC:  # it may hold a secret that is not recognized
                return DecodedPayload(data, "internal", {}, note=str(error))
            return DecodedPayload(data, "hex", note=None if error is None else str(error))
        return DecodedPayload(data, "internal", hide_secrets(document), schema=str(document.get("type")))

    return part("key", key), part("value", value)


def _decoded(
    schema: MessageSchema, data: bytes, start: int | None
) -> tuple[DecodedPayload | None, str | None]:
    body, indexes = data, None
    try:
        if start is not None:
            if schema.format is SchemaFormat.PROTOBUF:
                indexes, start = message_indexes(data, start)
            body = data[start:]
        value, note = schema.decode(body, indexes)
    except (WrongData, ValueError, RecursionError) as error:
        return None, f"not {schema.format} of {schema.name}: {str(error) or 'nested too deeply'}"
    if schema.format is SchemaFormat.JSON_SCHEMA:
        text = body.decode("utf-8", "replace")
        return DecodedPayload(data, schema.format, value, text, schema.name, note), None
    return DecodedPayload(data, schema.format, value, None, schema.name, note), None


def _guess(data: bytes, note: str | None) -> DecodedPayload:
    if _JSON_START.match(data) and (found := _json(data)) is not None:
        return DecodedPayload(data, "json", found.document, found.json_text, note=note)
    return DecodedPayload(data, *_plain_format(data), note=note)


def _plain_format(data: bytes) -> tuple[str]:
    """Whether data are text, by their beginning."""
    start = data[:_LOOKED_BYTES]
    try:
        # The end of the part that is looked at may be in the middle of a character.
        text = start.decode() if len(start) == len(data) else _decode_start(start)
    except UnicodeDecodeError:
        return ("hex",)
    return ("hex",) if _NOT_TEXT.search(text) else ("text",)


def _decode_start(data: bytes) -> str:
    for cut in range(4):
        try:
            return data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            if cut == 3:
                raise
    raise AssertionError


def _json(data: bytes) -> DecodedPayload | None:
    if len(data) > MAX_JSON_BYTES:
        return None
    try:
        text = data.decode()
        return DecodedPayload(data, "json", json.loads(text), text)
    except (ValueError, RecursionError):
        return None


def _number(data: bytes, format: str) -> DecodedPayload:
    layout = struct.Struct(_NUMBERS[format])
    if len(data) != layout.size:
        note = f"{len(data)} bytes are no {format}, which has {layout.size}"
        return DecodedPayload(data, "hex", note=note)
    number = layout.unpack(data)[0]
    return DecodedPayload(data, "number", number, str(number))


def indented(text: str, most: int) -> tuple[str, bool]:
    """Indent valid JSON without changing any of its tokens; and whether it was cut.

    >>> print(indented('{"a":[1.10,2]}', 100)[0])
    {
      "a": [
        1.10,
        2
      ]
    }
    """
    parts: list[str] = []
    size = depth = 0
    opened = False
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        closes = token in "}]"
        depth -= closes
        line = f"\n{_INDENT * min(depth, 100)}"
        if opened:
            piece = token if closes else line + token
        else:
            piece = line + token if closes else token
        opened = token in "{["
        depth += opened
        if token == ",":
            piece += f"\n{_INDENT * min(depth, 100)}"
        elif token == ":":
            piece += " "
        parts.append(piece)
        size += len(piece)
        if size > most:
            return "".join(parts)[:most], True
    return "".join(parts), False


def _document_text(document: Any, most: int) -> tuple[str, bool]:
    """The beginning of a document as indented JSON; and whether it was cut. The rest is not made."""
    parts: list[str] = []
    size = 0
    for part in json.JSONEncoder(ensure_ascii=False, indent=len(_INDENT)).iterencode(document):
        parts.append(part)
        size += len(part)
        if size > most:
            break
    return "".join(parts)[:most], size > most


def hex_dump(data: bytes, most: int) -> tuple[str, bool]:
    """Lines of 16 bytes: their place, their digits, and what of them is ASCII; and whether they were cut.

    >>> print(hex_dump(b"ab", 100)[0])
    00000000  61 62                                            |ab|
    """
    lines: list[str] = []
    shown = max(1, most // 79) * 16
    for at in range(0, min(len(data), shown), 16):
        row = data[at : at + 16]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  |{readable}|")
    return "\n".join(lines), len(data) > shown
