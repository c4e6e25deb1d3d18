"""Segments in a real S3 server, which throttles for a while, and credentials that no one sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.node.test_tiered_copy import consume, create, produce
from tests.support.remote_store import (
    finished_segments,
    knlog_lineage,
    metadata_events,
    objects_of,
    stored_objects,
)
from tests.support.s3_server import (
    ACCESS_KEY,
    BUCKET,
    S3_SKIP,
    SECRET_KEY,
    FaultyProxy,
    NoS3Server,
    program,
    s3_server,
)
from tests.support.waiting import wait_until

from ottla.testing.local_node import LocalNode

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    try:
        program()
    except NoS3Server as error:
        pytest.skip(f"{S3_SKIP}{error}")
    pytest.importorskip("obstore")
    root = tmp_path_factory.mktemp("s3")
    with s3_server(root) as url:
        yield url, root / "data" / BUCKET


def settings(url: str) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "rsm.config.storage.backend.class": "io.aiven.kafka.tieredstorage.storage.s3.S3Storage",
        "rsm.config.storage.s3.bucket.name": BUCKET,
        "rsm.config.storage.s3.endpoint.url": url,
        "rsm.config.storage.s3.region": "us-east-1",
        "rsm.config.storage.aws.access.key.id": ACCESS_KEY,
        "rsm.config.storage.aws.secret.access.key": SECRET_KEY,
        "rsm.config.storage.s3.multipart.upload.part.size": str(5 * 1024 * 1024),
        "rsm.config.key.prefix": "tier/",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "50",
    }


def objects(bucket: Path) -> set[str]:
    return stored_objects(bucket / "tier")


def test_segments_go_to_s3_and_come_back_though_it_throttles(
    s3: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    url, bucket = s3
    proxy = FaultyProxy(url)
    with LocalNode(settings(proxy.url)) as node:
        bootstrap = node.bootstrap_servers
        create(bootstrap, "orders", local_retention_bytes="1")
        produce(bootstrap, "orders", 60)
        wait_until(lambda: bool(finished_segments(node.data_dir, "orders")), "nothing is copied", poll_s=0.1)
        proxy.fail_with("503 Slow Down")
        produce(bootstrap, "orders", 60, first=60)
        wait_until(lambda: proxy.refused > 3, "the store is not asked")
        proxy.heal()
        wait_until(
            lambda: finished_segments(node.data_dir, "orders")[-1].end_offset >= 90,
            "nothing is copied after the store is back",
            poll_s=0.1,
        )
        wait_until(
            lambda: objects(bucket) == objects_of(knlog_lineage(metadata_events(node.data_dir))),
            "the store has other objects than the metadata know",
            poll_s=0.1,
        )
        log_dir = Path(node.data_dir, "orders-0")
        wait_until(lambda: len(list(log_dir.glob("*.log"))) == 1, "nothing leaves the disk")
        assert consume(bootstrap, "orders", 120) == list(range(120))

        admin = AdminClient({"bootstrap.servers": bootstrap})
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        described = admin.describe_configs([resource])[resource].result(60)
        secret = described["rsm.config.storage.aws.secret.access.key"]
        assert secret.is_sensitive
        assert all(SECRET_KEY not in str(each.value) for each in described.values())
        admin.delete_topics(["orders"])["orders"].result(60)
        wait_until(lambda: not objects(bucket), "a deleted topic stays in the store")
    proxy.close()
    assert SECRET_KEY not in caplog.text
    assert ACCESS_KEY not in caplog.text


def test_a_large_segment_is_uploaded_in_parts(s3: tuple[str, Path]) -> None:
    url, bucket = s3
    with LocalNode(settings(url)) as node:
        create(node.bootstrap_servers, "large", internal_segment_bytes=str(12 * 1024 * 1024))
        produce(node.bootstrap_servers, "large", 30, size=600_000)
        wait_until(lambda: bool(finished_segments(node.data_dir, "large")), "nothing is copied", poll_s=0.1)
        segment = finished_segments(node.data_dir, "large")[0]
        assert segment.segment_size_in_bytes > 10 * 1024 * 1024
        copied = next((bucket / "tier").rglob("*.log"))
        local = Path(node.data_dir, "large-0", "0".zfill(20) + ".log")
        assert copied.read_bytes() == local.read_bytes()
