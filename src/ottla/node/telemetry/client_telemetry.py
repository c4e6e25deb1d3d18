"""The telemetry of clients as a broker serves it: decide, decode, show and forward.

`ClientMetricsManager` decides whether a push is accepted; the push is decompressed and decoded in the pool,
within the bounds of `telemetry.max.bytes`; `ClientMetricsStore` shows it at `/metrics`, and an
`OtlpForwarder`, where there is one, sends it on. All of it is made with the first telemetry request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import Final

from ottla.node.network.connection import ClientConnection
from ottla.node.telemetry.client_metrics_manager import ClientInstance, ClientMetricsManager
from ottla.node.telemetry.client_metrics_store import ClientMetricsStore, PushedMetrics, pushed_metrics
from ottla.node.telemetry.otlp_forwarder import OtlpForwarder
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest
from ottla.protocol.otlp import read_metrics, with_resource_attributes
from ottla.records.compression import decompress
from ottla.records.types import Codec
from ottla.runtime.metrics import MetricsText
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

# A push that is this many times too large is answered as what it is; a bomb, as one that cannot be read.
_TOO_LARGE_SHOWN: Final = 8


class _InstanceOfConnection:
    """The instance whose state goes with a connection."""

    __slots__ = ("_manager", "id")

    def __init__(self, manager: ClientMetricsManager, client_instance_id: bytes) -> None:
        self._manager: Final = manager
        self.id: Final = client_instance_id

    def close(self) -> None:
        self._manager.on_disconnect(self.id)


class ClientTelemetry:
    def __init__(
        self,
        manager: ClientMetricsManager,
        store: ClientMetricsStore,
        forwarder: OtlpForwarder | None,
        runtime: Runtime,
    ) -> None:
        self._manager: Final = manager
        self._store: Final = store
        self._forwarder: Final = forwarder
        self._pool: Final = runtime.pool
        self._clock: Final = runtime.clock

    def get_subscription(
        self, request: GetTelemetrySubscriptionsRequest, client_id: str | None, connection: ClientConnection
    ) -> GetTelemetrySubscriptionsResponse:
        response, instance = self._manager.get_subscription(
            request.client_instance_id, _attributes(client_id, connection), self._now_ms()
        )
        self._keep(connection, instance)
        return response

    def push(
        self, request: PushTelemetryRequest, client_id: str | None, connection: ClientConnection
    ) -> Awaitable[ErrorCode]:
        """Take the metrics of a push, and return what became of it. KafkaError if it is refused at once.

        A client that closes sends its last push and does not wait for the response: what was begun is
        finished, whatever becomes of the connection.
        """
        instance = self._manager.accept_push(request, _attributes(client_id, connection), self._now_ms())
        self._keep(connection, instance)
        received = self._receive(instance, Codec(request.compression_type), bytes(request.metrics))
        return asyncio.shield(asyncio.get_running_loop().create_task(received))

    async def _receive(self, instance: ClientInstance, codec: Codec, data: bytes) -> ErrorCode:
        if not data:
            instance.last_error = ErrorCode.NONE
            return ErrorCode.NONE
        manager, forwarder = self._manager, self._forwarder
        try:
            pushed, forwarded = await self._pool.run(
                _decode, codec, data, manager.max_bytes, instance.attributes, forwarder is not None
            )
        except KafkaError as error:
            _log.debug("a push of %s cannot be read: %s", instance.attributes, error.message)
            manager.on_received(instance, error)
            return error.code
        manager.on_received(instance, None)
        self._store.add(instance.id, pushed, instance.expiry_ms)
        if forwarder is not None:
            forwarder.add(forwarded)
        return ErrorCode.NONE

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _keep(self, connection: ClientConnection, instance: ClientInstance) -> None:
        kept = connection.kept_telemetry
        if not isinstance(kept, _InstanceOfConnection) or kept.id != instance.id:
            connection.kept_telemetry = _InstanceOfConnection(self._manager, instance.id)

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        """Write what clients pushed, and how telemetry itself does."""
        manager, counters = self._manager, self._manager.counters
        prefix = "kafka_server_client_metrics_"
        text.gauge(f"{prefix}instance_count", "Clients that telemetry knows", manager.instance_count)
        text.counter(
            f"{prefix}unknown_subscription_request_count",
            "Pushes under a subscription that was out of date",
            counters.unknown_subscriptions,
        )
        text.counter(f"{prefix}throttle_count", "Telemetry requests that came too early", counters.throttled)
        text.counter(f"{prefix}plugin_export_count", "Pushes that were taken", counters.exported)
        text.counter(f"{prefix}plugin_error_count", "Pushes that could not be read", counters.failed)
        text.counter(
            "ottla_client_metrics_evicted_total",
            "Clients that telemetry forgot because there were too many",
            counters.evicted,
        )
        text.gauge("ottla_client_metrics_series", "Series that clients pushed", self._store.series_count)
        text.counter(
            "ottla_client_metrics_dropped_points_total",
            "Points that clients pushed beyond the number of series that are shown",
            self._store.dropped_points,
        )
        if self._forwarder is not None:
            self._forwarder.collect(text)
        await self._store.collect(text, turns)


def _attributes(client_id: str | None, connection: ClientConnection) -> dict[str, str]:
    """What the broker knows of a client, by the names of `match`."""
    found = {
        "client_source_address": connection.peer[0],
        "client_source_port": str(connection.peer[1]),
    }
    if client_id is not None:
        found["client_id"] = client_id
    if connection.client_software is not None:
        name, _, version = connection.client_software.partition(" ")
        found["client_software_name"], found["client_software_version"] = name, version
    return found


def _decode(
    codec: Codec, data: bytes, max_bytes: int, attributes: Mapping[str, str], is_forwarded: bool
) -> tuple[PushedMetrics, bytes]:
    """What a push shows, and what of it is forwarded."""
    try:
        plain = memoryview(decompress(codec, data, max_bytes * _TOO_LARGE_SHOWN))
    except KafkaError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, error.message) from None
    if plain.nbytes > max_bytes:
        raise KafkaError(
            ErrorCode.TELEMETRY_TOO_LARGE,
            f"{plain.nbytes} bytes of metrics, telemetry.max.bytes={max_bytes}",
        )
    try:
        pushed = pushed_metrics(read_metrics(plain), attributes)
        return pushed, with_resource_attributes(plain, attributes) if is_forwarded else b""
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, error.message) from None
