"""The metrics that clients push, as an extension of a broker. It is made with the first telemetry request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.node.api.broker_extension import BrokerExtension
from ottla.protocol.api import API_BY_NAME
from ottla.runtime.on_demand import OnDemand

if TYPE_CHECKING:
    from ottla.node.server.broker_server import BrokerServer
    from ottla.node.telemetry.client_telemetry import ClientTelemetry

_APIS: Final = frozenset(API_BY_NAME[name].key for name in ("GetTelemetrySubscriptions", "PushTelemetry"))


class ClientTelemetryExtension(BrokerExtension):
    name = "metrics of clients"

    def __init__(self, broker: BrokerServer) -> None:
        self._shared: Final = broker.shared
        self._metadata: Final = broker.quorum.metadata
        self.telemetry: Final = OnDemand(self._make_telemetry)

    def announced_apis(self) -> frozenset[int]:
        """Clients push only what is seen: at `/metrics`, or by a collector (decision 0082)."""
        shared = self._shared
        is_seen = shared.http.endpoint is not None or shared.config.text("telemetry.otlp.endpoint")
        return _APIS if is_seen else frozenset()

    def _make_telemetry(self) -> ClientTelemetry:
        from ottla.node.config.otlp import METRICS, parse_headers, signal_url
        from ottla.node.telemetry.client_metrics_manager import ClientMetricsManager
        from ottla.node.telemetry.client_metrics_store import ClientMetricsStore
        from ottla.node.telemetry.client_telemetry import ClientTelemetry
        from ottla.node.telemetry.otlp_forwarder import OtlpForwarder

        shared, metadata = self._shared, self._metadata
        runtime, config = shared.runtime, shared.config
        forwarder = None
        if endpoint := config.text("telemetry.otlp.endpoint"):
            headers = parse_headers(str(config["telemetry.otlp.headers"] or ""))
            forwarder = OtlpForwarder(runtime, signal_url(endpoint, METRICS), headers)
            forwarding = shared.tasks.start("forwarding of client metrics", forwarder.run)
            shared.stop_sequence.add(forwarding.stop)
        telemetry = ClientTelemetry(
            ClientMetricsManager(
                lambda: metadata.image.configs, runtime.random.uuid, config.number("telemetry.max.bytes")
            ),
            ClientMetricsStore(
                config.number("telemetry.max.series"), lambda: runtime.clock.monotonic_ns() // 1_000_000
            ),
            forwarder,
            runtime,
        )
        shared.metrics.add_collector("client telemetry", telemetry.collect)
        return telemetry
