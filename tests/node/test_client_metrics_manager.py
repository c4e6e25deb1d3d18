"""Which telemetry requests are accepted, as Kafka's `ClientMetricsManager` decides."""

from __future__ import annotations

import itertools

import pytest

from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.telemetry import client_metrics_manager
from ottla.node.telemetry.client_metrics_manager import ClientInstance, ClientMetricsManager
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest

MAX_BYTES = 1_000
ZERO = bytes(16)
CLIENT = bytes(range(16))
JAVA = {
    "client_id": "app-1",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.1",
    "client_source_address": "10.0.0.1",
    "client_source_port": "4711",
}


class Manager:
    """A manager whose subscriptions and time the test sets."""

    def __init__(self) -> None:
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        self.now = 1_000_000
        ids = itertools.count(1)
        self.manager = ClientMetricsManager(
            lambda: self.configs, lambda: next(ids).to_bytes(16, "little"), MAX_BYTES
        )

    def subscribe(self, name: str, **settings: str) -> None:
        resource = ConfigResource(ConfigResourceType.CLIENT_METRICS, name)
        values = {key.replace("_", "."): value for key, value in settings.items()}
        self.configs = {**self.configs, resource: values}

    def get(self, id: bytes = ZERO, attributes: dict[str, str] = JAVA) -> GetTelemetrySubscriptionsResponse:
        return self.manager.get_subscription(id, attributes, self.now)[0]

    def push(self, id: bytes, subscription_id: int, **fields: object) -> ErrorCode:
        request = PushTelemetryRequest(
            client_instance_id=id, subscription_id=subscription_id, **{"metrics": b"x", **fields}
        )
        try:
            instance = self.manager.accept_push(request, JAVA, self.now)
        except KafkaError as error:
            return error.code
        self.manager.on_received(instance, None)
        return ErrorCode.NONE


@pytest.fixture
def manager() -> Manager:
    return Manager()


def test_a_client_without_an_id_gets_one_and_keeps_it(manager: Manager) -> None:
    first = manager.get()
    assert first.client_instance_id not in (ZERO, manager.get().client_instance_id)
    assert (first.requested_metrics, first.push_interval_ms) == ([], 300_000)
    assert (first.telemetry_max_bytes, first.delta_temporality) == (MAX_BYTES, True)
    assert first.accepted_compression_types == [4, 3, 1, 2]
    manager.now += 300_000
    assert manager.get(first.client_instance_id).client_instance_id == first.client_instance_id


def test_the_subscriptions_that_match_count_together(manager: Manager) -> None:
    manager.subscribe("a", metrics="org.a,org.b", interval_ms="30000")
    manager.subscribe("b", metrics="org.b,org.c", interval_ms="10000", match="client_id=app-.*")
    manager.subscribe("c", metrics="org.d", interval_ms="100", match="client_id=app")
    manager.subscribe("d", metrics="org.e", match="client_software_name=apache.*,client_source_port=1")
    response = manager.get()
    assert response.requested_metrics == ["org.a", "org.b", "org.c"]
    assert response.push_interval_ms == 10_000
    manager.subscribe("e", metrics="*")
    assert manager.get(CLIENT).requested_metrics == ["*"]


def test_a_pattern_matches_only_clients_of_which_the_value_is_known(manager: Manager) -> None:
    manager.subscribe("a", metrics="*", match="client_id=.*")
    assert manager.get(attributes={}).requested_metrics == []
    assert manager.get(attributes={"client_id": ""}).requested_metrics == ["*"]


def test_a_pattern_that_would_take_long_does_not(manager: Manager) -> None:
    manager.subscribe("a", metrics="*", match="client_id=(a+)+b")
    assert manager.get(attributes={"client_id": "a" * 200}).requested_metrics == []


def test_a_subscription_of_another_kafka_that_cannot_be_used_is_left_out(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.subscribe("good", metrics="org.a")
    manager.subscribe("java", metrics="*", match="client_id=(?=x).*")
    assert manager.get().requested_metrics == ["org.a"]
    assert "'java' has no effect" in caplog.text


def test_pushes_come_once_in_an_interval(manager: Manager) -> None:
    manager.subscribe("a", metrics="*", interval_ms="1000")
    response = manager.get(CLIENT)
    # The first one after the subscription may come at any time.
    assert manager.push(CLIENT, response.subscription_id) is ErrorCode.NONE
    manager.now += 999
    assert manager.push(CLIENT, response.subscription_id) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    manager.now += 1
    assert manager.push(CLIENT, response.subscription_id) is ErrorCode.NONE
    assert manager.manager.counters.throttled == 1
    # The last one may come at any time too.
    assert manager.push(CLIENT, response.subscription_id, terminating=True) is ErrorCode.NONE
    manager.now += 1_000
    assert manager.push(CLIENT, response.subscription_id) is ErrorCode.INVALID_REQUEST


def test_a_client_asks_once_in_an_interval(manager: Manager) -> None:
    manager.subscribe("a", metrics="*", interval_ms="1000")
    response = manager.get(CLIENT)
    manager.now += 999
    assert manager.get(CLIENT).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    # A refused question does not begin another interval.
    manager.now += 1
    assert manager.get(CLIENT).error_code == 0
    assert manager.push(CLIENT, response.subscription_id + 1) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    # It was to ask again; that does not begin another interval either.
    assert manager.get(CLIENT).error_code == 0
    assert manager.push(CLIENT, response.subscription_id) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    manager.now += 1_000
    refused = manager.push(CLIENT, response.subscription_id, compression_type=9)
    assert refused is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert manager.get(CLIENT).error_code == 0
    assert manager.get(CLIENT).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_changed_subscription_is_asked_for_at_once(manager: Manager) -> None:
    manager.subscribe("a", metrics="org.a", interval_ms="1000")
    old = manager.get(CLIENT)
    assert manager.push(CLIENT, old.subscription_id) is ErrorCode.NONE
    manager.subscribe("a", metrics="org.b", interval_ms="1000")
    assert manager.push(CLIENT, old.subscription_id) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    new = manager.get(CLIENT)
    assert (new.error_code, new.requested_metrics) == (0, ["org.b"])
    assert new.subscription_id != old.subscription_id
    # Settings of other resources change nothing.
    manager.configs = {**manager.configs, ConfigResource(ConfigResourceType.TOPIC, "t"): {"a": "b"}}
    assert manager.get(CLIENT).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    manager.configs = {}
    assert manager.get(CLIENT).requested_metrics == []


def test_subscription_ids_are_the_same_on_every_broker(manager: Manager) -> None:
    other = Manager()
    for each in (manager, other):
        each.subscribe("a", metrics="org.a,org.b", interval_ms="1000")
    assert manager.get(CLIENT).subscription_id == other.get(CLIENT).subscription_id
    # A broker that has not seen the client takes its push.
    assert Manager.push(other, bytes(range(1, 17)), other.get(bytes(range(1, 17))).subscription_id) is (
        ErrorCode.NONE
    )
    assert manager.get(CLIENT[::-1]).subscription_id != manager.get(CLIENT).subscription_id


@pytest.mark.parametrize("id", [ZERO, bytes(15) + b"\1"])
def test_reserved_ids_do_not_push(manager: Manager, id: bytes) -> None:
    assert manager.push(id, 0) is ErrorCode.INVALID_REQUEST
    assert manager.manager.instance_count == 0


def test_a_push_that_is_too_large_is_refused(manager: Manager) -> None:
    response = manager.get(CLIENT)
    too_large = b"x" * (MAX_BYTES + 1)
    assert manager.push(CLIENT, response.subscription_id, metrics=too_large) is (
        ErrorCode.TELEMETRY_TOO_LARGE
    )


def test_instances_are_bounded_and_expire(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics_manager, "MAX_INSTANCES", 3)
    manager.subscribe("a", metrics="*", interval_ms="1000")
    ids = [bytes([number]) * 16 for number in range(1, 6)]
    for id in ids:
        manager.get(id)
    assert manager.manager.instance_count == 3
    assert manager.manager.counters.evicted == 2
    # The first one begins again, as if it had not asked before.
    assert manager.get(ids[0]).error_code == 0
    manager.now += 61_000
    assert manager.get(CLIENT).error_code == 0
    assert manager.manager.instance_count == 1
    manager.manager.on_disconnect(CLIENT)
    assert manager.manager.instance_count == 0


def test_an_instance_lives_for_three_intervals() -> None:
    instance = ClientInstance(CLIENT, {}, 0, 0, (), 300_000)
    assert instance.expiry_ms == 900_000
