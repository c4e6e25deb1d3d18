"""Requests that only the active controller decides, asked of another broker: passed on, and the answer back.

The request goes as it came, header and all, in an Envelope, with who asked and from where; the answer comes
as it will go to the client. A controller that has just lost its job says so, and the next one is asked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar, cast

from ottla.node.network.connection import Parts
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from ottla.protocol.headers import SIZE, RequestHeader, read_response
from ottla.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.protocol.prefixed import decode_prefixed, encode_prefixed
from ottla.protocol.principal import DefaultPrincipalData
from ottla.protocol.schema import Buffer, Request, Response

if TYPE_CHECKING:
    from ottla.metadata.controller.controller import Controller
    from ottla.metadata.controller.state import Result
    from ottla.node.api.context import RequestContext

R = TypeVar("R", bound=Response)

_ENVELOPE_VERSION: Final = 0
# Of a client that did not have to say who it is; listeners that ask are not served yet.
_PRINCIPAL: Final = encode_prefixed(DefaultPrincipalData(type="User", name="ANONYMOUS"), 0)


async def forward(context: RequestContext, frame: Buffer) -> Parts:
    """Pass a request on as it came; the response as it goes out. KafkaError if the controller could not be
    asked in time.
    """
    data = await _exchange(context, frame)
    return [SIZE.pack(len(data)), data]


async def at_controller(
    context: RequestContext, request: Request, decide: Callable[[Controller], Result[R]]
) -> R:
    """What the active controller says to a part of what was asked: decided here if it is here, or else passed
    on.
    """
    try:
        return await context.node.control(decide)
    except KafkaError as error:
        if error.code is not ErrorCode.NOT_CONTROLLER or context.forwarded_for is not None:
            raise
    api, version = context.api, context.version
    header = RequestHeader(
        request_api_key=api.key,
        request_api_version=version,
        correlation_id=context.correlation_id,
        client_id=context.client_id,
    )
    frame = header.encode(api.request_header_version(version)) + request.encode(version)
    _, response = read_response(api, version, await _exchange(context, frame))
    return cast("R", response)


async def _exchange(context: RequestContext, frame: Buffer) -> bytes:
    envelope = EnvelopeRequest(
        request_data=frame, request_principal=_PRINCIPAL, client_host_address=_packed(context.client_host)
    )
    try:
        answer = await context.node.quorum.forwards.ask(envelope, _ENVELOPE_VERSION)
    except OSError as error:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None
    assert isinstance(answer, EnvelopeResponse)
    if answer.error_code or answer.response_data is None:
        raise KafkaError(ErrorCode.of(answer.error_code or ErrorCode.UNKNOWN_SERVER_ERROR))
    return bytes(answer.response_data)


def _packed(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return bytes(4)


def sender(envelope: EnvelopeRequest) -> str:
    """The host of the client for which another broker passed a request on. PRINCIPAL_DESERIALIZATION_FAILURE
    if nobody can tell who it is, INVALID_REQUEST if nobody can tell where.
    """
    try:
        # Listeners without authentication know one principal, which it must be; it need not be passed on.
        decode_prefixed(DefaultPrincipalData, envelope.request_principal or b"")
    except (MalformedMessage, UnsupportedVersion) as error:
        raise KafkaError(
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, f"who asks cannot be read: {error.message}"
        ) from None
    try:
        return str(ipaddress.ip_address(envelope.client_host_address))
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"a client's address has 4 or 16 bytes, not {len(envelope.client_host_address)}",
        ) from None
