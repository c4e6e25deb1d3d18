"""ClientMetricsManager: which clients push which metrics, and when (KIP-714).

A client asks for its subscription, gets an instance id with its first answer, and pushes once per interval.
The manager is pure: it gets the metadata's subscriptions and the time, and returns responses. It decides as
Kafka's does, also in what it accepts:

- A client whose requests come too early gets THROTTLING_QUOTA_EXCEEDED. The first push after a subscription
  may come early, as clients spread their first pushes; so may the question after an UNKNOWN_SUBSCRIPTION_ID.
- A subscription id is a checksum over the metrics and the interval that apply to the client; a push under
  another one gets UNKNOWN_SUBSCRIPTION_ID, and the client asks again. It is the same on every broker.
- After a push that was `terminating` the instance pushes no more.

Invariants: `_instances` holds at most `MAX_INSTANCES`, least recently used first; an instance whose
subscriptions have changed is replaced by a new one at its next request.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.metadata.image.entities import ConfigResource
from ottla.node.config.client_metrics import (
    DEFAULT_INTERVAL_MS,
    ClientMetricsSubscription,
    subscriptions_of,
)
from ottla.node.config.definitions.config_def import ConfigError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest
from ottla.protocol.names import uuid_text
from ottla.records.checksum import crc32c
from ottla.records.types import Codec

_log = logging.getLogger(__name__)

MAX_INSTANCES: Final = 16_384
"""How many clients a broker keeps the state of, as Kafka does."""
_EXPIRY_MS: Final = 60_000
_SWEEP_MS: Final = 30_000
_ALL_METRICS: Final = "*"
# In the order of preference: clients take the first that they have.
_ACCEPTED_CODECS: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
_CODECS: Final = frozenset(int(codec) for codec in Codec)
# Ids below this are reserved: no client, topic or directory has one.
_RESERVED_IDS: Final = frozenset((bytes(16), bytes(15) + b"\x01"))
_ASKED_AT_ONCE: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
_NEVER: Final = -(10**15)
_MAX_ATTRIBUTE: Final = 256


@dataclass(slots=True)
class ClientInstance:
    """A client that asked for its subscription, and what the answer was."""

    id: bytes
    # What `match` looks at, by the names of its parameters; without those that are not known.
    attributes: dict[str, str]
    subscription_id: int
    # Which state of the subscriptions this follows from.
    version: int
    metrics: tuple[str, ...]
    push_interval_ms: int
    last_get_ms: int = _NEVER
    last_push_ms: int = _NEVER
    last_used_ms: int = _NEVER
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE

    @property
    def expiry_ms(self) -> int:
        """How long it is kept after its last request."""
        return max(_EXPIRY_MS, 3 * self.push_interval_ms)

    def accepts_get(self, now_ms: int) -> bool:
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.push_interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def accepts_push(self, now_ms: int) -> bool:
        is_first = self.last_get_ms > self.last_push_ms
        if not is_first and now_ms - self.last_push_ms < self.push_interval_ms:
            return False
        self.last_push_ms = now_ms
        return True


@dataclass(slots=True)
class TelemetryCounters:
    """What happened to requests of clients, since the node started."""

    throttled: int = 0
    unknown_subscriptions: int = 0
    exported: int = 0
    failed: int = 0
    # Instances that were dropped because there were too many.
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class _Matcher:
    subscription: ClientMetricsSubscription
    patterns: dict[str, Any] = field(repr=False)

    def matches(self, attributes: Mapping[str, str]) -> bool:
        for name, pattern in self.patterns.items():
            value = attributes.get(name)
            if value is None or pattern.fullmatch(value) is None:
                return False
        return True


class ClientMetricsManager:
    """`configs` gives the settings of all resources of the newest metadata; `new_id` a random uuid."""

    def __init__(
        self,
        configs: Callable[[], Mapping[ConfigResource, Mapping[str, str]]],
        new_id: Callable[[], bytes],
        max_bytes: int,
    ) -> None:
        self._configs: Final = configs
        self._new_id: Final = new_id
        self.max_bytes: Final = max_bytes
        self.counters: Final = TelemetryCounters()
        self._instances: OrderedDict[bytes, ClientInstance] = OrderedDict()
        self._seen_configs: Mapping[ConfigResource, Mapping[str, str]] | None = None
        self._subscriptions: dict[str, ClientMetricsSubscription] = {}
        self._matchers: list[_Matcher] = []
        self._version = 0
        self._next_sweep_ms = _NEVER

    @property
    def instance_count(self) -> int:
        return len(self._instances)

    # Requests

    def get_subscription(
        self, client_instance_id: bytes, attributes: Mapping[str, str], now_ms: int
    ) -> tuple[GetTelemetrySubscriptionsResponse, ClientInstance]:
        """Answer a client that asks what to push. An id of zeros asks for one of its own."""
        if not any(client_instance_id):
            client_instance_id = self._new_id()
        instance = self._instance(client_instance_id, attributes, now_ms)
        if not instance.accepts_get(now_ms) and instance.last_error not in _ASKED_AT_ONCE:
            self.counters.throttled += 1
            return (
                GetTelemetrySubscriptionsResponse(error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED),
                instance,
            )
        instance.last_error = ErrorCode.NONE
        response = GetTelemetrySubscriptionsResponse(
            client_instance_id=client_instance_id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=[int(codec) for codec in _ACCEPTED_CODECS],
            push_interval_ms=instance.push_interval_ms,
            telemetry_max_bytes=self.max_bytes,
            delta_temporality=True,
            requested_metrics=list(instance.metrics),
        )
        return response, instance

    def accept_push(
        self, request: PushTelemetryRequest, attributes: Mapping[str, str], now_ms: int
    ) -> ClientInstance:
        """Return the instance that pushes. KafkaError says why the push is refused."""
        if request.client_instance_id in _RESERVED_IDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the client instance id is reserved")
        instance = self._instance(request.client_instance_id, attributes, now_ms)
        try:
            self._check_push(request, instance, now_ms)
        except KafkaError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.is_terminating = request.terminating
        return instance

    def on_received(self, instance: ClientInstance, error: KafkaError | None) -> None:
        """Note how it went with the metrics of an accepted push."""
        if error is None:
            self.counters.exported += 1
            instance.last_error = ErrorCode.NONE
        else:
            self.counters.failed += 1
            instance.last_error = error.code

    def on_disconnect(self, client_instance_id: bytes) -> None:
        """Forget an instance whose connection is lost; its next request begins again."""
        self._instances.pop(client_instance_id, None)

    def _check_push(self, request: PushTelemetryRequest, instance: ClientInstance, now_ms: int) -> None:
        if instance.is_terminating:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the client has said that its previous push was its last"
            )
        if not instance.accepts_push(now_ms) and not request.terminating:
            self.counters.throttled += 1
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if request.subscription_id != instance.subscription_id:
            self.counters.unknown_subscriptions += 1
            raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        if request.compression_type not in _CODECS:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if len(request.metrics) > self.max_bytes:
            raise KafkaError(ErrorCode.TELEMETRY_TOO_LARGE)

    # Instances

    def _instance(
        self, client_instance_id: bytes, attributes: Mapping[str, str], now_ms: int
    ) -> ClientInstance:
        self._refresh_subscriptions()
        self._sweep(now_ms)
        instance = self._instances.get(client_instance_id)
        if instance is None:
            known = {name: value[:_MAX_ATTRIBUTE] for name, value in attributes.items()}
            known["client_instance_id"] = uuid_text(client_instance_id)
            instance = self._new_instance(client_instance_id, known)
        elif instance.version < self._version:
            instance = self._new_instance(client_instance_id, instance.attributes)
        self._instances[client_instance_id] = instance
        self._instances.move_to_end(client_instance_id)
        if len(self._instances) > MAX_INSTANCES:
            self._instances.popitem(last=False)
            self.counters.evicted += 1
        instance.last_used_ms = now_ms
        return instance

    def _new_instance(self, client_instance_id: bytes, attributes: dict[str, str]) -> ClientInstance:
        interval_ms = DEFAULT_INTERVAL_MS
        metrics: dict[str, None] = {}
        for matcher in self._matchers:
            if matcher.matches(attributes):
                interval_ms = min(interval_ms, matcher.subscription.interval_ms)
                metrics.update(dict.fromkeys(matcher.subscription.metrics))
        asked = (_ALL_METRICS,) if _ALL_METRICS in metrics else tuple(sorted(metrics))
        return ClientInstance(
            client_instance_id,
            attributes,
            _subscription_id(asked, interval_ms, client_instance_id),
            self._version,
            asked,
            interval_ms,
        )

    def _refresh_subscriptions(self) -> None:
        configs = self._configs()
        if configs is self._seen_configs:
            return
        self._seen_configs = configs
        try:
            subscriptions = subscriptions_of(configs)
        except ConfigError as error:
            _log.warning("the subscriptions to client metrics stay as they were: %s", error)
            return
        if subscriptions == self._subscriptions:
            return
        self._subscriptions = subscriptions
        self._matchers = []
        for name, subscription in sorted(subscriptions.items()):
            try:
                self._matchers.append(_Matcher(subscription, subscription.patterns()))
            except KafkaError as error:
                # Another Kafka may have accepted it.
                _log.warning("client metrics subscription %r has no effect: %s", name, error.message)
        self._version += 1

    def _sweep(self, now_ms: int) -> None:
        """Forget instances that were not heard of for several intervals."""
        if now_ms < self._next_sweep_ms:
            return
        self._next_sweep_ms = now_ms + _SWEEP_MS
        expired = [
            instance.id
            for instance in self._instances.values()
            if now_ms - instance.last_used_ms > instance.expiry_ms
        ]
        for client_instance_id in expired:
            del self._instances[client_instance_id]


def _subscription_id(metrics: tuple[str, ...], interval_ms: int, client_instance_id: bytes) -> int:
    """A checksum of the metrics and the interval, mixed with the id of the client."""
    text = f"{','.join(metrics)}{interval_ms}".encode()
    words = (int.from_bytes(client_instance_id[at : at + 4], "big") for at in range(0, 16, 4))
    mixed = crc32c(text)
    for word in words:
        mixed ^= word
    return mixed - (1 << 32) if mixed >> 31 else mixed
