"""The telemetry of clients at a live node: over the wire, from our own clients, and on to a collector."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from tests.support.collector import Collector
from tests.support.node_with_metrics import NodeWithMetrics
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

from ottla import blocking
from ottla.client.admin.configs import ResourceType
from ottla.node.config.definitions.config_def import ConfigError
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.otlp import METRICS, parse_headers, signal_url
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from ottla.protocol.names import uuid_text
from ottla.protocol.otlp import MetricPoint, PointKind, write_metrics
from ottla.records.compression import compress
from ottla.records.types import Codec

SENT = "org.apache.kafka.producer.record.send.total"
SHOWN = SENT.replace(".", "_")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def node(collector: Collector) -> Iterator[NodeWithMetrics]:
    settings = {
        "telemetry.max.bytes": "20000",
        "telemetry.otlp.endpoint": collector.address,
        "telemetry.otlp.headers": "x-tenant=tests",
    }
    with NodeWithMetrics(settings) as running:
        with blocking.Admin(running.bootstrap_servers) as admin:
            for name, values in {
                "all": {"metrics": "*", "interval.ms": "100", "match": "client_id=pushes-.*"},
                "wire": {"metrics": "org.apache.kafka.", "interval.ms": "60000", "match": "client_id=wire"},
            }.items():
                admin.configs.alter(ResourceType.CLIENT_METRICS, name, set=values)
        yield running


class Wire:
    """A client that does what it should not."""

    def __init__(self, node: NodeWithMetrics) -> None:
        self.client = WireClient(node.bootstrap_servers)
        answer = self.get(bytes(16))
        assert answer.error_code == 0
        self.id, self.subscription_id = answer.client_instance_id, answer.subscription_id
        self.requested = answer.requested_metrics

    def get(self, id: bytes) -> GetTelemetrySubscriptionsResponse:
        request = GetTelemetrySubscriptionsRequest(client_instance_id=id)
        return self.client.get(request, 0, GetTelemetrySubscriptionsResponse)

    def push(self, data: bytes, codec: int = Codec.NONE, **fields: object) -> ErrorCode:
        request = PushTelemetryRequest(
            client_instance_id=self.id,
            subscription_id=self.subscription_id,
            compression_type=int(codec),
            metrics=data,
            terminating=fields.get("terminating", False),
        )
        return ErrorCode.of(self.client.get(request, 0, PushTelemetryResponse).error_code)


@pytest.fixture
def wire(node: NodeWithMetrics) -> Iterator[Wire]:
    found = Wire(node)
    yield found
    found.client.close()


def payload(value: float = 3.0, count: int = 1) -> bytes:
    points = [
        MetricPoint(SENT, PointKind.DELTA_SUM, value, (("number", str(number)),)) for number in range(count)
    ]
    return write_metrics({"transactional_id": "t"}, points)


def test_both_apis_are_announced(node: NodeWithMetrics) -> None:
    with WireClient(node.bootstrap_servers) as client:
        answer = client.get(ApiVersionsRequest(), 0, ApiVersionsResponse)
    assert {71: (0, 0), 72: (0, 0)}.items() <= {
        each.api_key: (each.min_version, each.max_version) for each in answer.api_keys
    }.items()


def test_librdkafka_pushes(node: NodeWithMetrics) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "client.id": "pushes-rdkafka"})
    producer.produce("rdkafka", b"x")
    assert producer.flush(60) == 0
    latency = "org_apache_kafka_producer_node_request_latency_max"
    seen = 'client_id="pushes-rdkafka"'
    wait_until(lambda: node.sample(latency, seen, 'node_id="1"') is not None, "no push of librdkafka")
    del producer


@pytest.mark.parametrize("codec", list(Codec))
def test_a_push_is_shown_whatever_its_codec(node: NodeWithMetrics, wire: Wire, codec: Codec) -> None:
    assert wire.requested == ["org.apache.kafka."]
    assert wire.push(bytes(compress(codec, payload(codec + 1.5))), codec) is ErrorCode.NONE
    id = f'client_instance_id="{uuid_text(wire.id)}"'
    assert node.sample(SHOWN, id) == codec + 1.5
    assert node.sample("ottla_client_info", id, 'transactional_id="t"', 'client_id="wire"') == 1


def test_pushes_that_come_too_early_are_throttled(node: NodeWithMetrics, wire: Wire) -> None:
    assert wire.push(payload()) is ErrorCode.NONE
    assert wire.push(payload()) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert wire.get(wire.id).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert wire.push(payload(), terminating=True) is ErrorCode.NONE
    assert wire.push(payload()) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("data", "codec", "error"),
    [
        (b"\xff" * 50, Codec.NONE, ErrorCode.INVALID_RECORD),
        (b"\xff" * 50, Codec.ZSTD, ErrorCode.INVALID_RECORD),
        (b"x" * 20_001, Codec.NONE, ErrorCode.TELEMETRY_TOO_LARGE),
        (bytes(compress(Codec.ZSTD, bytes(20_001))), Codec.ZSTD, ErrorCode.TELEMETRY_TOO_LARGE),
        (bytes(compress(Codec.GZIP, bytes(16_000_000))), Codec.GZIP, ErrorCode.INVALID_RECORD),
        (payload(), 7, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_what_cannot_be_read_is_refused(
    node: NodeWithMetrics, wire: Wire, data: bytes, codec: int, error: ErrorCode
) -> None:
    assert wire.push(data, codec) is error


def test_a_lost_connection_ends_the_instance(node: NodeWithMetrics, wire: Wire) -> None:
    assert wire.push(payload(), terminating=True) is ErrorCode.NONE
    before = node.sample("kafka_server_client_metrics_instance_count")
    assert before is not None
    wire.client.close()
    wait_until(
        lambda: (node.sample("kafka_server_client_metrics_instance_count") or 0) < before, "it was not seen"
    )
    # The id may be used again; what it pushed is still shown.
    assert wire.get(wire.id).error_code == 0
    assert node.sample(SHOWN, uuid_text(wire.id)) == 3.0


def test_our_producer_and_consumer_push(node: NodeWithMetrics, collector: Collector) -> None:
    topic = "telemetry"
    with (
        blocking.Producer(node.bootstrap_servers, client_id="pushes-p") as producer,
        blocking.Consumer(
            node.bootstrap_servers, client_id="pushes-c", group_id="g", auto_offset_reset="earliest"
        ) as consumer,
        blocking.Admin(node.bootstrap_servers, client_id="pushes-a"),
    ):
        for number in range(20):
            producer.send(topic, str(number).encode())
        consumer.subscribe(topic)
        read = 0
        while read < 20:
            read += len(consumer.poll())
        consumer.commit()
        kafka = "org_apache_kafka"
        wait_until(lambda: node.sample(SHOWN, 'client_id="pushes-p"') == 20, "it was not seen")
        consumed = f"{kafka}_consumer_fetch_manager_records_consumed_total"
        wait_until(lambda: node.sample(consumed, 'client_id="pushes-c"') == 20, "it was not seen")
        assert node.sample(f"{kafka}_producer_record_queue_time_max", 'client_id="pushes-p"') is not None
        latency = f"{kafka}_producer_node_request_latency_avg"
        # Zero in a push after an interval without requests.
        assert node.sample(latency, 'client_id="pushes-p"', 'node_id="node-1"') is not None
        # The push that had all records may be from before the commit.
        longest = f"{kafka}_consumer_coordinator_commit_latency_max"
        wait_until(lambda: node.sample(longest, 'client_id="pushes-c"') is not None, "it was not seen")
        assert node.sample(f"{kafka}_consumer_coordinator_assigned_partitions") == 1
        assert node.sample(f"{kafka}_consumer_coordinator_rebalance_total") == 1
        lag = f"{kafka}_consumer_fetch_manager_records_lag"
        wait_until(lambda: node.sample(lag, f'topic="{topic}"', 'partition="0"') == 0, "there is a lag")
        made = f"{kafka}_admin_client_connection_creation_total"
        wait_until(lambda: node.sample(made, 'client_id="pushes-a"') == 1, "it was not seen")
        assert node.sample("ottla_client_info", 'client_id="pushes-c"', 'group_id="g"') == 1
        producer.send(topic, b"one more")
    # The last push, when a client closes, has what was not pushed yet.
    assert node.sample(SHOWN, 'client_id="pushes-p"') == 21
    # The collector gets the same, with what the broker knows.
    wait_until(lambda: sum(p.value for p in of_client(collector, SENT, "pushes-p")) == 21, "it was not seen")
    path, headers, _ = collector.requests[0]
    assert (path, headers["x-tenant"], headers["content-type"]) == (
        "/v1/metrics",
        "tests",
        "application/x-protobuf",
    )


def of_client(collector: Collector, name: str, client_id: str) -> list[MetricPoint]:
    return [
        point
        for point in collector.points()
        if point.name == name and ("client_id", client_id) in point.resource
    ]


def test_a_client_may_be_told_not_to_push(node: NodeWithMetrics) -> None:
    settings = {"client.id": "pushes-not", "enable.metrics.push": "false"}
    with blocking.Producer({"bootstrap.servers": node.bootstrap_servers, **settings}) as producer:
        producer.send("telemetry", b"x")
        assert producer._producer._telemetry._task is None
        names = {name.name: value for name, value in producer.metrics().items()}
    assert names["record-send-total"] == 1
    assert names["batch-size-avg"] > 60


def test_a_collector_that_is_away_is_tried_again(
    node: NodeWithMetrics, collector: Collector, wire: Wire
) -> None:
    collector.status = 503
    assert wire.push(payload(77.0)) is ErrorCode.NONE
    waiting = collector.points()
    assert not any(point.value == 77.0 for point in waiting)
    collector.status = 200
    wait_until(lambda: any(point.value == 77.0 for point in collector.points()), "it was not seen")
    collector.status = 400
    assert wire.push(payload(78.0), terminating=True) is ErrorCode.NONE
    wait_until(lambda: node.sample("ottla_otlp_dropped_pushes_total") == 1, "it was not seen")
    collector.status = 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"telemetry.otlp.endpoint": "collector:4318"}, "'collector:4318' is not the http or https address"),
        ({"telemetry.otlp.endpoint": "http://c/?x=1"}, "is not the http or https address"),
        (
            {"telemetry.otlp.endpoint": "https://c", "telemetry.otlp.headers": "token"},
            "header 'token' is not of the form name=value",
        ),
    ],
)
def test_a_collector_that_cannot_be_reached_by_its_settings_is_a_mistake(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        NodeConfig(settings)


def test_the_address_of_a_collector_is_its_base() -> None:
    assert signal_url("https://c:4318/otlp/", METRICS) == "https://c:4318/otlp/v1/metrics"
    assert parse_headers("authorization=Bearer a=b, x=1,") == {"authorization": "Bearer a=b", "x": "1"}
