"""Clients read a topic across the border between remote storage and the disk, as if there were none."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.java_driver import JavaDriver
from tests.support.tiered import (
    START_MS,
    History,
    create_tiered_topic,
    delete_records,
    found_offset,
    offset_of,
    tiered_settings,
    wait_until_tiered,
)
from tests.support.waiting import wait_until

from ottla import blocking
from ottla.client.admin.configs import ResourceType
from ottla.client.admin.offsets import OffsetSpec
from ottla.client.consumer import Consumer as OttlaConsumer
from ottla.protocol.names import TopicPartition as OttlaTopicPartition
from ottla.testing.local_node import LocalNode

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
Record = tuple[bytes, bytes, int]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    with LocalNode(tiered_settings(tmp_path_factory.mktemp("store"))) as running:
        yield running


@pytest.fixture(scope="module")
def orders(node: LocalNode) -> History:
    """Plain records with every codec, and transactions: one is aborted in remote storage, and one begins
    there and is aborted on the disk.
    """
    bootstrap = node.bootstrap_servers
    create_tiered_topic(bootstrap, "orders")
    history = History(bootstrap, "orders")
    history.write_plain(2 * MIB)
    first = history.producer(transactional_id="first")
    first.init_transactions(60)
    first.begin_transaction()
    history.send(first, 20, into=history.aborted)
    first.abort_transaction(60)
    first.begin_transaction()
    history.send(first, 20)
    first.commit_transaction(60)
    across = history.producer(transactional_id="across", transaction_timeout_ms=600_000)
    across.init_transactions(60)
    across.begin_transaction()
    history.send(across, 5, into=history.aborted)
    history.write_plain(3 * MIB)
    across.abort_transaction(60)
    history.write_plain(200_000)
    history.local_start = wait_until_tiered(bootstrap, "orders")
    assert min(history.aborted) < max(history.aborted) < history.local_start
    return history


def read_with_librdkafka(bootstrap: str, topic: str, start: int, isolation: str) -> dict[int, Record]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    found: dict[int, Record] = {}
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, f"nothing more after {len(found)} records"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                break
            offset = message.offset()
            assert offset is not None
            found[offset] = message.key(), message.value(), message.timestamp()[1]
    finally:
        consumer.close()
    return found


def expected(history: History, isolation: str) -> dict[int, Record]:
    records = history.all if isolation == "read_uncommitted" else history.committed
    return dict(sorted(records.items()))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_librdkafka_reads_all_records_across_the_border(orders: History, isolation: str) -> None:
    found = read_with_librdkafka(orders.bootstrap, "orders", 0, isolation)
    assert found == expected(orders, isolation)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_our_client_reads_all_records_across_the_border(orders: History, isolation: str) -> None:
    wanted = expected(orders, isolation)
    found: dict[int, Record] = {}
    async with OttlaConsumer(
        bootstrap_servers=orders.bootstrap, isolation_level=isolation, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([OttlaTopicPartition("orders", 0)])
        async with asyncio.timeout(60):
            while len(found) < len(wanted):
                for record in await consumer.poll():
                    found[record.offset] = record.key, record.value, record.timestamp
    assert found == wanted


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_java_client_reads_all_records_across_the_border(
    orders: History, java_driver: JavaDriver, isolation: str
) -> None:
    seen = java_driver.consume(orders.bootstrap, "orders", isolation_level=isolation)
    found = {each.offset: (each.key, each.value, each.timestamp) for each in seen.records}
    assert found == expected(orders, isolation)
    assert seen.beginning_offset == 0


@pytest.mark.kafka
@pytest.mark.slow
def test_kafka_get_offsets_tells_where_the_parts_of_a_log_are(
    orders: History, java_driver: JavaDriver
) -> None:
    def ask(time: int) -> str:
        arguments = ("--bootstrap-server", orders.bootstrap, "--topic", "orders", "--time", str(time))
        return java_driver.tool("org.apache.kafka.tools.GetOffsetShell", *arguments).text.strip()

    local = offset_of(orders.bootstrap, "orders", OffsetSpec.EARLIEST_LOCAL)
    tiered = offset_of(orders.bootstrap, "orders", OffsetSpec.LATEST_TIERED)
    assert ask(-2) == "orders:0:0"
    assert ask(-4) == f"orders:0:{local}"
    assert ask(-5) == f"orders:0:{tiered}"
    assert ask(-6) == f"orders:0:{tiered + 1}"
    assert ask(START_MS) == "orders:0:0"


@pytest.mark.kafka
@pytest.mark.slow
def test_kafka_log_dirs_shows_what_is_on_the_disk(orders: History, java_driver: JavaDriver) -> None:
    arguments = ("--bootstrap-server", orders.bootstrap, "--describe", "--topic-list", "orders")
    shown = java_driver.tool("org.apache.kafka.tools.LogDirsCommand", *arguments).text
    described = json.loads(shown[shown.index("{") :].splitlines()[0])
    (partition,) = described["brokers"][0]["logDirs"][0]["partitions"]
    assert (partition["partition"], partition["offsetLag"]) == ("orders-0", 0)
    # As local.retention.bytes says, and not the five megabytes of the whole log.
    assert MIB <= partition["size"] < 2 * MIB + 100_000


def test_a_share_group_reads_what_is_in_remote_storage(orders: History) -> None:
    with blocking.Admin(orders.bootstrap) as admin:
        settings = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
        admin.configs.alter(ResourceType.GROUP, "workers", set=settings)
    found: dict[int, Record] = {}
    deadline = time.monotonic() + 60
    with blocking.ShareConsumer(orders.bootstrap, group_id="workers") as consumer:
        consumer.subscribe(["orders"])
        while len(found) < len(orders.committed):
            assert time.monotonic() < deadline, f"{len(found)} records of {len(orders.committed)}"
            for record in consumer.poll(timeout_ms=1000):
                found[record.offset] = record.key, record.value, record.timestamp
    assert dict(sorted(found.items())) == expected(orders, "read_committed")


def test_a_read_begins_at_any_offset_of_a_remote_segment(orders: History) -> None:
    records = orders.all
    for start in (1, 99, 100, 1001, orders.local_start - 1, orders.local_start, orders.local_start + 1):
        found = read_with_librdkafka(orders.bootstrap, "orders", start, "read_uncommitted")
        assert found == {offset: each for offset, each in records.items() if offset >= start}, start


def test_offsets_by_time_are_found_in_remote_storage_and_on_the_disk(node: LocalNode) -> None:
    bootstrap = node.bootstrap_servers
    create_tiered_topic(bootstrap, "times")
    history = History(bootstrap, "times")
    history.write_plain(4 * MIB)
    wait_until_tiered(bootstrap, "times")

    def find(timestamp: int) -> tuple[int, int]:
        found = found_offset(bootstrap, "times", timestamp)
        return found.offset, found.timestamp

    records = sorted((timestamp, offset) for offset, (_, _, timestamp) in history.all.items())
    assert find(OffsetSpec.MAX_TIMESTAMP) == (max(history.all), records[-1][0])
    for timestamp, offset in records[:: len(records) // 25]:
        assert find(timestamp) == (offset, timestamp)
        assert find(timestamp - 1) == (offset, timestamp)
    assert find(0) == (0, START_MS)
    assert find(records[-1][0] + 1) == (-1, -1)


def test_the_special_offsets_tell_where_the_parts_of_a_log_are(orders: History) -> None:
    bootstrap = orders.bootstrap
    local = offset_of(bootstrap, "orders", OffsetSpec.EARLIEST_LOCAL)
    tiered = offset_of(bootstrap, "orders", OffsetSpec.LATEST_TIERED)
    end = offset_of(bootstrap, "orders", OffsetSpec.LATEST)
    assert offset_of(bootstrap, "orders", OffsetSpec.EARLIEST) == 0 < local <= tiered + 1 < end
    assert offset_of(bootstrap, "orders", OffsetSpec.EARLIEST_PENDING_UPLOAD) == tiered + 1


def test_a_topic_without_remote_storage_has_no_tiered_offsets(node: LocalNode) -> None:
    bootstrap = node.bootstrap_servers
    create_tiered_topic(bootstrap, "plain", remote_storage_enable="false")
    history = History(bootstrap, "plain")
    history.send(history.producer(), 10)
    assert offset_of(bootstrap, "plain", OffsetSpec.EARLIEST_LOCAL) == 0
    assert offset_of(bootstrap, "plain", OffsetSpec.LATEST_TIERED) == -1
    assert offset_of(bootstrap, "plain", OffsetSpec.EARLIEST_PENDING_UPLOAD) == -1


def test_deleted_records_are_gone_from_remote_storage_too(node: LocalNode) -> None:
    bootstrap = node.bootstrap_servers
    create_tiered_topic(bootstrap, "deleted")
    history = History(bootstrap, "deleted")
    history.write_plain(4 * MIB)
    wait_until_tiered(bootstrap, "deleted")
    delete_records(bootstrap, "deleted", 1500)
    assert offset_of(bootstrap, "deleted", OffsetSpec.EARLIEST) == 1500
    found = read_with_librdkafka(bootstrap, "deleted", 1500, "read_committed")
    assert found == {offset: each for offset, each in history.all.items() if offset >= 1500}
    first = found_offset(bootstrap, "deleted", START_MS)
    assert first.offset == 1500


def test_a_restarted_node_knows_what_is_in_remote_storage(tmp_path: Path) -> None:
    settings = tiered_settings(tmp_path / "store")
    data_dir = str(tmp_path / "data")
    with LocalNode(settings, data_dir=data_dir) as node:
        create_tiered_topic(node.bootstrap_servers, "kept")
        history = History(node.bootstrap_servers, "kept")
        history.write_plain(4 * MIB)
        local = wait_until_tiered(node.bootstrap_servers, "kept")
    for _ in range(2):
        with LocalNode(settings, data_dir=data_dir) as node:
            bootstrap = node.bootstrap_servers
            assert offset_of(bootstrap, "kept", OffsetSpec.EARLIEST) == 0
            assert offset_of(bootstrap, "kept", OffsetSpec.EARLIEST_LOCAL) == local
            assert read_with_librdkafka(bootstrap, "kept", 0, "read_committed") == history.all
        # As after a crash: everything is checked.
        for mark in Path(data_dir).rglob(".kafka_cleanshutdown"):
            mark.unlink()


def test_a_log_moves_to_another_directory_with_what_it_knows_of_remote_storage(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in ("one", "other")]
    settings = tiered_settings(tmp_path / "store", log_dirs=",".join(map(str, dirs)))
    with LocalNode(settings) as node:
        bootstrap = node.bootstrap_servers
        create_tiered_topic(bootstrap, "moved")
        history = History(bootstrap, "moved")
        history.write_plain(4 * MIB)
        local = wait_until_tiered(bootstrap, "moved")
        (target,) = (each for each in dirs if not (each / "moved-0").exists())
        with blocking.Admin(bootstrap) as admin:
            partition = OttlaTopicPartition("moved", 0)
            assert admin.log_dirs.move(1, {partition: str(target)}) == {partition: None}
        wait_until((target / "moved-0").exists, "the log does not move")
        history.send(history.producer(), 10)
        assert offset_of(bootstrap, "moved", OffsetSpec.EARLIEST) == 0
        assert offset_of(bootstrap, "moved", OffsetSpec.EARLIEST_LOCAL) >= local
        assert offset_of(bootstrap, "moved", OffsetSpec.LATEST_TIERED) >= local - 1
        assert read_with_librdkafka(bootstrap, "moved", 0, "read_committed") == history.all


def test_a_store_that_fails_holds_up_only_those_who_read_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    with LocalNode(tiered_settings(store)) as node:
        bootstrap = node.bootstrap_servers
        create_tiered_topic(bootstrap, "far")
        history = History(bootstrap, "far")
        history.write_plain(4 * MIB)
        local = wait_until_tiered(bootstrap, "far")
        os.rename(store, tmp_path / "away")
        results: list[dict[int, Record]] = []
        reader = threading.Thread(
            target=lambda: results.append(read_with_librdkafka(bootstrap, "far", 0, "read_committed"))
        )
        reader.start()
        records = {offset: each for offset, each in history.all.items() if offset >= local}
        assert read_with_librdkafka(bootstrap, "far", local, "read_committed") == records
        history.send(history.producer(), 10)
        assert reader.is_alive()
        with blocking.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([("far", 0)])
            wait_until(
                lambda: not consumer.poll() and "cannot read offset 0 from its disk" in caplog.text,
                "our client does not say what it waits for",
            )
        shutil.rmtree(store, ignore_errors=True)
        os.rename(tmp_path / "away", store)
        reader.join(60)
        wait_until(lambda: bool(results), "the reader does not go on when the store is back")
        assert results[0] == history.all
