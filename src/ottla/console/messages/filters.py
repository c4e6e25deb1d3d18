"""What a search looks for: texts in keys, values and headers, and values at a JSON path."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from ottla.console.messages.json_path import JsonPath
from ottla.console.messages.payload import DecodedPayload
from ottla.records._kernel import ConsumerRecord

# The part of a payload in which a text is looked for.
MAX_SEARCHED_BYTES: Final = 16 * 1024 * 1024
_PIECE_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """All that is given has to match. Texts are in lower case; `header` is a name and, perhaps, a text."""

    key: bytes | None = None
    value: bytes | None = None
    header: tuple[str, bytes | None] | None = None
    path: JsonPath | None = None
    path_value: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.key is None and self.value is None and self.header is None and self.path is None

    async def matches(
        self,
        record: ConsumerRecord[bytes, bytes],
        decode: Callable[[ConsumerRecord[bytes, bytes]], Awaitable[DecodedPayload | None]],
    ) -> bool:
        """Whether a message is what is looked for. `decode` decodes its value, which is done last."""
        if self.key is not None and not _contains(record.key, self.key):
            return False
        if self.value is not None and not _contains(record.value, self.value):
            return False
        if self.header is not None and not self._has_header(record):
            return False
        if self.path is None:
            return True
        decoded = await decode(record)
        if decoded is None or not decoded.has_document:
            return False
        found = self.path.find(decoded.document)
        if self.path_value is None:
            return next(found, _MISSING) is not _MISSING
        return any(_equals(each, self.path_value) for each in found)

    def _has_header(self, record: ConsumerRecord[bytes, bytes]) -> bool:
        assert self.header is not None
        name, text = self.header
        for found, value in record.headers:
            if text is None:
                if name in found.lower() or _contains(value, name.encode()):
                    return True
            elif found.lower() == name and _contains(value, text):
                return True
        return False


_MISSING: Final = object()


def header_filter(text: str) -> tuple[str, bytes | None]:
    """
    >>> header_filter("Trace=A1"), header_filter("trace")
    (('trace', b'a1'), ('trace', None))
    """
    name, equals, value = text.partition("=")
    return name.strip().lower(), value.encode().lower() if equals else None


def _contains(data: bytes | None, text: bytes) -> bool:
    """Whether a text is in the data, in any case. Large data are searched in pieces that overlap: one call
    for 16 MB would hold the interpreter.
    """
    if data is None:
        return False
    if len(data) <= _PIECE_BYTES:
        return text in data.lower()
    more = len(text) - 1
    end = min(len(data), MAX_SEARCHED_BYTES)
    starts = range(0, end, _PIECE_BYTES)
    return any(text in data[at : min(at + _PIECE_BYTES + more, end)].lower() for at in starts)


def _equals(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return value == text
    if isinstance(value, bool) or value is None:
        return json.dumps(value) == text.strip().lower()
    if isinstance(value, int | float):
        try:
            return value == (
                int(text) if isinstance(value, int) and text.strip("+- ").isdecimal() else float(text)
            )
        except (ValueError, OverflowError):
            return False
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) == text
