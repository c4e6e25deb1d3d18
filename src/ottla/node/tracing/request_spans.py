"""One OpenTelemetry span for each request, where the extra `otel` is installed and asked for.

A dispatcher that is traced stands before the one that answers; without `telemetry.traces.enable` there is
none, and requests cost what they did. A span begins when the request has been read and ends when its response
is made, also of a request that waits: a fetch, a produce with acks=all. Requests of Kafka's protocol carry no
trace context, so each span is the root of a trace; the context of a message is in its `traceparent` header,
from client to client.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from ottla.node.network.connection import Parts, PendingRequest, RequestDispatcher
from ottla.protocol.api import API, api_name
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.headers import RequestHeader, request_header_version

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


_KEY_AND_VERSION: Final = struct.Struct(">hh")


class TracingDispatcher:
    """Makes a span for each request that another dispatcher answers."""

    __slots__ = ("_inner", "_kind", "_listener", "_tracer")

    def __init__(self, inner: RequestDispatcher, tracer: Tracer, listener: str) -> None:
        from opentelemetry.trace import SpanKind

        self._inner: Final = inner
        self._tracer: Final = tracer
        self._kind: Final = SpanKind.SERVER
        self._listener: Final = listener

    @property
    def lane(self) -> None:
        """Each request gets its span, so none passes by."""

    def start(self, pending: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        name, attributes = _described(frame)
        attributes["network.peer.address"], attributes["network.peer.port"] = pending.connection.peer
        attributes["messaging.kafka.listener"] = self._listener
        span = self._tracer.start_span(name, kind=self._kind, attributes=attributes)
        try:
            reply = self._inner.start(pending, frame)
        except BaseException as error:
            _fail(span, error)
            raise
        if reply is None or isinstance(reply, list):
            span.end()
            return reply
        return _traced(span, reply)


async def _traced(span: Span, reply: Awaitable[Parts | None]) -> Parts | None:
    from opentelemetry.trace import use_span

    with use_span(span, end_on_exit=True):
        return await reply


def _fail(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode

    span.record_exception(error)
    span.set_status(StatusCode.ERROR, str(error))
    span.end()


def _described(frame: memoryview) -> tuple[str, dict[str, Any]]:
    """The name of a request's span, and what the header says; whether it can be answered shows later."""
    if len(frame) < _KEY_AND_VERSION.size:
        return "malformed request", {}
    key, version = _KEY_AND_VERSION.unpack_from(frame)
    attributes: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.kafka.api.key": key,
        "messaging.kafka.api.version": version,
        "messaging.kafka.request.bytes": len(frame),
    }
    api = API.get(key)
    if api is None:
        return f"API {key}", attributes
    try:
        header, _ = RequestHeader.decode_from(frame, 0, request_header_version(api, version))
    except MalformedMessage:
        return api_name(key), attributes
    attributes["messaging.kafka.correlation.id"] = header.correlation_id
    if header.client_id is not None:
        attributes["messaging.client.id"] = header.client_id
    return api_name(key), attributes
