"""The console in a real browser: every page of a live node, by mouse and keyboard, dark, light and narrow."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet

from ottla import blocking
from ottla.client.admin.acls import AclBinding, AclOperation, AclResourceType, PatternType
from ottla.client.admin.configs import ResourceType
from ottla.client.share import ShareRecord
from ottla.protocol.names import TopicPartition
from ottla.spark.pipelines.flow_graph import FlowKind, FlowNode, save_graph
from ottla.spark.pipelines.template import write_project
from ottla.testing.cluster_plan import free_ports
from tests.node.registry_calls import RegistryClient, record
from tests.support.browser import BROWSER_SKIP, SCREENSHOTS_VARIABLE, Visitor, chromium, missing_requirement
from tests.support.node_process import NodeProcess
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MISSING = missing_requirement()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=f"{BROWSER_SKIP}{MISSING}"),
]

# Every character that a topic's name may have, and texts that must stay text.
EVERY_CHARACTER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ.abcdefghijklmnopqrstuvwxyz_0123456789-"
SCRIPT = "<script>window.hacked = 1</script>"
IMAGE = "<img src=x onerror='window.hacked = 1'>"
HOSTILE_GROUP = f"../..//%2e%2e?x=1#{IMAGE}&amp;\u202e"
ORDERS = 2_000
SETTINGS = {
    "num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


@dataclass(frozen=True, slots=True)
class Live:
    """A node with some life in it, and its console; `project` is a pipeline that has run."""

    bootstrap: str
    url: str
    project: Path


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    project = tmp_path_factory.mktemp("shop")
    write_project(project)
    settings = {**SETTINGS, "http.listener": url, "http.console.pipelines": str(project)}
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with NodeProcess(tmp_path_factory.mktemp("console") / "data", *arguments) as node:
        fill(node.bootstrap)
        registry = RegistryClient(f"{url}/schema-registry")
        registry.register("orders-value", record("Order", id="int"))
        registry.register("orders-value", record("Order", id="long"))
        yield Live(node.bootstrap, url, project)


def fill(bootstrap: str) -> None:
    with blocking.Admin(bootstrap) as admin:
        admin.topics.create("orders", partitions=2, configs={"internal.segment.bytes": "100000"})
        for name in ("hostile", EVERY_CHARACTER, "x" * 249):
            admin.topics.create(name, partitions=1)
        admin.users.set_password("alice", "alice-secret")
        admin.users.set_password(IMAGE, "secret")
        admin.quotas.alter({"user": "alice"}, set={"producer_byte_rate": 1048576.0})
        admin.acls.create(
            [
                AclBinding(
                    resource_type=AclResourceType.TOPIC,
                    resource_name="orders",
                    pattern_type=PatternType.LITERAL,
                    principal="User:alice",
                    operation=AclOperation.READ,
                )
            ]
        )
    with blocking.Producer(bootstrap, linger_ms=0, batch_size=1000) as producer:
        for number in range(ORDERS):
            value = json.dumps({"id": number, "customer": {"name": f"c{number % 7}"}, "note": "x" * 60})
            key = f"k{number % 50}".encode()
            producer.send_nowait("orders", value.encode(), key=key, partition=number % 2)
        producer.flush()
        producer.send(
            "hostile",
            json.dumps({"html": IMAGE, "script": SCRIPT}).encode(),
            key=SCRIPT.encode(),
            headers=[(IMAGE, SCRIPT.encode())],
        )
        producer.send("hostile", b"\x00\xff\xfe binary \xc3\x28", key=None)
        producer.send("hostile", b"y" * 900_000, key="large \u202e \x07 é 日本".encode())
        producer.send("hostile", b'{"unterminated": [[[[', key=b"broken")
        producer.send("hostile", None, key=b"tombstone")
    reader = {"client_id": f"app {IMAGE}", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    for group in ("billing", HOSTILE_GROUP):
        with blocking.Consumer(bootstrap, group_id=group, **reader) as consumer:
            consumer.subscribe("orders")
            while not consumer.poll(100):
                pass
            consumer.commit({("orders", 0): 400, ("orders", 1): 300})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def desk(browser: Browser, live: Live) -> Iterator[Visitor]:
    """A wide window that tests share; each of them opens its own page in it."""
    visitor = Visitor(browser, live.url)
    yield visitor
    visitor.close()


@pytest.fixture
def page(desk: Visitor) -> Iterator[Page]:
    desk.faults.clear()
    yield desk.page
    assert desk.faults == []


def fill_in(page: Page, **fields: str) -> None:
    """Fill the named fields of the dialog that is open."""
    for name, text in fields.items():
        page.locator(f"dialog [name={name}]").fill(text)


PAGES = [
    ("overview", "Overview", "td:has-text('127.0.0.1')"),
    ("topics", "Topics", "a:text-is('orders')"),
    ("topic/orders", "orders", "td:has-text('epoch')"),
    ("topic/orders/messages", "orders", ".messages td.payload"),
    ("topic/orders/config", "orders", "td:has-text('retention.ms')"),
    ("topic/orders/readers", "orders", "a:text-is('billing')"),
    ("topic/orders/files", "orders", ".drawing .segment"),
    ("topic/__cluster_metadata/messages", "__cluster_metadata", ".messages td.payload"),
    ("groups", "Groups", "a:text-is('billing')"),
    ("group?id=billing", "billing", "a:text-is('orders-0')"),
    ("group?id=billing&tab=members", "billing", "text=No member is connected"),
    ("transactions", "Transactions", "text=All transactions"),
    ("brokers", "Brokers", "td:has-text('127.0.0.1')"),
    ("broker/1", "Broker 1", "td:has-text('log.dirs')"),
    ("broker/default", "Defaults of all brokers", "text=Configuration"),
    ("log-dirs", "Log directories", "a:text-is('orders-0')"),
    ("users", "Users", "td:has-text('alice')"),
    ("acls", "ACLs", "td:has-text('User:alice')"),
    ("quotas", "Quotas", "td:has-text('producer_byte_rate')"),
    ("schemas", "Schemas", "a:text-is('orders-value')"),
    ("schema?name=orders-value&against=1", "orders-value", ".difference .added:has-text('long')"),
    ("pipelines", "Pipelines", ".badge:has-text('unknown')"),
    ("tasks", "Background tasks of this node", "td:has-text('running')"),
]


LOOKS = [("light", 1280), ("dark", 420)]
if SCREENSHOTS_VARIABLE in os.environ:
    LOOKS += [("dark", 1280), ("light", 420)]


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_every_page_opens_without_a_fault(browser: Browser, live: Live, theme: str, width: int) -> None:
    visitor = Visitor(browser, live.url, theme=theme, width=width)
    for place, heading, content in PAGES:
        page = visitor.open(place, heading)
        page.locator(content).first.wait_for()
        assert page.locator(".notice.bad").all_inner_texts() == [], place
        assert visitor.overflow() <= 0, place
        assert visitor.nameless_controls() == [], place
        visitor.screenshot(re.sub(r"\W+", "-", place))
    assert visitor.faults == []
    visitor.close()


def test_charts_move(page: Page, desk: Visitor) -> None:
    desk.open("overview", "Overview")
    chart = page.locator("svg.chart").first
    desk.until("document.querySelector('svg.chart[data-samples]')?.dataset.samples >= 1")
    before = int(chart.get_attribute("data-samples") or 0)
    desk.until(f"document.querySelector('svg.chart').dataset.samples > {before}")
    line = chart.locator("path.line").get_attribute("d")
    desk.until(f"document.querySelector('svg.chart path.line').getAttribute('d') !== {json.dumps(line)}")


def test_a_topic_is_created_found_and_deleted(page: Page, desk: Visitor) -> None:
    desk.open("topics", "Topics")
    page.get_by_role("button", name="Create topic").click()
    fill_in(page, name="made.here", partitions="3", configs="retention.ms=60000")
    page.get_by_role("button", name="Create", exact=True).click()
    page.locator("h1", has_text="made.here").wait_for()
    page.locator("td.number a", has_text="2").wait_for()
    desk.open("topics", "Topics")
    page.get_by_role("searchbox").fill("MADE")
    desk.until("document.querySelectorAll('tbody tr').length === 1")
    page.get_by_role("link", name="made.here").click()
    page.get_by_role("button", name="Delete topic").click()
    dialog = page.locator("dialog")
    dialog.get_by_role("textbox").fill("something else")
    dialog.get_by_role("button", name="Delete topic").click()
    dialog.locator(".notice.bad").wait_for()
    dialog.get_by_role("textbox").fill("made.here")
    dialog.get_by_role("button", name="Delete topic").click()
    page.locator("h1", has_text="Topics").wait_for()
    page.get_by_role("searchbox").fill("made.here")
    page.get_by_text("No topic matches.").wait_for()


def test_a_refused_change_says_why(page: Page, desk: Visitor) -> None:
    desk.open("topics", "Topics")
    page.get_by_role("button", name="Create topic").click()
    fill_in(page, name="orders")
    page.get_by_role("button", name="Create", exact=True).click()
    page.locator("dialog .notice.bad", has_text="already exists").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    # The browser reports the refused request itself.
    desk.faults[:] = [fault for fault in desk.faults if "Failed to load resource" not in fault]


def test_settings_change_with_their_source(page: Page, desk: Visitor) -> None:
    desk.open("topic/orders/config", "orders")
    row = page.locator('tr[data-key="retention.bytes"]')
    row.get_by_role("button", name="Change").click()
    fill_in(page, value="123456789")
    page.get_by_role("button", name="Apply").click()
    row.locator("td", has_text="118 MiB").wait_for()
    row.locator(".badge.accent", has_text="topic").wait_for()
    row.get_by_role("button", name="Change").click()
    page.get_by_label("remove it").check()
    page.get_by_role("button", name="Apply").click()
    row.locator(".badge", has_text="default").wait_for()


def test_messages_by_offset_and_time(page: Page, desk: Visitor) -> None:
    desk.open("topic/orders/messages", "orders")
    page.locator(".messages tbody tr").first.wait_for()
    page.locator("[name=from]").select_option("offset")
    page.locator("[name=offset]").fill("17")
    page.locator("[name=partitions]").fill("1")
    page.get_by_role("button", name="Read").click()
    first = page.locator(".messages tbody tr").first
    page.locator('tr[data-key="1-17"]').wait_for()
    assert first.get_attribute("data-key") == "1-17"
    assert "offset=17" in page.url
    page.get_by_role("button", name="Go on").click()
    page.locator('tr[data-key="1-67"]').wait_for()
    page.locator("[name=from]").select_option("time")
    page.locator("[name=time]").fill("2020-01-01T00:00:00.000")
    page.get_by_role("button", name="Read").click()
    page.locator('tr[data-key="1-0"]').wait_for()
    page.locator('tr[data-key="1-0"] button').click()
    detail = page.locator("tr.detail")
    detail.locator("pre .json-name", has_text='"customer"').wait_for()
    with page.expect_download() as download:
        detail.get_by_role("link", name="Download value").click()
    assert json.loads(Path(download.value.path()).read_text())["id"] == 1


def test_a_search_shows_what_it_looked_at(page: Page, desk: Visitor) -> None:
    desk.open("topic/orders/messages?from=beginning&path=%24.customer.name&pathValue=c3", "orders")
    desk.until("document.querySelector('[data-looked]')?.dataset.looked > 0")
    rows = page.locator(".messages td.payload")
    rows.first.wait_for()
    assert all('"name": "c3"' in text for text in rows.all_inner_texts())
    page.locator("[name=value]").fill("no message has this text")
    page.get_by_role("button", name="Read").click()
    page.get_by_text("No message matches among those that were looked at.").wait_for()
    page.locator("[data-looked='2000']").wait_for()


def test_a_live_tail_shows_what_arrives(page: Page, desk: Visitor, live: Live) -> None:
    desk.open("topic/orders/messages?from=live", "orders")
    page.locator(".badge.good", has_text="live").wait_for()
    with blocking.Producer(live.bootstrap) as producer:
        deadline = time.monotonic() + 60
        number = 0
        while page.locator(".messages tbody tr").count() == 0:
            assert time.monotonic() < deadline
            producer.send("orders", f"tail {number}".encode())
            number += 1
    assert page.locator(".messages td.payload").first.inner_text().startswith("tail ")
    page.get_by_role("button", name="Stop").click()
    page.locator(".badge", has_text="stopped").wait_for()


def test_a_message_is_produced_and_copied(page: Page, desk: Visitor) -> None:
    desk.open("topic/hostile/messages", "hostile")
    page.get_by_role("button", name="Produce", exact=True).click()
    fill_in(page, key="from the form", value='{"made": "here"}')
    for number, name in enumerate("ab"):
        page.locator("dialog").get_by_role("button", name="Add a header").click()
        page.locator("dialog [name=headerName]").nth(number).fill(name)
        page.locator("dialog [name=header]").nth(number).fill(f"{number + 1}")
    page.locator("dialog").get_by_role("button", name="Produce", exact=True).click()
    page.locator("#remarks", has_text="at offset").wait_for()
    page.get_by_role("button", name="Read").click()
    row = page.locator(".messages tbody tr", has_text="from the form").first
    row.locator("button").click()
    page.locator("tr.detail td", has_text="b").first.wait_for()
    page.get_by_role("button", name="Produce a copy").click()
    assert page.locator("dialog [name=value]").input_value() == '{"made": "here"}'
    fill_in(page, key="the copy")
    page.locator("dialog").get_by_role("button", name="Produce", exact=True).click()
    page.locator("dialog").wait_for(state="detached")
    page.get_by_role("button", name="Read").click()
    page.locator(".messages tbody tr", has_text="the copy").first.wait_for()


def test_a_copy_has_the_same_bytes(page: Page, desk: Visitor, live: Live) -> None:
    headers: list[tuple[str, bytes | None]] = [
        ("json", b'{"a":1,"b":2}'),
        ("bytes", b"\x00\xff\x01"),
        ("null", None),
        ("empty", b""),
        ("lines", b"one\r\ntwo\nthree"),
        ("name\nof = two", b"=\n"),
        ("long", b"y" * 5_000),
        *((f"number {number}", b"%d" % number) for number in range(150)),
    ]
    with blocking.Admin(live.bootstrap) as admin:
        admin.topics.create("copied", partitions=1)
    with blocking.Producer(live.bootstrap) as producer:
        producer.send("copied", b"a\r\nb\rc\n", key=b"\xff\x00key", headers=headers)
    desk.open("topic/copied/messages", "copied")
    page.locator(".messages tbody tr button").first.click()
    page.get_by_role("button", name="Produce a copy").click()
    page.get_by_text("57 more headers are copied as they are.").wait_for()
    assert page.locator("dialog [name=headerName]").count() == 100
    page.locator("dialog").get_by_role("button", name="Produce", exact=True).click()
    page.locator("dialog").wait_for(state="detached")
    with blocking.Consumer(live.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("copied", 0)])
        found = []
        while len(found) < 2:
            found += consumer.poll(1_000)
    first, copy = ((each.key, each.value, list(each.headers)) for each in found)
    assert copy == first == (b"\xff\x00key", b"a\r\nb\rc\n", headers)


def test_an_error_of_the_http_server_is_shown(page: Page, desk: Visitor) -> None:
    desk.open("topic/hostile/messages", "hostile")
    page.get_by_role("button", name="Produce", exact=True).click()
    fill_in(page, value="x" * 9_000_000)
    page.locator("dialog").get_by_role("button", name="Produce", exact=True).click()
    page.locator("dialog .notice.bad", has_text="larger than 8388608 bytes").wait_for()
    # The browser notes the refusal, which is what this test is about.
    assert all("413" in fault for fault in desk.faults)
    desk.faults.clear()


def test_offsets_are_reset_after_a_dry_run(page: Page, desk: Visitor) -> None:
    desk.open("group?id=billing", "billing")
    page.locator("td", has_text="400").first.wait_for()
    desk.until("document.querySelector('svg.chart')?.dataset.samples >= 1")
    page.get_by_role("button", name="Reset offsets").click()
    page.locator("dialog [name=to]").select_option("offset")
    fill_in(page, offset="123")
    page.get_by_role("button", name="Show what would change").click()
    dialog = page.locator("dialog")
    dialog.get_by_text("Nothing has changed yet.").wait_for()
    assert dialog.locator("tbody tr").first.locator("td").all_inner_texts()[:3] == ["orders-0", "400", "123"]
    dialog.get_by_role("button", name="Reset offsets").click()
    dialog.wait_for(state="detached")
    page.locator("td", has_text=re.compile("^123$")).first.wait_for()


def test_a_share_group_shows_its_start_and_is_reset(page: Page, desk: Visitor, live: Live) -> None:
    with blocking.Admin(live.bootstrap) as admin, blocking.Producer(live.bootstrap) as producer:
        admin.topics.create("jobs", partitions=1)
        for _ in range(1000):
            producer.send_nowait("jobs", b"a job")
        producer.flush()
        admin.groups.alter_share_offsets("sharers", {TopicPartition("jobs", 0): 100})
    desk.open("group?id=sharers", "sharers")
    table = page.locator("table[aria-label=Offsets]")
    table.locator("th", has_text="Done").wait_for()
    wait_until(
        lambda: (
            [row.split("\t")[:5] for row in table.locator("tbody tr").all_inner_texts()]
            == [["jobs-0", "100", "0", "1,000", "900"]]
        ),
        "the table does not show where the group is",
    )
    page.get_by_role("button", name="Reset offsets").click()
    page.get_by_role("button", name="Show what would change").click()
    dialog = page.locator("dialog")
    dialog.get_by_text("Nothing has changed yet.").wait_for()
    dialog.get_by_role("button", name="Reset offsets").click()
    dialog.wait_for(state="detached")
    table.locator("td", has_text=re.compile("^1,000$")).nth(1).wait_for()


def test_a_queue_shows_what_is_stuck_and_is_mended(page: Page, desk: Visitor, live: Live) -> None:
    with blocking.Admin(live.bootstrap) as admin, blocking.Producer(live.bootstrap) as producer:
        admin.topics.create("tasks", partitions=1)
        settings = {"share.auto.offset.reset": "earliest", "share.retry.backoff.ms": "600000"}
        admin.configs.alter(ResourceType.GROUP, "doers", set=settings)
        for number in range(6):
            producer.send_nowait("tasks", b"task %d" % number)
        producer.flush()
    with blocking.ShareConsumer[bytes, bytes](
        live.bootstrap, group_id="doers", share_acknowledgement_mode="explicit"
    ) as consumer:
        consumer.subscribe("tasks")
        held: list[ShareRecord[bytes, bytes]] = []
        while len(held) < 6:
            held += consumer.poll()
        consumer.release(*held[:2])
        consumer.commit()
        desk.open("group?id=doers", "doers")
        table = page.get_by_label("Records in delivery").locator("table")
        waiting = table.locator("tr", has=page.locator(".badge", has_text="waiting"))
        desk.screenshot("queue")
        waiting.get_by_role("button", name="Release").click()
        page.locator("dialog").get_by_role("button", name="Release").click()
        waiting.wait_for(state="detached")
        table.locator(".badge", has_text="available").wait_for()
        row = table.locator("tr", has=page.locator(".badge", has_text="held"))
        assert row.inner_text().split("\t")[1:3] == ["2 – 5", "4"]
        row.get_by_role("button", name="Skip").click()
        page.locator("dialog").get_by_role("button", name="Skip").click()
        row.wait_for(state="detached")


def test_an_open_transaction_is_seen_and_aborted(page: Page, desk: Visitor, live: Live) -> None:
    transactional = {"transactional_id": f"pay {IMAGE}", "transaction_timeout_ms": 600_000}
    with blocking.Producer(live.bootstrap, **transactional) as producer:
        producer.begin_transaction()
        producer.send("hostile", b"not committed yet")
        desk.open("transactions", "Transactions")
        held = page.get_by_label("Open transactions").locator("tr", has_text="hostile-0")
        held.locator(".badge", has_text="holds back").wait_for()
        held.get_by_role("button", name="Abort").click()
        page.get_by_role("button", name="Abort transaction").click()
        page.get_by_text("No open transaction holds back a reader.").wait_for()


def test_a_pipeline_shows_its_flows_and_errors(page: Page, desk: Visitor, live: Live) -> None:
    now = time.time_ns() // 1_000_000
    flow = {"batches": 12, "rows": 1200, "rowsPerSecond": 99.5, "lag": 20, "restarts": 0, "error": None}
    checked = {"name": "positive", "action": "drop", "rows": 1200, "failed": 3}
    broken = {**flow, "name": "broken", "state": "failed", "error": f"Boom {SCRIPT}", "expectations": []}
    good = {**flow, "name": "large_orders", "state": "running", "expectations": [checked]}
    record = {"version": 1, "name": "shop", "mode": "continuous", "state": "running", "error": None}
    record |= {"startedMs": now - 60_000, "updatedMs": now, "flows": [good, broken]}
    state = live.project / ".ottla"
    state.mkdir(exist_ok=True)
    (state / "progress.json").write_text(json.dumps(record))
    ended = record | {"state": "completed", "flows": [good | {"rowsOut": 77}]}
    (state / "runs.jsonl").write_text(json.dumps(ended) + "\n")
    stream = FlowNode("large_orders", "large_orders", ("orders",), FlowKind.STREAM, into_topic=True)
    stream = replace(stream, dead_letters=("shop.dead",))
    save_graph([FlowNode("orders", "orders", (), FlowKind.STREAM, reads_outside=True), stream], state)
    table = live.project / "spark-warehouse" / "orders"
    table.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"customer": [SCRIPT, None]}), table / "part-0.parquet")
    desk.open("pipelines", "Pipelines")
    row = page.locator("tbody tr")
    row.locator(".badge", has_text="1 failed").wait_for()
    row.get_by_role("link").click()
    page.locator("tr", has_text="large_orders").locator(
        ".badge", has_text="positive: 3 failed, drop"
    ).wait_for()
    page.locator("summary", has_text=f"broken: Boom {SCRIPT}").click()
    page.locator("pre", has_text=SCRIPT).first.wait_for()
    page.locator("svg.flows .good", has_text="large_orders").wait_for()
    page.locator("tr", has_text="completed").locator("td", has_text="77").wait_for()
    page.get_by_role("img", name="large_orders: positive: 3").wait_for()
    page.get_by_role("link", name="shop.dead").wait_for()
    desk.screenshot("pipeline")
    page.get_by_role("button", name="orders", exact=True).click()
    page.locator("dialog td", has_text=SCRIPT).wait_for()
    desk.screenshot("pipeline-table")
    page.get_by_role("button", name="Close").click()


def test_a_schema_is_checked_before_it_is_registered(page: Page, desk: Visitor) -> None:
    desk.open("schemas", "Schemas")
    page.get_by_role("button", name="Register schema").click()
    fill_in(page, subject="fresh-value", schema=json.dumps(record("Fresh", a="int")))
    submit = page.locator("dialog button[type=submit]")
    submit.click()
    page.wait_for_selector("text=The subject takes this schema")
    submit.click()
    page.locator("a:text-is('fresh-value')").click()
    page.wait_for_selector("pre:has-text('Fresh')")
    page.get_by_role("button", name="New version").click()
    fill_in(page, schema=json.dumps(record("Fresh", b="int")))
    submit.click()
    page.wait_for_selector("dialog .notice.bad:has-text('READER_FIELD_MISSING_DEFAULT_VALUE')")
    fill_in(page, schema=json.dumps(record("Fresh", a="long")))
    submit.click()
    page.wait_for_selector("text=The subject takes this schema")
    submit.click()
    page.wait_for_selector("h2:text-is('Version 2')")


def test_users_acls_and_quotas_change(page: Page, desk: Visitor) -> None:
    desk.open("users", "Users")
    page.get_by_role("button", name="Add user").click()
    fill_in(page, name="bob", password="bob-secret")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Delete SCRAM-SHA-512 of bob").click()
    page.locator("dialog").get_by_role("button", name="Delete", exact=True).click()
    page.locator("tr", has_text="bob").wait_for(state="detached")

    desk.open("acls", "ACLs")
    page.get_by_role("button", name="Add ACL").click()
    fill_in(page, principal="User:bob", resourceName=EVERY_CHARACTER)
    page.locator("dialog [name=patternType]").select_option("PREFIXED")
    page.get_by_role("button", name="Add", exact=True).click()
    page.locator("tr", has_text="User:bob").get_by_role("button", name="Delete").click()
    page.locator("dialog").get_by_role("button", name="Delete", exact=True).click()
    page.locator("tr", has_text="User:bob").wait_for(state="detached")

    desk.open("quotas", "Quotas")
    page.get_by_role("button", name="Set quota").click()
    fill_in(page, user="*", value="2048")
    page.get_by_role("button", name="Set", exact=True).click()
    row = page.locator("tr", has_text="default")
    row.locator("td", has_text="2.0 KiB/s").wait_for()
    row.get_by_role("button", name="Remove").click()
    page.locator("dialog").get_by_role("button", name="Remove", exact=True).click()
    row.wait_for(state="detached")


def test_files_are_drawn_and_grow(page: Page, desk: Visitor, live: Live) -> None:
    desk.open("topic/orders/files", "orders")
    page.locator(".drawing .batch").first.wait_for()
    assert page.locator(".drawing .segment").count() >= 2
    end = page.locator(".drawing text", has_text=re.compile(r"^end \d+"))
    before = end.text_content()
    with blocking.Producer(live.bootstrap) as producer:
        producer.send("orders", b"one more", partition=0)
    page.locator(".drawing text", has_text=re.compile(rf"^end {int(before.split()[1]) + 1}$")).wait_for()
    page.locator(".drawing .segment").first.focus()
    page.keyboard.press("Enter")
    page.locator('.drawing .segment[data-key="0"][aria-pressed=true]').wait_for()
    page.locator(".drawing .pointer").first.wait_for()
    page.locator(".drawing .pointer.time").first.wait_for()
    # The end of a segment is found by its index; from there one can go to its beginning.
    page.get_by_text(re.compile(r"from position [1-9][\d,]+ to")).wait_for()
    page.get_by_role("button", name="Beginning").click()
    page.get_by_text(re.compile("from position 0 to")).wait_for()
    page.get_by_role("button", name="Next batches").click()
    page.get_by_text(re.compile(r"from position [1-9][\d,]+ to")).wait_for()
    page.get_by_role("button", name="leader-epoch-checkpoint").click()
    page.locator("th", has_text="leaderEpoch").wait_for()


def test_text_of_others_stays_text(page: Page, desk: Visitor) -> None:
    desk.open("topic/hostile/messages?from=beginning", "hostile")
    row = page.locator(".messages tbody tr", has_text=SCRIPT).first
    row.locator("button").click()
    detail = page.locator("tr.detail")
    detail.locator("pre", has_text=IMAGE).wait_for()
    detail.locator("td", has_text=IMAGE).first.wait_for()  # the name of a header
    for key in ("large", "broken", "tombstone"):
        page.locator(".messages tbody tr", has_text=key).first.locator("button").click()
    page.locator("[name=valueFormat]").select_option("hex")
    page.get_by_role("button", name="Read").click()
    page.locator("td.payload", has_text="00 ff fe").first.wait_for()
    desk.screenshot("hostile-messages")

    desk.open("groups", "Groups")
    page.get_by_role("link", name=HOSTILE_GROUP).click()
    page.locator("h1", has_text=HOSTILE_GROUP).wait_for()
    page.locator("a", has_text="orders-1").first.wait_for()
    desk.open("users", "Users")
    page.locator("td", has_text=IMAGE).wait_for()
    for name in (EVERY_CHARACTER, "x" * 249):
        desk.open(f"topic/{name}/messages", name)
        page.get_by_text("There are no messages here.").wait_for()
    assert page.evaluate("window.hacked") is None


def test_it_works_by_keyboard(page: Page, desk: Visitor) -> None:
    desk.open("overview", "Overview")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.locator("h1", has_text="Topics").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.keyboard.press("/")
    page.keyboard.type("orders")
    desk.until("document.querySelectorAll('tbody tr').length === 1")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "orders"
    page.keyboard.press("Enter")
    page.locator("h1", has_text="orders").wait_for()
    page.keyboard.press("]")
    page.locator(".tabs a[aria-current]", has_text="Messages").wait_for()
    page.locator(".messages tbody tr").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator("tr.detail").wait_for()
    page.keyboard.press("?")
    page.locator("dialog", has_text="go to the search field").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")


def test_the_theme_stays(page: Page, desk: Visitor) -> None:
    desk.open("overview", "Overview")
    seen = set()
    for _ in range(3):
        page.locator("#theme").click()
        chosen = page.evaluate("localStorage.getItem('ottla-theme')")
        page.reload()
        page.locator("h1", has_text="Overview").wait_for()
        seen.add((chosen, page.evaluate("document.documentElement.dataset.theme")))
    assert seen == {("light", "light"), ("dark", "dark"), ("system", "light")}
