"""The tracer of a node, and how its spans get to a collector.

Spans go to the tracer provider of the process, if the program that runs the node has set one. Otherwise the
node sets the SDK's own: it samples as the environment says (`OTEL_TRACES_SAMPLER`), batches spans in a thread
of its own, bounded in number, and sends them to `telemetry.otlp.endpoint` by OTLP over HTTP, in OTLP's JSON:
so neither protobuf nor an exporter is needed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.otlp import TRACES, parse_headers, signal_url
from ottla.runtime.http import HttpError, HttpRequest, http_fetch

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Tracer


_log = logging.getLogger(__name__)

_FLUSH_MS: Final = 2_000
_MISSING: Final = (
    "telemetry.traces.enable needs OpenTelemetry, which is not installed; "
    'pip install "ottla[otel]", or set telemetry.traces.enable=false'
)


@dataclass(frozen=True, slots=True)
class Tracing:
    tracer: Tracer
    # Sends the spans that wait; blocks for a short time at most.
    flush: Callable[[], object]


def open_tracing(config: NodeConfig, cluster_id: str) -> Tracing:
    """Return the tracer of this process; set a provider if there is none. NodeFailed if OpenTelemetry is not
    installed, or spans would go nowhere.
    """
    from ottla import __version__

    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise NodeFailed(_MISSING) from None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        endpoint = config.text("telemetry.otlp.endpoint")
        if not endpoint:
            raise NodeFailed(
                "telemetry.traces.enable: set telemetry.otlp.endpoint, the collector that the traces go to"
            )
        attributes = {
            "service.name": "ottla",
            "service.version": __version__,
            "service.instance.id": str(config.node_id),
            "messaging.kafka.cluster.id": cluster_id,
        }
        # What OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say counts more.
        own = TracerProvider(resource=Resource.create(attributes).merge(OTELResourceDetector().detect()))
        headers = parse_headers(str(config["telemetry.otlp.headers"] or ""))
        exporter = SpanJsonExporter(signal_url(endpoint, TRACES), headers)
        own.add_span_processor(BatchSpanProcessor(cast("SpanExporter", exporter)))
        trace.set_tracer_provider(own)
        provider = own
    tracer = trace.get_tracer("ottla", __version__)
    if isinstance(provider, TracerProvider):
        return Tracing(tracer, lambda: provider.force_flush(_FLUSH_MS))
    return Tracing(tracer, lambda: None)


class SpanJsonExporter:
    """Sends spans as OTLP's JSON; called by the thread of the SDK's processor."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url: Final = url
        self._headers: Final = {**headers, "content-type": "application/json"}
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        from opentelemetry.sdk.trace.export import SpanExportResult

        body = json.dumps({"resourceSpans": [_resource_spans(spans)]}).encode()
        problem = self._post(body)
        if problem is not None and not self._is_failing:
            _log.warning("traces cannot be sent: %s", problem)
        self._is_failing = problem is not None
        return SpanExportResult.SUCCESS if problem is None else SpanExportResult.FAILURE

    def _post(self, body: bytes) -> str | None:
        try:
            status = http_fetch(HttpRequest(self._url, "POST", self._headers, body)).status
        except HttpError as error:
            return str(error)
        return None if 200 <= status < 300 else f"{self._url} answered {status}"

    def shutdown(self) -> None:
        return None

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def _resource_spans(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """The spans of one provider, which share its resource, by what made them."""
    scopes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for span in spans:
        scope = span.instrumentation_scope
        key = ("", "") if scope is None else (scope.name, scope.version or "")
        scopes.setdefault(key, []).append(_span(span))
    return {
        "resource": {"attributes": _attributes(spans[0].resource.attributes)},
        "scopeSpans": [
            {"scope": {"name": name, "version": version}, "spans": found}
            for (name, version), found in scopes.items()
        ],
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    written: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "name": span.name,
        # OTLP has a kind before those of the API.
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(span.attributes or {}),
        "events": [
            {
                "timeUnixNano": str(event.timestamp),
                "name": event.name,
                "attributes": _attributes(event.attributes or {}),
            }
            for event in span.events
        ],
        "status": {"code": span.status.status_code.value, "message": span.status.description or ""},
    }
    if span.parent is not None:
        written["parentSpanId"] = f"{span.parent.span_id:016x}"
    return written


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    return {"stringValue": str(value)}
