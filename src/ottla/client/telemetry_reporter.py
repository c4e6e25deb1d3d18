"""Push a client's metrics to the cluster, if an operator has subscribed to them (KIP-714).

One task asks a broker which metrics it wants and how often, and pushes them. A client of which
no metric is wanted asks every five minutes and does nothing else; one that lives for less than a second never
asks. Errors of
telemetry never reach the user of the client: the task tries again later, or stops, as Kafka's clients do.

When the client closes, what it counted since the last push is pushed once more, within a short time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.metrics import ClientMetrics
from ottla.client.network_client import NetworkClient
from ottla.protocol.errors import ErrorCode, KafkaError, UnsupportedVersion
from ottla.protocol.names import uuid_text
from ottla.protocol.schema import ZERO_UUID
from ottla.records.types import Codec
from ottla.rpc.connection import BrokerConnection

log = logging.getLogger(__name__)

FIRST_ASK_S: Final = 1.0
_DEFAULT_INTERVAL_MS: Final = 5 * 60 * 1000
_LAST_PUSH_MS: Final = 1_000
_ALL: Final = "*"
_AT_ONCE: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_LATER: Final = (ErrorCode.TELEMETRY_TOO_LARGE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)


@dataclass(frozen=True, slots=True)
class _TelemetrySubscription:
    """What the cluster wants of this client."""

    id: int
    interval_ms: int
    codec: Codec
    max_bytes: int
    is_delta: bool
    prefixes: tuple[str, ...]

    def wants(self, name: str) -> bool:
        return self.prefixes == (_ALL,) or name.startswith(self.prefixes)


class _PushRefused(Exception):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class ClientTelemetryReporter:
    """`run` is its task, from the client's start to its `close`."""

    def __init__(
        self,
        cluster: NetworkClient,
        metrics: ClientMetrics,
        resource: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`resource` gives what the client is, beyond what the broker knows: its group, its rack."""
        self._cluster = cluster
        self._metrics = metrics
        self._resource = resource
        self._instance_id = ZERO_UUID
        self._subscription: _TelemetrySubscription | None = None
        self._connection: BrokerConnection | None = None
        self._task: asyncio.Task[None] | None = None
        # The last push.
        self._under_way: asyncio.Task[None] | None = None

    @property
    def client_instance_id(self) -> str | None:
        """The id that the cluster knows this client by; None before it has asked for one."""
        return None if self._instance_id == ZERO_UUID else uuid_text(self._instance_id)

    def start(self, *, push: bool = True) -> None:
        """Begin to count; and to push, unless another client does for the same connections."""
        loop = asyncio.get_running_loop()
        self._metrics.start(loop.time(), self._cluster.runtime.clock.wall_ms() * 1_000_000)
        if push and self._cluster.config.enable_metrics_push:
            self._task = loop.create_task(self.run(), name="ottla-client-telemetry")

    async def close(self) -> None:
        """Push for the last time, if this client pushes at all, and stop."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        try:
            await self._push_for_the_last_time()
        finally:
            if self._under_way is not None:
                self._under_way.cancel()
                await asyncio.gather(self._under_way, return_exceptions=True)

    async def _push_for_the_last_time(self) -> None:
        subscription = self._subscription
        if subscription is None:
            return
        with contextlib.suppress(KafkaError, _PushRefused, TimeoutError):
            async with asyncio.timeout(_LAST_PUSH_MS / 1000):
                if self._under_way is not None:
                    await asyncio.gather(self._under_way, return_exceptions=True)
                await self._push(subscription, terminating=True)

    async def run(self) -> None:
        try:
            wait_ms: float = FIRST_ASK_S * 1000
            while True:
                await asyncio.sleep(wait_ms / 1000)
                next_ms = await self._step()
                if next_ms is None:
                    return
                wait_ms = next_ms
        except Exception:
            log.exception("the metrics of this client are not pushed any more")

    async def _step(self) -> float | None:
        """Ask or push; return the time until the next step, None if there is none."""
        subscription = self._subscription
        try:
            if subscription is None:
                return await self._ask()
            await self._push(subscription, terminating=False)
            return subscription.interval_ms
        except UnsupportedVersion:
            # A broker that another connection reaches may know it.
            self._subscription = self._connection = None
            return _DEFAULT_INTERVAL_MS
        except _PushRefused as error:
            self._subscription = None
            if error.code in _AT_ONCE:
                return 0
            if error.code in _LATER:
                return _DEFAULT_INTERVAL_MS if subscription is None else subscription.interval_ms
            log.debug("the metrics of this client are not pushed any more: %s", error)
            return None
        except KafkaError as error:
            log.debug("telemetry: %s", error)
            self._connection = None
            return _DEFAULT_INTERVAL_MS if subscription is None else subscription.interval_ms

    async def _ask(self) -> float:
        # Imported here, as below: most clients are gone before they ask.
        from ottla.protocol.messages.get_telemetry_subscriptions import (
            GetTelemetrySubscriptionsRequest,
            GetTelemetrySubscriptionsResponse,
        )

        connection = await self._any_connection()
        response = await connection.request(
            GetTelemetrySubscriptionsRequest(client_instance_id=self._instance_id),
            GetTelemetrySubscriptionsResponse,
            timeout_ms=self._cluster.config.request_timeout_ms,
        )
        if response.error_code:
            raise _PushRefused(ErrorCode.of(response.error_code))
        self._instance_id = response.client_instance_id
        interval_ms = response.push_interval_ms if response.push_interval_ms > 0 else _DEFAULT_INTERVAL_MS
        if not response.requested_metrics:
            return interval_ms
        self._subscription = _TelemetrySubscription(
            response.subscription_id,
            interval_ms,
            _first_codec(response.accepted_compression_types),
            response.telemetry_max_bytes,
            response.delta_temporality,
            tuple(response.requested_metrics),
        )
        # Clients that start together do not push together.
        return interval_ms * (0.5 + self._cluster.runtime.random.random())

    async def _push(self, subscription: _TelemetrySubscription, *, terminating: bool) -> None:
        """Push, and finish that even if the caller is cancelled: what has arrived counts."""
        push = self._exchange(subscription, terminating=terminating)
        self._under_way = asyncio.get_running_loop().create_task(push)
        await asyncio.shield(self._under_way)

    async def _exchange(self, subscription: _TelemetrySubscription, *, terminating: bool) -> None:
        from ottla.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse

        connection = await self._any_connection()
        data, on_pushed = self._payload(subscription)
        response = await connection.request(
            PushTelemetryRequest(
                client_instance_id=self._instance_id,
                subscription_id=subscription.id,
                terminating=terminating,
                compression_type=int(subscription.codec),
                metrics=data,
            ),
            PushTelemetryResponse,
            timeout_ms=self._cluster.config.request_timeout_ms,
        )
        if response.error_code:
            raise _PushRefused(ErrorCode.of(response.error_code))
        on_pushed()

    def _payload(self, subscription: _TelemetrySubscription) -> tuple[bytes, Callable[[], None]]:
        from ottla.protocol.otlp import write_metrics
        from ottla.records.compression import compress

        wall_ns = self._cluster.runtime.clock.wall_ms() * 1_000_000
        points, on_pushed = self._metrics.points(
            subscription.wants, delta=subscription.is_delta, wall_ns=wall_ns
        )
        # What is about the whole client comes first: of too much, the ends of long lists of partitions go.
        points.sort(key=lambda point: len(point.attributes))
        while True:
            plain = write_metrics(self._resource(), points)
            if len(plain) <= subscription.max_bytes or not points:
                return bytes(compress(subscription.codec, plain)), on_pushed
            points = points[: len(points) // 2]

    async def _any_connection(self) -> BrokerConnection:
        """The connection of the last request, while it is open: its broker knows this instance."""
        if self._connection is None or not self._connection.is_open:
            self._connection = await self._cluster.any_connection()
        return self._connection


def _first_codec(accepted: list[int]) -> Codec:
    """The first that both sides know; the broker's list begins with what it likes best."""
    known = {int(codec) for codec in Codec}
    return next((Codec(number) for number in accepted if number in known), Codec.NONE)
