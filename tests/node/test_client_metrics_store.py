"""What clients push, as `/metrics` shows it."""

from __future__ import annotations

import asyncio
import math

import pytest

from ottla.node.telemetry import client_metrics_store
from ottla.node.telemetry.client_metrics_store import ClientMetricsStore, pushed_metrics
from ottla.protocol.otlp import MetricPoint, PointKind
from ottla.runtime.clock import SystemClock
from ottla.runtime.metrics import MetricsRegistry
from ottla.runtime.turns import Turns

ID = b"i" * 16
CLIENT = {"client_id": "app", "client_instance_id": "I", "client_source_address": "::1"}
SENT = "org.apache.kafka.producer.record.send.total"
LAG = "org.apache.kafka.consumer.fetch.manager.records.lag"


class Shown:
    def __init__(self, max_series: int = 100) -> None:
        self.now = 0
        self.store = ClientMetricsStore(max_series, lambda: self.now)

    def push(self, *points: MetricPoint, id: bytes = ID, client: dict[str, str] = CLIENT) -> None:
        self.store.add(id, pushed_metrics(points, client), 60_000)

    def lines(self) -> list[str]:
        registry = MetricsRegistry()
        registry.add_collector("clients", self.store.collect)
        text = asyncio.run(registry.render(Turns(SystemClock()))).decode()
        others = ("client_info", "ottla_metrics_collector_errors")
        return [line for line in text.splitlines() if not any(name in line for name in others)]

    def values(self) -> dict[str, str]:
        samples = [line for line in self.lines() if not line.startswith("#")]
        return dict(line.rsplit(" ", 1) for line in samples)


def gauge(name: str, value: float, **attributes: str) -> MetricPoint:
    return MetricPoint(name, PointKind.GAUGE, value, tuple(attributes.items()))


def delta(name: str, value: float, **attributes: str) -> MetricPoint:
    return MetricPoint(name, PointKind.DELTA_SUM, value, tuple(attributes.items()))


OF_CLIENT = 'client_id="app",client_instance_id="I"'


def test_sums_are_added_up_and_gauges_replaced() -> None:
    shown = Shown()
    shown.push(delta(SENT, 3.0), gauge(LAG, 5, topic="t", partition="0"))
    shown.push(delta(SENT, 4.0), gauge(LAG, 2, topic="t", partition="0"))
    assert shown.values() == {
        f"org_apache_kafka_producer_record_send_total{{{OF_CLIENT}}}": "7.0",
        f'{LAG.replace(".", "_")}{{{OF_CLIENT},topic="t",partition="0"}}': "2",
    }
    assert "# TYPE org_apache_kafka_producer_record_send_total counter" in shown.lines()
    assert f"# TYPE {LAG.replace('.', '_')} gauge" in shown.lines()


def test_a_cumulative_sum_is_what_the_client_says() -> None:
    shown = Shown()
    for value in (3.0, 8.0):
        shown.push(MetricPoint(SENT, PointKind.CUMULATIVE_SUM, value))
    assert list(shown.values().values()) == ["8.0"]


def test_a_gauge_without_a_value_is_left_out() -> None:
    shown = Shown()
    shown.push(gauge(LAG, 5), gauge(SENT, math.nan))
    shown.push(gauge(LAG, math.nan))
    assert shown.values() == {}
    assert shown.store.series_count == 0


def test_a_client_does_not_pass_for_its_broker() -> None:
    shown = Shown()
    shown.push(
        gauge("kafka_controller_kafkacontroller_activecontrollercount", 9),
        gauge(LAG, 1, client_id="other", client_instance_id="other"),
    )
    assert list(shown.values()) == [
        f"client_application_kafka_controller_kafkacontroller_activecontrollercount{{{OF_CLIENT}}}",
        f"{LAG.replace('.', '_')}{{{OF_CLIENT}}}",
    ]


def test_hostile_names_and_values_stay_within_their_line() -> None:
    shown = Shown()
    shown.push(
        gauge('org.apache.kafka.x{a="b"} 1\ny', 1, **{'a"} 7\n': 'v"\n#', "0": "zero", "": "empty"}),
        client={"client_id": 'evil"\n', "client_instance_id": "I"},
    )
    (line,) = [line for line in shown.lines() if not line.startswith("#")]
    assert line == (
        'org_apache_kafka_x_a__b___1_y{client_id="evil\\"\\n",client_instance_id="I",a___7_="v\\"\\n#",'
        '_0="zero",_="empty"} 1'
    )


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics_store, "MAX_SERIES_OF_CLIENT", 4)
    shown = Shown(max_series=6)
    many = [gauge(LAG, 1, partition=str(number)) for number in range(10)]
    for client in (b"1", b"2", b"3"):
        shown.push(*many, id=client, client={"client_id": client.decode()})
    assert shown.store.series_count == len(shown.values()) == 6
    assert shown.store.dropped_points == 24
    # What is shown goes on.
    shown.push(gauge(LAG, 8, partition="0"), id=b"1", client={"client_id": "1"})
    assert shown.values()[f'{LAG.replace(".", "_")}{{client_id="1",partition="0"}}'] == "8"


def test_a_client_that_pushes_no_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics_store, "MAX_CLIENTS", 2)
    shown = Shown()
    for client in (b"1", b"2", b"3"):
        shown.push(gauge(LAG, 1), id=client, client={"client_id": client.decode()})
    assert shown.store.series_count == 2
    shown.now = 60_000
    assert shown.values() == {}
    assert shown.store.series_count == 0


def test_two_clients_disagree_about_a_name() -> None:
    shown = Shown()
    shown.push(gauge(SENT, 1), id=b"1")
    shown.push(delta(SENT, 1), id=b"2")
    assert len(shown.values()) == 1


def test_what_is_known_of_a_client_is_one_series() -> None:
    shown = Shown()
    shown.push(MetricPoint(LAG, PointKind.GAUGE, 1, (), (("group_id", "g"), ("no_such", "x"))))
    registry = MetricsRegistry()
    registry.add_collector("clients", shown.store.collect)
    text = asyncio.run(registry.render(Turns(SystemClock()))).decode()
    (line,) = [line for line in text.splitlines() if line.startswith("ottla_client_info")]
    assert 'client_source_address="::1"' in line
    assert 'group_id="g"' in line
    assert "no_such" not in line
