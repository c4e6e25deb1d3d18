"""Trace contexts in the headers of records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, get_current_span

from ottla import blocking
from ottla.client.tracing import TracingInterceptor, context_of, is_traceparent, traceparent_of
from ottla.testing.local_node import LocalNode

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as running:
        yield running


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CONTEXT, True),
        (CONTEXT.replace("00-", "01-", 1) + "-more", True),
        (CONTEXT.upper(), False),
        ("ff" + CONTEXT[2:], False),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", False),
        (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", False),
        (CONTEXT[:-1], False),
        ("", False),
    ],
)
def test_the_form_of_a_traceparent(text: str, expected: bool) -> None:
    assert is_traceparent(text) is expected


def test_the_last_well_formed_header_counts() -> None:
    other = CONTEXT.replace("4bf9", "aaaa")
    headers = [("traceparent", CONTEXT.encode()), ("traceparent", other.encode()), ("traceparent", b"\xff")]
    assert traceparent_of(headers) == other
    assert traceparent_of([("a", b"b"), ("traceparent", None)]) is None


def test_a_trace_goes_from_producer_to_consumer(node: LocalNode) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracer = provider.get_tracer("test")
    interceptor = TracingInterceptor(tracer)
    with blocking.Producer(node.bootstrap_servers, interceptors=[interceptor]) as producer:
        producer.send("traced", b"one", headers={"a": b"1"})
        producer.send("traced", b"two", headers=[("traceparent", CONTEXT.encode())])
    (sent,) = spans.get_finished_spans()
    assert (sent.name, sent.kind) == ("send traced", SpanKind.PRODUCER)
    spans.clear()
    consumer: blocking.Consumer[bytes, bytes]
    with blocking.Consumer(
        node.bootstrap_servers, auto_offset_reset="earliest", interceptors=[interceptor]
    ) as consumer:
        consumer.assign([("traced", 0)])
        records = []
        while len(records) < 2:
            records += consumer.poll()
    (name, value), (header, context) = records[0].headers
    assert (name, value, header) == ("a", b"1", "traceparent")
    assert context.decode().startswith(f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-")
    # What the sender set is not replaced.
    assert traceparent_of(records[1].headers) == CONTEXT
    polled = spans.get_finished_spans()
    assert {(span.name, span.kind) for span in polled} == {("poll traced", SpanKind.CONSUMER)}
    links = [link.context.span_id for span in polled for link in span.links]
    assert links == [sent.context.span_id, 0x00F067AA0BA902B7]
    # The trace goes on where the record is worked on.
    parent = get_current_span(context_of(records[0])).get_span_context()
    assert (parent.trace_id, parent.span_id) == (sent.context.trace_id, sent.context.span_id)
