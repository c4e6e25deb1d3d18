"""A store over the network that takes requests and does not answer slows only those that read from it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.node.test_tiered_copy import consume, create, produce, scrape
from tests.support.fake_s3 import BUCKET, FakeS3, fake_s3, fake_s3_settings
from tests.support.remote_store import finished_segments
from tests.support.waiting import wait_until

from ottla.runtime.object_store import (
    ObjectStoreError,
    ObjectStoreKind,
    ObjectStoreSettings,
    open_object_store,
)
from ottla.testing.local_node import LocalNode

pytestmark = pytest.mark.slow


@pytest.fixture
def store() -> Iterator[FakeS3]:
    pytest.importorskip("obstore")
    with fake_s3() as running:
        yield running


def metric(node: LocalNode, name: str) -> float:
    lines = [line for line in scrape(node).splitlines() if line.startswith(f"{name} ")]
    assert lines, f"there is no metric {name}"
    return float(lines[0].rpartition(" ")[2])


def test_a_store_that_hangs_holds_up_only_those_that_read_from_it(store: FakeS3) -> None:
    configured = fake_s3_settings(store, rsm_config_storage_s3_api_call_attempt_timeout="1000")
    with LocalNode({**configured, "http.listener": "http://127.0.0.1:0"}) as node:
        bootstrap = node.bootstrap_servers
        create(bootstrap, "orders", local_retention_bytes="1")
        produce(bootstrap, "orders", 60)
        log_dir = Path(node.data_dir, "orders-0")
        wait_until(
            lambda: (
                bool(finished_segments(node.data_dir, "orders")) and len(list(log_dir.glob("*.log"))) == 1
            ),
            "nothing leaves the disk",
        )
        store.hang()
        produce(bootstrap, "orders", 60, first=60)
        wait_until(lambda: metric(node, "ottla_remote_store_operations") > 0, "nothing is copied")
        wait_until(
            lambda: metric(node, "kafka_server_brokertopicmetrics_remotecopyerrors_total") > 1,
            "a copy waits without end",
        )
        # A consumer of what is in the store waits, without an error that ends it.
        reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "auto.offset.reset": "error"})
        reader.assign([TopicPartition("orders", 0, 0)])
        message = reader.poll(3)
        assert message is None or message.error().retriable(), message
        # Another one, of a topic on the disk, is not held up.
        create(bootstrap, "local", remote_storage_enable="false")
        produce(bootstrap, "local", 30)
        begin = time.monotonic()
        assert consume(bootstrap, "local", 30) == list(range(30))
        assert time.monotonic() - begin < 30
        assert metric(node, "ottla_remote_store_errors_total") > 1
        store.heal()
        found: list[int] = []
        while len(found) < 120:
            message = reader.poll(60)
            assert message is not None, f"{len(found)} records came"
            if message.error() is None:
                found.append(int((message.value() or b"")[:8]))
            else:
                assert message.error().retriable(), message.error()
        reader.close()
        assert found == list(range(120))


async def test_an_upload_in_parts_that_fails_is_aborted(store: FakeS3) -> None:
    async def pieces(*, fail: bool) -> AsyncIterator[bytes]:
        for _ in range(12):
            yield b"x" * 1024 * 1024
            if fail:
                raise OSError("the disk fails")

    settings = ObjectStoreSettings(
        ObjectStoreKind.S3,
        BUCKET,
        endpoint=store.url,
        region="us-east-1",
        path_style=True,
        part_bytes=5 * 1024 * 1024,
        credentials={"access_key_id": "key", "secret_access_key": "secret"},
    )
    opened = open_object_store(settings, None, None)  # type: ignore[arg-type]
    store.first_refused_part = 2
    with pytest.raises(ObjectStoreError):
        await opened.put("large", pieces(fail=False), 12 * 1024 * 1024)
    assert store.aborted_uploads == 1
    store.first_refused_part = None
    with pytest.raises(OSError, match="the disk fails"):
        await opened.put("large", pieces(fail=True), 12 * 1024 * 1024)
    assert not store.uploads
    assert not store.objects
    await opened.put("large", pieces(fail=False), 12 * 1024 * 1024)
    assert len(store.objects["large"]) == 12 * 1024 * 1024
