"""Requests that only the active controller decides, sent to another broker: that broker forwards them.

This is Kafka's `ForwardingManager`. The broker sends the request as it came, header and all, in an Envelope,
with the client's principal and address (`forward`, or `at_controller` for a part of a request). The
controller handles it as if the client had sent it to the controller's own listener (`answer_forwarded`), and
the broker returns the response to the client. A controller that has just lost its leadership answers
NOT_CONTROLLER, and the broker asks its successor.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

from ottla.node.api.audit import log_changes
from ottla.node.api.context import (
    ELEMENTS_OF_A_TURN,
    ApiRequestContext,
    ForwardedRequestContext,
    RequestContext,
    RequestListener,
)
from ottla.node.api.response_errors import error_codes
from ottla.node.api.responses import encode, has_many_parts, make_failure_response
from ottla.node.api.routes import ROUTES
from ottla.node.network.connection import Parts, ProtocolViolation
from ottla.protocol.api import ListenerType, api_name
from ottla.protocol.errors import (
    ErrorCode,
    KafkaError,
    MalformedMessage,
    TooManyElements,
    UnsupportedVersion,
)
from ottla.protocol.headers import SIZE, RequestHeader, read_response, request_header_version
from ottla.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.protocol.schema import Buffer, Request, Response
from ottla.runtime.heavy_work import SHORT_US
from ottla.security.principal import KafkaPrincipal

if TYPE_CHECKING:
    from ottla.metadata.controller.controller import Controller
    from ottla.metadata.controller.state import Decision, Result
    from ottla.node.api.services import ApiServices

R = TypeVar("R", bound=Response)

_ENVELOPE_VERSION: Final = 0
_KEY_AND_VERSION: Final = struct.Struct(">hh")


async def forward(context: ApiRequestContext, frame: Buffer) -> Parts:
    """Forward a request as it came, and return the response as it goes out. REQUEST_TIMED_OUT if no
    controller answered in time.
    """
    data = await _send_envelope(context, frame)
    return [SIZE.pack(len(data)), data]


def read_forwarded(context: ApiRequestContext, parts: Parts) -> Response:
    """Read the response that `forward` returned."""
    _, response = read_response(context.api, context.version, parts[1])
    return response


async def at_controller(
    context: ApiRequestContext, request: Request, decide: Callable[[Controller], Result[R] | Decision[R]]
) -> R:
    """Have the active controller decide a request that a handler made of a part of the client's: here if it
    is on this node, or else forwarded.
    """
    try:
        return await context.controller.control(decide)
    except KafkaError as error:
        if error.code is not ErrorCode.NOT_CONTROLLER or isinstance(context, ForwardedRequestContext):
            raise
    api, version = context.api, context.version
    header = RequestHeader(
        request_api_key=api.key,
        request_api_version=version,
        correlation_id=context.correlation_id,
        client_id=context.client_id,
    )
    frame = header.encode(request_header_version(api, version))
    if isinstance(context, RequestContext):
        context.forwarded = request
    if not context.is_long:
        answer = await _send_envelope(context, frame + request.encode(version))
        _, response = read_response(api, version, answer)
        return cast("R", response)
    pool = context.services.node.runtime.pool
    frame += await pool.run(request.encode, version)
    _, response = await pool.run(read_response, api, version, await _send_envelope(context, frame))
    return cast("R", response)


async def _send_envelope(context: ApiRequestContext, frame: Buffer) -> bytes:
    envelope = EnvelopeRequest(
        request_data=frame,
        request_principal=context.principal.encode(),
        client_host_address=_pack_address(context.client_host),
    )
    try:
        answer = await context.controller.forwards.request(envelope, _ENVELOPE_VERSION)
    except OSError as error:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from None
    assert isinstance(answer, EnvelopeResponse)
    if answer.error_code or answer.response_data is None:
        raise KafkaError(ErrorCode.of(answer.error_code or ErrorCode.UNKNOWN_SERVER_ERROR))
    return bytes(answer.response_data)


def _pack_address(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return bytes(4)


async def answer_forwarded(services: ApiServices, envelope: EnvelopeRequest) -> bytes:
    """Handle a request that another broker forwarded, and return the response as it goes to the client,
    without its size. KafkaError where the envelope cannot be opened, and NOT_CONTROLLER if the active
    controller is not on this node.
    """
    principal, client_host = _client(envelope)
    frame = envelope.request_data
    if len(frame) < _KEY_AND_VERSION.size:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the envelope is empty")
    key, version = _KEY_AND_VERSION.unpack_from(frame)
    route = ROUTES.get(key)
    if route is None or ListenerType.CONTROLLER not in route.listeners or not route.api.forwardable:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{api_name(key)} is not forwarded")
    config = services.node.config
    listener = RequestListener(
        config.controller_listener_names[0],
        ListenerType.CONTROLLER,
        config.flag("unstable.api.versions.enable"),
    )
    api = route.api
    if not api.min_version <= version <= route.max_version(unstable=listener.serves_unstable_versions):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{api_name(key)} version {version}")
    is_long = False
    try:
        header, position = RequestHeader.decode_from(frame, 0, request_header_version(api, version))
        try:
            request, _ = api.request_class.decode_from(frame, position, version, ELEMENTS_OF_A_TURN)
        except TooManyElements:
            is_long = True
            decode = partial(api.request_class.decode_from, frame, position, version)
            heavy = services.node.heavy_work
            request, _ = await heavy.run((principal, client_host), min(len(frame), SHORT_US), decode)
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None
    context = ForwardedRequestContext(
        services,
        listener,
        api,
        version,
        header.correlation_id,
        header.client_id,
        client_host,
        principal,
        is_long=is_long,
    )
    pool = services.node.runtime.pool
    has_failed = False
    try:
        reply = route.load_handler(ListenerType.CONTROLLER)(context, request)
        response = reply if reply is None or isinstance(reply, Response) else await reply
        assert response is not None, f"{api.name} has no answer"
    except Exception as error:
        if isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER:
            raise
        if isinstance(error, ProtocolViolation):
            # The connection that a broker would lose by it is not the client's.
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
        has_failed = True
        make = route.load_failure_response(ListenerType.CONTROLLER)
        if is_long:
            response = await pool.run(make_failure_response, context, make, request, error)
        else:
            response = make_failure_response(context, make, request, error)
    statistics = services.node.network_statistics.listener(listener.name)
    for code in error_codes(response):
        statistics.count_error(api.name, version, code)

    def log_and_encode(response: Response) -> bytes:
        if not has_failed:
            log_changes(context, request, response)
        return b"".join(encode(context, response))[SIZE.size :]

    if is_long or has_many_parts(response):
        return await pool.run(log_and_encode, response)
    return log_and_encode(response)


def _client(envelope: EnvelopeRequest) -> tuple[KafkaPrincipal, str]:
    """The principal and the address of the client on whose behalf a broker forwards a request.
    PRINCIPAL_DESERIALIZATION_FAILURE if its principal cannot be read, INVALID_REQUEST if its address cannot.
    """
    try:
        principal = KafkaPrincipal.decode(envelope.request_principal or b"")
    except (MalformedMessage, UnsupportedVersion) as error:
        raise KafkaError(
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
            f"Failed to deserialize client principal from envelope: {error.message}",
        ) from None
    try:
        return principal, str(ipaddress.ip_address(envelope.client_host_address))
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Failed to parse client address from envelope: it has "
            f"{len(envelope.client_host_address)} bytes, not 4 or 16",
        ) from None
