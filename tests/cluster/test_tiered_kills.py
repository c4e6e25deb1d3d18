"""Brokers that are killed while they copy: every record stays, once, and nothing unknown is in the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.testing.local_cluster import LocalCluster
from tests.node.test_tiered_copy import consume, create, settings
from tests.support.remote_store import finished_segments, unsettled
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

# Small enough that a segment is closed, and copied, every few records.
SEGMENTS = {"internal_segment_bytes": "20000", "local_retention_bytes": "40000"}


class Writer:
    """Writes numbered records, as many as it may, and knows how many there are."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                # A batch has to fit into a segment.
                "batch.num.messages": 10,
            }
        )
        self._topic = topic
        self.written = 0
        self.allowed = 0
        self.acknowledged = 0
        self.failed: list[object] = []

    def _on_delivery(self, error: object, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(error)

    def write(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for _ in range(min(20, self.allowed - self.written)):
                self._producer.produce(
                    self._topic, value=b"%08d" % self.written + b"." * 1000, on_delivery=self._on_delivery
                )
                self.written += 1
            self._producer.poll(0.05)
            stop.wait(0.1)
        assert self._producer.flush(120) == 0


@contextmanager
def writing(bootstrap: str, topic: str) -> Iterator[Writer]:
    writer, stop = Writer(bootstrap, topic), threading.Event()
    thread = threading.Thread(target=writer.write, args=(stop,))
    thread.start()
    try:
        yield writer
    finally:
        stop.set()
        thread.join()


def copied_segments(cluster: LocalCluster, topic: str) -> int:
    """How many segments the metadata of any running node has."""
    return max(len(finished_segments(data_dir(cluster, node.id), topic)) for node in cluster.nodes)


def data_dir(cluster: LocalCluster, node: int) -> Path:
    """Where the partitions of a node are."""
    root = Path(cluster.node(node).data_dir)
    metadata = next(root.rglob("__cluster_metadata-0"), None)
    return root if metadata is None else metadata.parent


def wait_for_copies(cluster: LocalCluster, topic: str, writer: Writer) -> None:
    """Have more records written, and wait until some of them are copied."""
    writer.allowed += 120
    before = copied_segments(cluster, topic)
    wait_until(
        lambda: copied_segments(cluster, topic) >= before + 2,
        f"{topic} is not copied any more",
        120,
        poll_s=0.1,
    )


def check(cluster: LocalCluster, topic: str, store: Path, records: int) -> None:
    cluster.wait_in_sync()
    directory = data_dir(cluster, cluster.leader(topic))

    left: list[str] = []

    def is_copied() -> bool:
        # The active segment is not copied; it has less than this.
        segments = finished_segments(directory, topic)
        left[:] = unsettled(directory, store)
        return bool(segments) and segments[-1].end_offset >= records - 40 and not left

    wait_until(is_copied, "the store has not what the metadata know", 120, poll_s=0.5)
    assert consume(cluster.bootstrap_servers, topic, records) == list(range(records))


def test_a_node_that_is_killed_again_and_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    alone = {"rlmm.config.remote.log.metadata.topic.replication.factor": "1"}
    given = {**settings(store), **alone}
    with LocalCluster(nodes=1, settings=given, data_dir=str(tmp_path / "data")) as cluster:
        create(cluster.bootstrap_servers, "orders", **SEGMENTS)
        with writing(cluster.bootstrap_servers, "orders") as writer:
            for _ in range(4):
                wait_for_copies(cluster, "orders", writer)
                cluster.kill(1)
                cluster.start(1)
                cluster.wait_ready()
        assert not writer.failed
        check(cluster, "orders", store, writer.written)


@pytest.mark.exhaustive
def test_leaders_that_are_killed_while_they_copy(tmp_path: Path) -> None:
    store = tmp_path / "store"
    more = {"rlmm.config.remote.log.metadata.topic.num.partitions": "2"}
    with LocalCluster(nodes=3, settings={**settings(store), **more}) as cluster:
        create(cluster.bootstrap_servers, "orders", replicas=3, min_insync_replicas="2", **SEGMENTS)
        with writing(cluster.bootstrap_servers, "orders") as writer:
            for _ in range(2):
                wait_for_copies(cluster, "orders", writer)
                leader = cluster.leader("orders")
                cluster.kill(leader)
                wait_for_copies(cluster, "orders", writer)
                cluster.start(leader)
                cluster.wait_ready()
        assert not writer.failed
        check(cluster, "orders", store, writer.written)
