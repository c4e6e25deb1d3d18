"""Frames of a login, as a client sends them, and the answers as it reads them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TypeVar, cast

from ottla.protocol.api import API
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.schema import Buffer, Request, Response
from ottla.security.sasl.server_authenticator import SaslReply, SaslServerAuthenticator

R = TypeVar("R", bound=Response)


def frame(request: Request, version: int, correlation_id: int = 7) -> bytes:
    """A request without its size."""
    return b"".join(request_parts(version, correlation_id, "a client", request))[4:]


def api_versions(version: int = 3) -> bytes:
    """Also one of a version that does not exist yet."""
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    known = frame(request, min(version, 4))
    return known[:2] + struct.pack(">h", version) + known[4:]


def handshake(mechanism: str, version: int = 1) -> bytes:
    return frame(SaslHandshakeRequest(mechanism=mechanism), version)


def authenticate(token: bytes, version: int = 2) -> bytes:
    return frame(SaslAuthenticateRequest(auth_bytes=token), version)


def read(parts: list[Buffer] | None, request: bytes, response_class: type[R]) -> R:
    assert parts is not None, "there is no answer"
    data = b"".join(parts)
    (size,) = struct.unpack_from(">i", data)
    assert size == len(data) - 4
    key, version = struct.unpack_from(">hh", request)
    correlation_id, response = read_response(API[key], version, data[4:])
    assert correlation_id == 7
    return cast("R", response)


@dataclass
class Exchange:
    """One client's login, with a clock that stands still."""

    authenticator: SaslServerAuthenticator
    wall_ms: int = 1_000_000
    monotonic_ms: float = 5_000.0
    replies: list[SaslReply] = field(default_factory=list)

    def send(self, request: bytes) -> SaslReply:
        reply = self.authenticator.on_frame(request, wall_ms=self.wall_ms, monotonic_ms=self.monotonic_ms)
        self.replies.append(reply)
        return reply

    def handshake(self, mechanism: str, version: int = 1) -> SaslHandshakeResponse:
        request = handshake(mechanism, version)
        return read(self.send(request).parts, request, SaslHandshakeResponse)

    def authenticate(self, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        request = authenticate(token, version)
        return read(self.send(request).parts, request, SaslAuthenticateResponse)

    @property
    def last(self) -> SaslReply:
        return self.replies[-1]
