"""Segments go to remote storage, expire there, and go with their topic; a directory is the store."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from tests.support.java_driver import JavaDriver
from tests.support.remote_store import (
    finished_segments,
    is_settled,
    manifests,
    metadata_events,
    stored_objects,
)
from tests.support.waiting import wait_until

from ottla.node.config.errors import NodeFailed
from ottla.protocol.names import uuid_text
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from ottla.testing.local_node import LocalNode

SMALL_SEGMENTS = {"remote.storage.enable": "true", "internal.segment.bytes": "20000", "retention.ms": "-1"}


def settings(store: Path, **more: str) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "rsm.config.storage.url": f"file://{store}",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "50",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def create(bootstrap: str, topic: str, replicas: int = 1, **more: str) -> None:
    config = {**SMALL_SEGMENTS, **{name.replace("_", "."): value for name, value in more.items()}}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, replicas, config=config)])[topic].result(60)


def alter(bootstrap: str, topic: str, **values: str) -> None:
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in values.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


def produce(bootstrap: str, topic: str, records: int, size: int = 1000, first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 4, "acks": "all"})
    failed: list[object] = []
    for number in range(first, first + records):
        producer.produce(
            topic,
            value=b"%08d" % number + b"." * size,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def watermarks(bootstrap: str, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
    finally:
        consumer.close()


def consume(bootstrap: str, topic: str, records: int) -> list[int]:
    """The numbers of so many records, from the beginning of the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "error"})
    try:
        start, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        consumer.assign([TopicPartition(topic, 0, start)])
        found: list[int] = []
        while len(found) < records:
            message = consumer.poll(60)
            assert message is not None, f"{len(found)} of {records} records came"
            assert message.error() is None, message.error()
            found.append(int((message.value() or b"")[:8]))
        return found
    finally:
        consumer.close()


def wait_until_copied(data_dir: str, topic: str, store: Path, upto: int) -> None:
    """Wait until the store has everything up to an offset, and nothing else."""

    def is_copied() -> bool:
        segments = finished_segments(data_dir, topic)
        return bool(segments) and segments[-1].end_offset >= upto and is_settled(data_dir, store)

    wait_until(is_copied, f"{topic} is not copied up to {upto}", poll_s=0.1)


def scrape(node: LocalNode) -> str:
    with urlopen(f"{node.http_url}/metrics", timeout=60) as response:
        text: str = response.read().decode()
        return text


def test_a_topic_from_its_first_copy_to_its_deletion(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with LocalNode({**settings(store), "http.listener": "http://127.0.0.1:0"}) as node:
        bootstrap = node.bootstrap_servers
        create(bootstrap, "orders")
        produce(bootstrap, "orders", 200)
        wait_until_copied(node.data_dir, "orders", store, 170)
        all_copied = 'kafka_server_brokertopicmetrics_remotecopylagsegments{topic="orders"} 0'
        wait_until(lambda: all_copied in scrape(node), "closed segments are not copied", poll_s=0.1)
        segments = finished_segments(node.data_dir, "orders")
        assert segments[0].start_offset == 0
        for each, after in pairwise(segments):
            assert after.start_offset == each.end_offset + 1
        for document, metadata in zip(manifests(store), segments, strict=True):
            chunks = document["chunkIndex"]
            assert isinstance(chunks, dict)
            assert chunks["originalFileSize"] == metadata.segment_size_in_bytes
        assert len({path.split("/")[0] for path in stored_objects(store)}) == 1

        copied = sum(each.segment_size_in_bytes for each in segments)
        assert f"kafka_server_brokertopicmetrics_remotecopybytes_total {copied}" in scrape(node)

        alter(bootstrap, "orders", retention_bytes="60000")
        wait_until(
            lambda: len(finished_segments(node.data_dir, "orders")) <= 4, "nothing expires", poll_s=0.1
        )

        def begins_with_the_store() -> bool:
            """The start of the log moves first, and segment after segment leaves the store."""
            kept = finished_segments(node.data_dir, "orders")
            return watermarks(bootstrap, "orders")[0] == kept[0].start_offset

        wait_until(begins_with_the_store, "the log begins where the store does not", poll_s=0.1)
        wait_until(lambda: is_settled(node.data_dir, store), "the store and its metadata differ", poll_s=0.1)

        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics(["orders"])["orders"].result(60)
        wait_until(lambda: not stored_objects(store), "the store keeps a deleted topic")
        wait_until(lambda: is_settled(node.data_dir, store), "the metadata keep a deleted topic", poll_s=0.1)
        wait_until(
            lambda: _deletions(node.data_dir)[-1:] == [_DELETED], "the deletion is not announced", poll_s=0.1
        )
        assert _deletions(node.data_dir) == [_MARKED, _DELETED]
        _check_states(node.data_dir)


_MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
_DELETED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED


def _deletions(data_dir: str) -> list[RemotePartitionDeleteState]:
    events = metadata_events(data_dir)
    return [each.state for each in events if isinstance(each, RemotePartitionDeleteMetadata)]


def _check_states(data_dir: str) -> None:
    """Every segment has gone through all states, once."""
    states: dict[object, list[RemoteLogSegmentState]] = {}
    for event in metadata_events(data_dir):
        if isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
            states.setdefault(event.id, []).append(event.state)
    assert states
    for each in states.values():
        assert each == list(RemoteLogSegmentState)


def test_turning_remote_storage_off_and_on_again_loses_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with LocalNode(settings(store)) as node:
        bootstrap = node.bootstrap_servers
        create(bootstrap, "orders")
        produce(bootstrap, "orders", 100)
        wait_until_copied(node.data_dir, "orders", store, 70)
        with pytest.raises(KafkaException, match="without deleting remote data"):
            alter(bootstrap, "orders", remote_storage_enable="false")
        alter(bootstrap, "orders", remote_storage_enable="false", remote_log_delete_on_disable="true")
        wait_until(lambda: not stored_objects(store), "the store keeps what was turned off")
        assert consume(bootstrap, "orders", 100) == list(range(100))
        alter(bootstrap, "orders", remote_storage_enable="true")
        wait_until_copied(node.data_dir, "orders", store, 70)
        assert finished_segments(node.data_dir, "orders")[0].start_offset == 0
        # What is in the store again may leave the disk, and is read from there.
        alter(bootstrap, "orders", local_retention_bytes="1", retention_ms="-1")
        wait_until(
            lambda: len(list(Path(node.data_dir, "orders-0").glob("*.log"))) == 1, "nothing leaves the disk"
        )
        assert consume(bootstrap, "orders", 100) == list(range(100))


@pytest.mark.slow
def test_turning_it_off_after_segments_left_the_disk_moves_the_log_start(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with LocalNode(settings(store)) as node:
        bootstrap = node.bootstrap_servers
        create(bootstrap, "orders", local_retention_bytes="1")
        produce(bootstrap, "orders", 100)
        wait_until_copied(node.data_dir, "orders", store, 70)
        log_dir = Path(node.data_dir, "orders-0")
        wait_until(lambda: len(list(log_dir.glob("*.log"))) == 1, "nothing leaves the disk")
        first = int(next(log_dir.glob("*.log")).stem)
        assert watermarks(bootstrap, "orders") == (0, 100)
        alter(bootstrap, "orders", remote_storage_enable="false", remote_log_delete_on_disable="true")
        wait_until(lambda: not stored_objects(store), "the store keeps what was turned off")
        assert watermarks(bootstrap, "orders") == (first, 100)
        assert consume(bootstrap, "orders", 100 - first) == list(range(first, 100))


def test_a_node_without_a_store_does_not_start(tmp_path: Path) -> None:
    for given, message in (
        ({}, "rsm.config.storage.url or rsm.config.storage.backend.class"),
        ({"rsm.config.storage.url": "ftp://there"}, "must be like file:///directory"),
        ({"rsm.config.storage.backend.class": "io.aiven.S3Storage"}, "rsm.config.storage.s3.bucket.name"),
        ({"rsm.config.storage.root": "relative"}, "absolute"),
        ({"rsm.config.storage.root": "/x", "rsm.config.encryption.enabled": "true"}, "without encryption"),
        ({"rsm.config.storage.root": "/x", "rsm.config.chunk.size": "many"}, "whole number"),
    ):
        with pytest.raises(NodeFailed, match=message):
            LocalNode({"remote.log.storage.system.enable": "true", **given}).start()


def test_a_node_is_not_started_without_the_tiered_storage_that_its_topics_need(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with LocalNode(settings(tmp_path / "store"), data_dir=data) as node:
        create(node.bootstrap_servers, "orders")
    with pytest.raises(NodeFailed, match=r"remote\.storage\.enable=true before disabling.*orders"):
        LocalNode(data_dir=data).start()
    with LocalNode(settings(tmp_path / "store"), data_dir=data) as node:
        produce(node.bootstrap_servers, "orders", 50)
        wait_until_copied(node.data_dir, "orders", tmp_path / "store", 20)


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    store, data = tmp_path / "store", str(tmp_path / "data")
    with LocalNode(settings(store), data_dir=data) as node:
        create(node.bootstrap_servers, "orders", local_retention_bytes="1")
        produce(node.bootstrap_servers, "orders", 60)
        wait_until_copied(node.data_dir, "orders", store, 30)
        before = finished_segments(node.data_dir, "orders")
    with LocalNode(settings(store), data_dir=data) as node:
        bootstrap = node.bootstrap_servers
        produce(bootstrap, "orders", 60, first=60)
        wait_until_copied(node.data_dir, "orders", store, 90)
        assert finished_segments(node.data_dir, "orders")[: len(before)] == before
        assert consume(bootstrap, "orders", 120) == list(range(120))


@pytest.mark.kafka
@pytest.mark.slow
def test_kafkas_tool_reads_the_metadata(tmp_path: Path, java_driver: JavaDriver) -> None:
    store, data = tmp_path / "store", tmp_path / "data"
    with LocalNode(settings(store), data_dir=str(data)) as node:
        create(node.bootstrap_servers, "orders")
        produce(node.bootstrap_servers, "orders", 60)

        def is_copied() -> bool:
            closed = len(list(Path(node.data_dir, "orders-0").glob("*.log"))) - 1
            return len(finished_segments(node.data_dir, "orders")) == closed > 1

        wait_until(is_copied, "closed segments are not copied", poll_s=0.1)
        segments = finished_segments(node.data_dir, "orders")
    files = [path for path in data.glob("__remote_log_metadata-*/*.log") if path.stat().st_size]
    shown = java_driver.tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--remote-log-metadata-decoder",
        "--files",
        ",".join(map(str, files)),
    ).text
    for each in segments:
        assert f"id={uuid_text(each.id.id)}}}, startOffset={each.start_offset}," in shown
    assert shown.count("state=COPY_SEGMENT_STARTED") == len(segments)
    assert shown.count("state=COPY_SEGMENT_FINISHED") == len(segments)
