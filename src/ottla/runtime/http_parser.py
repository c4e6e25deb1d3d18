"""Requests of HTTP/1.1 from bytes, without I/O: the head of a request, and the two forms of a body.

A request has one meaning or is refused: every text that two parsers could frame differently (a length given
twice or beside chunks, a space before a colon, a folded line, a line that ends without CR, a chunk size with
a sign) ends the connection with an error, so that no proxy in front of this server can be made to see other
requests than it does. Everything has a bound, and what exceeds it is refused before it is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

MAX_LINE_BYTES: Final = 8 * 1024
MAX_HEAD_BYTES: Final = 32 * 1024
MAX_HEADERS: Final = 100
_MAX_TRAILER_BYTES: Final = 8 * 1024
_MAX_CHUNK_LINE_BYTES: Final = 256
_TAKE_BYTES: Final = 64 * 1024

_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_VERSION: Final = re.compile(rb"HTTP/([0-9])\.([0-9])")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~\-]*)(?::([0-9]{0,5}))?")


class HttpProblem(Exception):
    """A request that is answered with an error. The text is shown to the client."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status: Final = status
        self.text: Final = text
        self.headers: Final = dict(headers or {})


class HttpHeaders:
    """The headers of a request, in their order; names are in lower case."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs: Final = pairs

    def get(self, name: str) -> str | None:
        """The value of a header that a request has once; of several, the first."""
        return next((value for found, value in self._pairs if found == name), None)

    def all(self, name: str) -> list[str]:
        return [value for found, value in self._pairs if found == name]

    def has_token(self, name: str, token: str) -> bool:
        """Whether a header that is a list, as `Connection`, has an element; case does not matter."""
        return any(token == each.strip().lower() for value in self.all(name) for each in value.split(","))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What precedes the body. `path` and `query` are as they were sent, still quoted."""

    method: str
    path: str
    query: str
    is_http_11: bool
    host: str
    """The host that the client asked for, without a port, in lower case; empty if it named none."""
    headers: HttpHeaders = field(repr=False)

    @property
    def keeps_alive(self) -> bool:
        """Whether the client wants to send further requests on the connection."""
        return self.is_http_11 and not self.headers.has_token("connection", "close")


def find_head_end(received: bytearray, looked_at: int) -> int:
    """Return where the empty line at the end of a head begins, or -1; `looked_at` bytes have been looked at
    before. HttpProblem if the head is too large already, or cannot become one.
    """
    if received and received[0] <= 0x20 and received[0] != 0x0D:  # such as a client of Kafka, or of TLS
        raise HttpProblem(400, "A request begins with its method.")
    start = max(0, looked_at - 3)
    end = received.find(b"\r\n\r\n", start)
    size = len(received) if end < 0 else end
    if size > MAX_HEAD_BYTES:
        raise HttpProblem(431, f"The headers are larger than {MAX_HEAD_BYTES} bytes.")
    if received.find(b"\r\n", 0, MAX_LINE_BYTES + 2) < 0 and size > MAX_LINE_BYTES:
        raise HttpProblem(414, f"The request line is longer than {MAX_LINE_BYTES} bytes.")
    at = received.find(b"\n", start, size)
    while at >= 0:
        if at == 0 or received[at - 1] != 0x0D:
            raise HttpProblem(400, "A line ends without a carriage return.")
        at = received.find(b"\n", at + 1, size)
    return end


def parse_head(head: bytes) -> RequestHead:
    """Parse a head, without the empty line at its end. HttpProblem says what is wrong."""
    lines = head.split(b"\r\n")
    method, target, is_http_11 = _request_line(lines[0])
    if len(lines) - 1 > MAX_HEADERS:
        raise HttpProblem(431, f"There are more than {MAX_HEADERS} headers.")
    headers = HttpHeaders([_header(line) for line in lines[1:]])
    hosts = headers.all("host")
    if len(hosts) > 1 or (is_http_11 and not hosts):
        raise HttpProblem(400, "A request has exactly one Host header.")
    host = _host(hosts[0]) if hosts else ""
    if target.startswith("/"):
        path, _, query = target.partition("?")
    elif target.lower().startswith(("http://", "https://")):
        authority, slash, rest = target.partition("://")[2].partition("/")
        host = _host(authority)
        path, _, query = (slash + rest or "/").partition("?")
    elif target == "*" and method == "OPTIONS":
        path, query = "*", ""
    else:
        raise HttpProblem(400, "The target of the request is no path.")
    return RequestHead(method, path, query, is_http_11, host, headers)


def _request_line(line: bytes) -> tuple[str, str, bool]:
    if len(line) > MAX_LINE_BYTES:
        raise HttpProblem(414, f"The request line is longer than {MAX_LINE_BYTES} bytes.")
    parts = line.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise HttpProblem(400, "The first line is no request line of HTTP.")
    version = _VERSION.fullmatch(parts[2])
    if version is None:
        raise HttpProblem(400, "The first line is no request line of HTTP.")
    if version[1] != b"1":
        raise HttpProblem(505, "This server speaks HTTP/1.1.")
    return parts[0].decode("ascii"), parts[1].decode("ascii"), version[2] != b"0"


def _header(line: bytes) -> tuple[str, str]:
    if len(line) > MAX_LINE_BYTES:
        raise HttpProblem(431, f"A header is longer than {MAX_LINE_BYTES} bytes.")
    name, colon, value = line.partition(b":")
    # A name that is no token has a space before its colon, or begins with one: a folded line.
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise HttpProblem(400, "A header cannot be read.")
    return name.decode("ascii").lower(), value.strip(b"\t ").decode("latin-1")


def _host(text: str) -> str:
    found = _HOST.fullmatch(text)
    if found is None:
        raise HttpProblem(400, "The Host header is no host name.")
    return found[1].strip("[]").lower()


class SizedBody:
    """A body whose length is known first; 0 of a request that has none."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        self._left = size

    @property
    def is_done(self) -> bool:
        return not self._left

    def take(self, received: bytearray) -> bytes:
        """Remove a part of the body from what was received, and return it; empty if there is none yet."""
        part = bytes(received[: min(self._left, _TAKE_BYTES)])
        del received[: len(part)]
        self._left -= len(part)
        return part


class _ChunkState(Enum):
    SIZE = "size"
    DATA = "data"
    DATA_END = "end of data"
    TRAILERS = "trailers"
    DONE = "done"


class ChunkedBody:
    """A body in chunks, each after its size. Extensions of chunks and trailers are read and dropped."""

    __slots__ = ("_left", "_state", "_trailer_bytes")

    def __init__(self) -> None:
        self._state = _ChunkState.SIZE
        self._left = 0
        self._trailer_bytes = 0

    @property
    def is_done(self) -> bool:
        return self._state is _ChunkState.DONE

    def take(self, received: bytearray) -> bytes:
        """Remove a part of the body from what was received, and return it; empty if there is none yet."""
        while True:
            if self._state is _ChunkState.DATA:
                part = bytes(received[: min(self._left, _TAKE_BYTES)])
                del received[: len(part)]
                self._left -= len(part)
                if not self._left:
                    self._state = _ChunkState.DATA_END
                return part
            if self._state is _ChunkState.DATA_END:
                if not b"\r\n".startswith(received[:2]):
                    raise HttpProblem(400, "A chunk is longer than its size.")
                if len(received) < 2:
                    return b""
                del received[:2]
                self._state = _ChunkState.SIZE
            elif self._state is _ChunkState.DONE or not self._take_line(received):
                return b""

    def _take_line(self, received: bytearray) -> bool:
        """Read the line of a size or a trailer; false if it is not complete yet."""
        bound = _MAX_CHUNK_LINE_BYTES if self._state is _ChunkState.SIZE else MAX_LINE_BYTES
        end = received.find(b"\n", 0, bound + 2)
        if end < 0:
            if len(received) > bound:
                raise HttpProblem(400, "A line between the chunks is too long.")
            return False
        if end == 0 or received[end - 1] != 0x0D:
            raise HttpProblem(400, "A line between the chunks ends without a carriage return.")
        line = bytes(received[: end - 1])
        del received[: end + 1]
        if self._state is _ChunkState.TRAILERS:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise HttpProblem(431, f"The trailers are larger than {_MAX_TRAILER_BYTES} bytes.")
            if line:
                _header(line)
            else:
                self._state = _ChunkState.DONE
            return True
        found = _CHUNK_SIZE.fullmatch(line)
        if found is None:
            raise HttpProblem(400, "The size of a chunk cannot be read.")
        self._left = int(found[1], 16)
        self._state = _ChunkState.DATA if self._left else _ChunkState.TRAILERS
        return True


def body_of(head: RequestHead) -> tuple[SizedBody | ChunkedBody, int | None]:
    """Make the reader of a request's body, with its length where that is known. HttpProblem if it is
    ambiguous where the body ends.
    """
    lengths = head.headers.all("content-length")
    codings = head.headers.all("transfer-encoding")
    if codings:
        if lengths:
            raise HttpProblem(400, "A body has either a Content-Length or a Transfer-Encoding.")
        if not head.is_http_11 or len(codings) > 1 or codings[0].lower() != "chunked":
            raise HttpProblem(501, "The only Transfer-Encoding is `chunked`, once.")
        return ChunkedBody(), None
    if not lengths:
        return SizedBody(0), 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise HttpProblem(400, "The Content-Length is no number.")
    return SizedBody(int(lengths[0])), int(lengths[0])
