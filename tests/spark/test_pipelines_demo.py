"""The demo's own checks: its generator and its counts must be right for the demo to prove anything."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ottla.schemas.avro_definition import parse_avro
from ottla.schemas.avro_values import AvroDecoder, AvroEncoder

EXAMPLES = Path(__file__).parents[2] / "examples"
BEGIN = 1_763_200_000_000


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in ("shop", "shop.events", "shop.report"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import shop.events
    import shop.report

    return shop


def as_json(order: Any) -> dict[str, Any]:
    """An order with its times in milliseconds. ValueError if it was broken."""
    if isinstance(order, bytes):
        raise ValueError(order)
    fields = asdict(order)
    return fields | {name: round(fields[name].timestamp() * 1000) for name in ("at", "sent")}


def a_day(shop: Any, events: int) -> Any:
    return shop.events.Shop(events, BEGIN, lambda order: json.dumps(as_json(order)).encode())


def test_an_order_that_goes_through_the_serializer_fits_the_schema(shop: Any) -> None:
    schema = parse_avro(shop.events.ORDER_SCHEMA.read_text())
    encode, decode = AvroEncoder(schema).encode, AvroDecoder(schema).decode
    orders = [event.value for event in a_day(shop, 3_000) if isinstance(event.value, shop.events.Order)]
    assert [decode(encode(order)) for order in orders] == [asdict(order) for order in orders]


def test_the_same_day_is_played_again(shop: Any) -> None:
    def played() -> list[tuple[Any, ...]]:
        events = list(a_day(shop, 3_000))
        return [(event.topic, event.key, event.timestamp_ms) for event in events]

    assert played() == played()


def test_every_event_is_good_or_bad_in_the_truth(shop: Any) -> None:
    day = a_day(shop, 20_000)
    events = [*day, *day.closing()]
    truth = day.truth
    bad = Counter[str]()
    for (topic, _), count in truth.bad.items():
        bad[topic] += count
    assert Counter(event.topic for event in events) == truth.sent
    assert all(truth.sent[topic] == len(truth.good[topic]) + bad[topic] for topic in shop.events.TOPICS)
    assert sum(truth.reasons.values()) == bad.total() > 100
    assert set(truth.reasons) == {"incomplete", "bad amount", "too late"}
    assert truth.late > 100


def test_revenue_is_what_orders_and_their_payments_say(shop: Any) -> None:
    day = a_day(shop, 20_000)
    records: dict[str, dict[int, dict[str, Any]]] = {"orders": {}, "payments": {}, "clicks": {}}
    for event in day:
        try:
            record = as_json(event.value) if event.topic == "orders" else json.loads(event.value)
        except ValueError:
            continue
        if record["id"] in day.truth.good[event.topic]:
            records[event.topic][record["id"]] = record
    expected: dict[tuple[int, str], list[int]] = {}
    for payment in records["payments"].values():
        order = records["orders"][payment["order"]]
        if 0 <= payment["at"] - order["at"] <= shop.events.HOUR:
            window = order["at"] - order["at"] % shop.events.WINDOW
            totals = expected.setdefault((window, order["category"].strip().lower()), [0, 0])
            totals[0] += 1
            totals[1] += order["cents"]
    assert expected
    assert expected == dict(day.truth.revenue)


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        ([1, 2, 3], (0, 0, 0)),
        ([1, 3], (1, 0, 0)),
        ([1, 2, 2, 3], (0, 1, 0)),
        ([1, 2, 3, 4], (0, 0, 1)),
        ([1, 1, 4], (2, 1, 1)),
        ([], (3, 0, 0)),
    ],
)
def test_what_is_lost_doubled_or_strange_is_counted(
    shop: Any, found: list[int], counts: tuple[int, int, int]
) -> None:
    outcome = shop.report.Outcome()
    outcome.compare("numbers", {1, 2, 3}, Counter(found))
    (made,) = outcome.comparisons
    assert (made.lost, made.doubled, made.strange) == counts
    assert outcome.is_right == (counts == (0, 0, 0))


def test_an_outcome_without_counts_or_with_a_failed_check_is_not_right(shop: Any) -> None:
    outcome = shop.report.Outcome()
    assert not outcome.is_right
    outcome.compare("numbers", {1}, Counter([1]))
    assert outcome.is_right
    outcome.check("status", 0, 1)
    assert not outcome.is_right


def test_the_page_is_one_file_that_says_how_it_went(shop: Any, tmp_path: Path) -> None:
    outcome = shop.report.Outcome()
    outcome.compare("<topic>", {1, 2}, Counter([1]))
    outcome.windows = [(BEGIN, "books", 500), (BEGIN + 600_000, "toys", 700)]
    samples = [(0.0, 0, 0), (1.0, 100, 40), (2.0, 200, 180)]
    measured = shop.report.Measured(2.0, 200, samples, [(0.5, 300), (1.5, 900)], [(1.0, "node killed")], 1)
    page = tmp_path / "report.html"
    shop.report.write_report(page, outcome, measured)
    text = page.read_text()
    assert "WRONG" in text
    assert "&lt;topic&gt;" in text
    assert text.count("<svg") == 3
    assert "node killed" in text
    assert "http" not in text


@pytest.mark.slow
def test_two_demos_at_once_have_pages_and_nodes_of_their_own(
    shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "demo", raising=False)
    demo = importlib.import_module("demo")
    with demo.own_page() as first, demo.own_page() as second:
        assert first == Path("demo-output/report.html")
        assert second != first
        assert second.parent == first.parent
    with demo.own_page() as later:
        assert later == first
    nodes = [demo.NodeProcess(tmp_path / str(number) / "node") for number in range(2)]
    try:
        for node in nodes:
            node.log.parent.mkdir()
            assert f"ready: {node.bootstrap_servers}" in node.start()
        assert nodes[0].bootstrap_servers != nodes[1].bootstrap_servers
        for node in nodes:
            node.kill()
        for node in reversed(nodes):
            assert f"ready: {node.bootstrap_servers}" in node.start()
    finally:
        for node in nodes:
            node.stop()
