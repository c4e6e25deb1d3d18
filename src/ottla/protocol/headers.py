"""The frame's size, and the headers of requests and responses.

On the wire a message is `size (int32) | header | body`, where the size counts header and body. The header's
version follows from the API and its version (`ottla.protocol.api`), never from the bytes themselves. The
client id stays an old-style string even in the flexible header v2, so that a server can read the header of
any request.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla.protocol.api import API, API_VERSIONS, Api, api_name
from ottla.protocol.errors import MalformedMessage, UnsupportedVersion
from ottla.protocol.schema import Buffer, Message, Request, Response, int16, int32, join_small_parts, string

SIZE = struct.Struct(">i")
_KEY_AND_VERSION = struct.Struct(">hh")
# The size and a `ResponseHeader`, by the header's version: 1 has tagged fields, of which none is used.
_RESPONSE_HEADS = (struct.Struct(">ii"), struct.Struct(">iix"))


class RequestHeader(Message, versions="1-2", flexible="2+"):
    request_api_key: int = int16()
    request_api_version: int = int16()
    correlation_id: int = int32()
    client_id: str | None = string(nullable=True, flexible=False)


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    correlation_id: int = int32()


def request_header_version(api: Api, version: int) -> int:
    """The version of a request's header; versions from the future follow the same rule."""
    return 2 if version >= api.flexible_from else 1


def response_header_version(api: Api, version: int) -> int:
    """The version of a response's header. That of ApiVersions is 0: its client knows no versions yet."""
    return 1 if version >= api.flexible_from and api.key != API_VERSIONS else 0


class RequestFrame(NamedTuple):
    """A request whose header was read; `body` begins at `position` of the frame."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    position: int


def read_request_header(frame: Buffer) -> RequestFrame:
    """Read the header of a request, given the frame without its size.

    UnsupportedVersion says that the API or its version is not in the table; only ApiVersions passes in any
    version, since it has to be answered in one that the client understands.
    """
    if len(frame) < _KEY_AND_VERSION.size:
        raise MalformedMessage(f"a request of {len(frame)} bytes has no header")
    key, version = _KEY_AND_VERSION.unpack_from(frame)
    api = API.get(key)
    if api is None or not (api.supports(version, unstable=True) or (key == API_VERSIONS and version >= 0)):
        raise UnsupportedVersion(f"{api_name(key)} version {version} is not supported")
    header, position = RequestHeader.decode_from(frame, 0, request_header_version(api, version))
    return RequestFrame(api, version, header.correlation_id, header.client_id, position)


def response_parts(api: Api, version: int, correlation_id: int, response: Response) -> list[Buffer]:
    """Return a whole response, from its size on, as buffers to be sent one after the other."""
    parts: list[Buffer] = [b""]
    response.encode_onto(parts, version)
    parts[0] = _response_head(api, version, correlation_id, sum(map(len, parts)))
    return join_small_parts(parts)


def encoded_response_parts(api: Api, version: int, correlation_id: int, body: bytes) -> list[Buffer]:
    """Do the same for a response that was encoded before."""
    return join_small_parts([_response_head(api, version, correlation_id, len(body)), body])


def _response_head(api: Api, version: int, correlation_id: int, body_size: int) -> bytes:
    head = _RESPONSE_HEADS[response_header_version(api, version)]
    return head.pack(head.size - SIZE.size + body_size, correlation_id)


def request_parts(version: int, correlation_id: int, client_id: str | None, request: Request) -> list[Buffer]:
    """Return a whole request, from its size on, as buffers to be sent one after the other."""
    header = RequestHeader(
        request_api_key=request.API_KEY,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return _frame(header.encode(request_header_version(API[request.API_KEY], version)), request, version)


def read_response(api: Api, version: int, frame: Buffer) -> tuple[int, Response]:
    """Return the correlation id and the body of a response, given the frame without its size."""
    header, position = ResponseHeader.decode_from(frame, 0, response_header_version(api, version))
    response, end = api.response_class.decode_from(frame, position, version)
    if end != len(frame):
        raise MalformedMessage(f"{api.name} response v{version}: {len(frame) - end} bytes left over")
    return header.correlation_id, response


def _frame(header: bytes, body: Message, version: int) -> list[Buffer]:
    parts = body.encode_parts(version)
    size = len(header) + sum(map(len, parts))
    return join_small_parts([SIZE.pack(size), header, *parts])
