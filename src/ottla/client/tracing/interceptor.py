"""The interceptor that makes spans for records and carries their context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.client.producer.producer import ProducerRecord
from ottla.client.producer.producer_batch import Delivery
from ottla.client.tracing.traceparent import TRACEPARENT, traceparent_of
from ottla.records._kernel import ConsumerRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext, Tracer


_TRACESTATE: Final = "tracestate"
# Links of one poll; OpenTelemetry's own limit for a span.
_MAX_LINKS: Final = 128


def context_of(record: ConsumerRecord[Any, Any]) -> Context:
    """The context of a record's trace, to be the parent of a span; the current one if it has none."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(_carrier(record.headers))


def _carrier(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    return {
        name: value.decode("ascii", "replace")
        for name, value in headers
        if value is not None and name in (TRACEPARENT, _TRACESTATE)
    }


class TracingInterceptor:
    """An interceptor for producers and consumers. Without a tracer it takes that of the process."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ImportError('TracingInterceptor needs OpenTelemetry: pip install "ottla[otel]"') from error
        from ottla import __version__

        self._trace: Final = trace
        self._propagator: Final = TraceContextTextMapPropagator()
        self._tracer: Final = tracer if tracer is not None else trace.get_tracer("ottla", __version__)

    # `ProducerInterceptor`.

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        headers = _pairs(record.headers)
        if any(name == TRACEPARENT for name, _ in headers):
            return record
        attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.destination.name": record.topic,
        }
        span = self._tracer.start_span(
            f"send {record.topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(span))
        span.end()
        record.headers = [*headers, *((name, value.encode()) for name, value in carrier.items())]
        return record

    def on_acknowledgement(self, delivery: Delivery) -> None:
        return None

    # `ConsumerInterceptor`.

    def on_consume(self, records: list[ConsumerRecord[Any, Any]]) -> list[ConsumerRecord[Any, Any]]:
        contexts: list[SpanContext] = []
        for record in records:
            if len(contexts) == _MAX_LINKS:
                break
            if record.headers and traceparent_of(record.headers) is not None:
                found = self._propagator.extract(_carrier(record.headers))
                contexts.append(self._trace.get_current_span(found).get_span_context())
        topics = sorted({record.topic for record in records})
        span = self._tracer.start_span(
            f"poll {topics[0]}" if len(topics) == 1 else "poll",
            kind=self._trace.SpanKind.CONSUMER,
            links=[self._trace.Link(context) for context in contexts],
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.name": "poll",
                "messaging.batch.message_count": len(records),
            },
        )
        span.end()
        return records

    def on_commit(self, offsets: Mapping[Any, Any]) -> None:
        return None


def _pairs(headers: Any) -> list[tuple[str, bytes | None]]:
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers or ())
