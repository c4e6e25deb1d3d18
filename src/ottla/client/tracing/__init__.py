"""Carry the context of a trace from producer to consumer, in the header `traceparent` of each record.

The header has the form of W3C's recommendation, as OpenTelemetry and other clients of Kafka write it. With
the extra `otel`, `TracingInterceptor` makes the spans:

    producer = Producer("localhost:9092", interceptors=[TracingInterceptor()])
    consumer = Consumer("localhost:9092", group_id="g", interceptors=[TracingInterceptor()])

Sending a record makes a short span of kind PRODUCER, whose context goes into the header; a record that has
the header already keeps it. A poll makes a span of kind CONSUMER with links to the contexts of its records.
To continue the trace of one record, use `context_of`:

    with tracer.start_as_current_span("charge", context=context_of(record)): ...
"""

from ottla.client.tracing.interceptor import TracingInterceptor, context_of
from ottla.client.tracing.traceparent import TRACEPARENT, is_traceparent, traceparent_of

__all__ = ["TRACEPARENT", "TracingInterceptor", "context_of", "is_traceparent", "traceparent_of"]
