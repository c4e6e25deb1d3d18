"""What clients count, and how they push it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from ottla.client import telemetry_reporter
from ottla.client.metrics import ClientMetrics, MetricName
from ottla.client.network_client import NetworkClient
from ottla.client.settings import ConnectionConfig
from ottla.client.telemetry_reporter import ClientTelemetryReporter
from ottla.protocol.errors import ErrorCode, UnsupportedVersion
from ottla.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from ottla.protocol.otlp import MetricPoint, PointKind, read_metrics
from ottla.protocol.schema import Request, Response
from ottla.records.compression import decompress
from ottla.records.types import Codec
from ottla.rpc.connection_statistics import AverageAndMax
from ottla.runtime.runtime import Runtime


def test_averages_and_maxima_are_of_the_last_minute() -> None:
    values = AverageAndMax()
    assert all(math.isnan(value) for value in values.read(0.0))
    for now, value in ((100.0, 4.0), (110.0, 8.0), (131.0, 3.0)):
        values.record(value, now)
    assert values.read(131.0) == (5.0, 8.0)
    # The first window is over, the second is not.
    assert values.read(161.0) == (3.0, 3.0)
    assert all(math.isnan(value) for value in values.read(300.0))


def test_names_are_those_of_kip_714() -> None:
    assert MetricName("request-latency-avg", "producer-node-metrics").telemetry_name == (
        "org.apache.kafka.producer.node.request.latency.avg"
    )
    assert MetricName("records-lag", "consumer-fetch-manager-metrics").telemetry_name == (
        "org.apache.kafka.consumer.fetch.manager.records.lag"
    )


class Broker:
    """A connection to a broker that answers as the test says."""

    is_open = True

    def __init__(self) -> None:
        self.answers: list[Response | Exception] = []
        self.asked: list[Any] = []
        self.drained = asyncio.Event()
        self.go_on = asyncio.Event()

    async def request(self, request: Request, kind: type[Response], *, timeout_ms: int) -> Response:
        self.asked.append(request)
        if not self.answers:
            self.drained.set()
            await self.go_on.wait()
        answer = self.answers.pop(0) if self.answers else kind()
        if isinstance(answer, Exception):
            raise answer
        return answer


def subscribed(*metrics: str, interval_ms: int = 1, **fields: object) -> GetTelemetrySubscriptionsResponse:
    values = {
        "client_instance_id": b"i" * 16,
        "subscription_id": 7,
        "accepted_compression_types": [99, int(Codec.GZIP), int(Codec.ZSTD)],
        "push_interval_ms": interval_ms,
        "telemetry_max_bytes": 100_000,
        "delta_temporality": True,
        "requested_metrics": list(metrics),
    }
    return GetTelemetrySubscriptionsResponse(**{**values, **fields})


class Client:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(telemetry_reporter, "FIRST_ASK_S", 0.0)
        monkeypatch.setattr(telemetry_reporter, "_DEFAULT_INTERVAL_MS", 1)
        monkeypatch.setattr(telemetry_reporter, "_LAST_PUSH_MS", 300)
        self.runtime = Runtime.real(pool_workers=1)
        self.broker = Broker()
        self.cluster = NetworkClient(self.runtime, ConnectionConfig("localhost"))

        async def any_connection() -> Broker:
            return self.broker

        monkeypatch.setattr(self.cluster, "any_connection", any_connection)
        self.metrics = ClientMetrics("producer", "c", self.cluster)
        self.total = self.metrics.total("record-send")
        self.reporter = ClientTelemetryReporter(self.cluster, self.metrics, lambda: {"client_rack": "r"})

    async def run(self, *answers: Response | Exception) -> list[Any]:
        """Start, let the broker answer, and return what it was asked until it had no more answers."""
        self.broker.answers = list(answers)
        self.reporter.start()
        task = self.reporter._task
        assert task is not None
        waiting = asyncio.ensure_future(self.broker.drained.wait())
        async with asyncio.timeout(30):
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return self.broker.asked


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def points_of(request: Request) -> dict[str, MetricPoint]:
    assert isinstance(request, PushTelemetryRequest)
    data = decompress(Codec(request.compression_type), request.metrics)
    return {point.name: point for point in read_metrics(memoryview(data))}


SENT = "org.apache.kafka.producer.record.send.total"
OK = PushTelemetryResponse()


def refused(code: ErrorCode) -> PushTelemetryResponse:
    return PushTelemetryResponse(error_code=code)


async def test_sums_are_pushed_as_what_was_added(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_reporter, "_LAST_PUSH_MS", 60_000)  # this broker answers
    client.total.value = 5
    asked = await client.run(subscribed("*"), OK)
    first, second = asked[1:3]
    assert isinstance(first, PushTelemetryRequest)
    assert (first.client_instance_id, first.subscription_id, first.terminating) == (b"i" * 16, 7, False)
    # The first codec that both sides know.
    assert first.compression_type == Codec.GZIP
    sent = points_of(first)[SENT]
    assert (sent.kind, sent.value, sent.resource) == (PointKind.DELTA_SUM, 5, (("client_rack", "r"),))
    # The second one is under way when the client closes, and counts.
    assert points_of(second)[SENT].value == 0
    client.total.value = 8
    client.broker.answers = [OK]
    client.broker.go_on.set()
    await client.reporter.close()
    last = client.broker.asked[-1]
    assert isinstance(last, PushTelemetryRequest)
    assert last.terminating
    assert points_of(last)[SENT].value == 3


async def test_only_metrics_with_a_wanted_prefix_are_pushed(client: Client) -> None:
    asked = await client.run(subscribed("org.apache.kafka.producer.record.", "x"), OK)
    assert set(points_of(asked[1])) == {SENT, SENT.replace(".total", ".rate")}
    await client.reporter.close()


async def test_a_push_fits_within_what_the_broker_accepts(client: Client) -> None:
    asked = await client.run(subscribed("*", telemetry_max_bytes=300), OK)
    data = decompress(Codec.GZIP, asked[1].metrics)
    assert 0 < len(memoryview(data)) <= 300
    await client.reporter.close()


async def test_a_client_of_which_nothing_is_wanted_asks_again_with_its_id(client: Client) -> None:
    asked = await client.run(subscribed(), subscribed())
    assert [request.client_instance_id for request in asked] == [bytes(16), b"i" * 16, b"i" * 16]
    await client.reporter.close()
    assert not any(isinstance(request, PushTelemetryRequest) for request in client.broker.asked)


@pytest.mark.parametrize(
    "answer",
    [
        refused(ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        refused(ErrorCode.TELEMETRY_TOO_LARGE),
        refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED),
        UnsupportedVersion("no"),
    ],
)
async def test_after_these_errors_a_client_asks_again(client: Client, answer: Response | Exception) -> None:
    client.total.value = 5
    asked = await client.run(subscribed("*"), answer, subscribed("*"))
    assert isinstance(asked[2], GetTelemetrySubscriptionsRequest)
    # Nothing is lost of what was refused.
    assert points_of(asked[3])[SENT].value == 5
    await client.reporter.close()


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD, ErrorCode.NONE])
async def test_after_other_errors_it_stops(client: Client, code: ErrorCode) -> None:
    answer = refused(code) if code else RuntimeError("a fault of this client")
    asked = await client.run(subscribed("*"), answer)
    assert len(asked) == 2
    assert client.reporter._task is not None
    assert client.reporter._task.done()
