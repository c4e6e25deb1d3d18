"""A connection's login: Kafka's `SaslServerAuthenticator` without its sockets.

Frames go in, `SaslReply` objects come out. A client may ask once for ApiVersions, then names a mechanism
(SaslHandshake), then sends the mechanism's tokens: in SaslAuthenticate, or, after version 0 of the handshake,
as bare frames. Everything else ends the connection. Before a client is known its frames are bounded in size,
by the connection, and in number, here. Invariants: a reply with a `session` is the last one of an exchange
that succeeded, one with a `failure` the last one of an exchange that did not, and after either of them no
frame is taken.

A session may end (`connections.max.reauth.ms`, or the end of the credential). Then the client logs in again
on the same connection: with the same mechanism, and as the same principal (KIP-368).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ottla.protocol.api import API, API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from ottla.protocol.errors import ErrorCode, MalformedMessage
from ottla.protocol.headers import RequestHeader, request_header_version, response_parts
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.schema import Buffer, Response
from ottla.security.principal import KafkaPrincipal
from ottla.security.sasl.mechanism import AuthenticatedClient, SaslFailure, SaslServer, SaslServerFactory

_SIZE: Final = struct.Struct(">i")
_KEY_AND_VERSION: Final = struct.Struct(">hh")
# No mechanism needs as many; a client that sends more never gets in.
MAX_FRAMES: Final = 32


@dataclass(frozen=True, slots=True)
class ServerMechanism:
    """A mechanism as a listener offers it."""

    factory: SaslServerFactory
    # `connections.max.reauth.ms`; 0 sets no end.
    max_reauth_ms: int = 0


@dataclass(frozen=True, slots=True)
class SaslSession:
    """A client that has logged in."""

    mechanism: str
    principal: KafkaPrincipal
    # The monotonic clock's milliseconds at which it must have logged in again; None if it never must.
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class SaslReply:
    """What happens with one frame: `parts` go out, if there are any."""

    parts: list[Buffer] | None = None
    session: SaslSession | None = None
    # Why the connection is closed, after `parts` have gone out. For the log of this node.
    failure: str | None = None
    # The frame is a request for ApiVersions, which the listener answers as always.
    is_api_versions: bool = False


class _State(Enum):
    INITIAL_REQUEST = "any of ApiVersions and SaslHandshake"
    HANDSHAKE_REQUEST = "SaslHandshake"
    AUTHENTICATE = "a token of the mechanism"
    BAD_MECHANISM = "a token, after a handshake for another mechanism than that of the session"
    ENDED = "nothing"


class _Refused(Exception):
    """The exchange ends; `parts` is the response that says so, if the client could read one."""

    def __init__(self, reason: str, parts: list[Buffer] | None = None) -> None:
        super().__init__(reason)
        self.parts = parts


class SaslServerAuthenticator:
    """One exchange. `previous` is the session that is to be renewed, if there is one."""

    __slots__ = (
        "_frames",
        "_has_headers",
        "_mechanism",
        "_mechanisms",
        "_previous",
        "_server",
        "_state",
    )

    def __init__(
        self, mechanisms: Mapping[str, ServerMechanism], previous: SaslSession | None = None
    ) -> None:
        self._mechanisms = mechanisms
        self._previous = previous
        # A client that renews its session has asked for ApiVersions before.
        self._state = _State.INITIAL_REQUEST if previous is None else _State.HANDSHAKE_REQUEST
        self._mechanism = ""
        self._server: SaslServer | None = None
        # Whether tokens come in SaslAuthenticate; after version 0 of the handshake they are bare.
        self._has_headers = False
        self._frames = 0

    def on_frame(self, frame: Buffer, *, wall_ms: int, monotonic_ms: float) -> SaslReply:
        """Take a frame without its size. Times are those of its arrival."""
        assert self._state is not _State.ENDED, "a frame after the end of the exchange"
        self._frames += 1
        try:
            if self._frames > MAX_FRAMES:
                raise _Refused(f"it sent {MAX_FRAMES} requests and did not log in")
            if self._state is _State.BAD_MECHANISM:
                raise _Refused("it asked to renew its session with another mechanism")
            if self._state is _State.AUTHENTICATE:
                return self._on_token(frame, wall_ms, monotonic_ms)
            return self._on_request(frame)
        except _Refused as refused:
            self._end()
            return SaslReply(refused.parts, failure=str(refused))

    def _on_request(self, frame: Buffer) -> SaslReply:
        api, version, header, position = _read_header(frame)
        if api.key == API_VERSIONS:
            if self._state is not _State.INITIAL_REQUEST:
                raise _Refused("it sent ApiVersions where SaslHandshake was expected")
            # One in an unknown version is answered with the known ones, and sent again.
            if api.supports(version):
                self._state = _State.HANDSHAKE_REQUEST
            return SaslReply(is_api_versions=True)
        if api.key != SASL_HANDSHAKE:
            raise _Refused(f"Unexpected Kafka request of type {api.name} during SASL handshake")
        if not api.supports(version):
            raise _Refused(f"it asked for SaslHandshake version {version}, which is not served")
        try:
            request, _ = SaslHandshakeRequest.decode_from(frame, position, version)
        except MalformedMessage as error:
            raise _Refused(f"its SaslHandshake request cannot be read: {error.message}") from None
        return self._on_handshake(request.mechanism, version, header)

    def _on_handshake(self, mechanism: str, version: int, header: RequestHeader) -> SaslReply:
        answer = SaslHandshakeResponse(mechanisms=list(self._mechanisms))
        chosen = self._mechanisms.get(mechanism)
        if chosen is None:
            answer.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            raise _Refused(
                f"Unsupported SASL mechanism {mechanism[:64]!r}; enabled are {','.join(self._mechanisms)}",
                _encoded(header, answer),
            )
        self._has_headers = version >= 1
        self._mechanism = mechanism
        if self._previous is not None and self._previous.mechanism != mechanism:
            self._state = _State.BAD_MECHANISM
        else:
            self._server = chosen.factory.create()
            self._state = _State.AUTHENTICATE
        return SaslReply(_encoded(header, answer))

    def _on_token(self, frame: Buffer, wall_ms: int, monotonic_ms: float) -> SaslReply:
        assert self._server is not None, "a token without a mechanism"
        header: RequestHeader | None = None
        if self._has_headers:
            header, token = _read_authenticate(frame)
        else:
            token = bytes(frame)
        try:
            step = self._server.evaluate_response(token)
            if step.client is not None:
                self._check_principal(step.client.principal)
        except SaslFailure as failure:
            raise self._refusal(failure, header) from None
        if step.client is None:
            return SaslReply(self._token(header, step.token, 0))
        lifetime_ms = self._session_lifetime_ms(step.client, wall_ms)
        session = SaslSession(
            self._mechanism,
            step.client.principal,
            None if lifetime_ms is None else monotonic_ms + lifetime_ms,
        )
        parts = self._token(header, step.token, lifetime_ms or 0)
        self._end()
        return SaslReply(parts, session)

    def _check_principal(self, principal: KafkaPrincipal) -> None:
        previous = self._previous
        if previous is not None and previous.principal != principal:
            before = previous.principal
            message = (
                f"Cannot change principals during re-authentication from {before.type}.{before.name}: "
                f"{principal.type}.{principal.name}"
            )
            raise SaslFailure(message, client_message=message)

    def _refusal(self, failure: SaslFailure, header: RequestHeader | None) -> _Refused:
        if header is None:
            return _Refused(str(failure))
        exchange = "authentication" if self._previous is None else "re-authentication"
        message = failure.client_message or (
            f"Authentication failed during {exchange} due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )
        answer = SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message
        )
        return _Refused(f"{self._mechanism}: {failure}", _encoded(header, answer))

    def _token(self, header: RequestHeader | None, token: bytes, lifetime_ms: int) -> list[Buffer]:
        if header is None:
            return [_SIZE.pack(len(token)) + token]
        return _encoded(header, SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms))

    def _session_lifetime_ms(self, client: AuthenticatedClient, wall_ms: int) -> int | None:
        """How long the session lasts: until the credential ends, at most `connections.max.reauth.ms`."""
        limits = []
        if client.expires_at_ms is not None:
            limits.append(max(0, client.expires_at_ms - wall_ms))
        max_reauth_ms = self._mechanisms[self._mechanism].max_reauth_ms
        if max_reauth_ms > 0:
            limits.append(max_reauth_ms)
        return min(limits, default=None)

    def _end(self) -> None:
        self._state = _State.ENDED
        self._server = None


def _read_header(frame: Buffer) -> tuple[Api, int, RequestHeader, int]:
    if len(frame) < _KEY_AND_VERSION.size:
        raise _Refused(f"it sent {len(frame)} bytes where a request was expected")
    key, version = _KEY_AND_VERSION.unpack_from(frame)
    api = API.get(key)
    if api is None:
        raise _Refused("it sent what is no request of Kafka's protocol where SaslHandshake was expected")
    try:
        header, position = RequestHeader.decode_from(frame, 0, request_header_version(api, version))
    except MalformedMessage as error:
        raise _Refused(f"its {api.name} request has no proper header: {error.message}") from None
    return api, version, header, position


def _read_authenticate(frame: Buffer) -> tuple[RequestHeader, bytes]:
    api, version, header, position = _read_header(frame)
    if api.key != SASL_AUTHENTICATE:
        raise _unexpected(api, version, header)
    if not api.supports(version):
        raise _Refused(f"it asked for SaslAuthenticate version {version}, which is not served")
    try:
        request, _ = SaslAuthenticateRequest.decode_from(frame, position, version)
    except MalformedMessage as error:
        raise _Refused(f"its SaslAuthenticate request cannot be read: {error.message}") from None
    return header, bytes(request.auth_bytes)


def _unexpected(api: Api, version: int, header: RequestHeader) -> _Refused:
    """Refuse another request than SaslAuthenticate. Where its response has an error code at the top, the
    client gets it.
    """
    reason = f"Unexpected Kafka request of type {api.name} during SASL authentication."
    fields = {each.name for each in api.response_class.FIELDS if each.in_version(version)}
    if "error_code" not in fields or not api.supports(version):
        return _Refused(reason)
    answer = api.response_class(error_code=int(ErrorCode.ILLEGAL_SASL_STATE))
    if "error_message" in fields:
        answer.error_message = reason  # type: ignore[attr-defined]
    return _Refused(reason, _encoded(header, answer))


def _encoded(header: RequestHeader, response: Response) -> list[Buffer]:
    api = API[header.request_api_key]
    return response_parts(api, header.request_api_version, header.correlation_id, response)
