"""Segments in Azure Blob Storage, as its emulator has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.node.test_tiered_copy import consume, create, produce
from tests.support.azure_server import (
    ACCOUNT_KEY,
    AZURE_SKIP,
    CONTAINER,
    azure_server,
    missing_requirement,
)
from tests.support.remote_store import finished_segments, knlog_lineage, metadata_events, objects_of
from tests.support.waiting import wait_until

from ottla.remote.store_settings import PrefixedSettings, store_settings
from ottla.runtime.object_store import CloudStore, ObjectNotFound
from ottla.testing.local_node import LocalNode

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    missing = missing_requirement()
    if missing is not None:
        pytest.skip(f"{AZURE_SKIP}{missing}")
    pytest.importorskip("obstore")
    with azure_server(tmp_path_factory.mktemp("azure")) as connection:
        yield {
            "rsm.config.storage.backend.class": "io.aiven.kafka.tieredstorage.storage.azure.AzureBlobStorage",
            "rsm.config.storage.azure.container.name": CONTAINER,
            "rsm.config.storage.azure.connection.string": connection,
            "rsm.config.storage.s3.multipart.upload.part.size": str(5 * 1024 * 1024),
            "rsm.config.key.prefix": "tier/",
        }


def open_store(settings: dict[str, str]) -> CloudStore:
    return CloudStore(store_settings(PrefixedSettings(settings, "rsm.config.")).store)


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1_000_000):
        yield data[start : start + 1_000_000]


async def test_objects_are_kept_listed_and_deleted(settings: dict[str, str]) -> None:
    store = open_store(settings)
    small, large = b"small", bytes(range(256)) * 50_000  # uploaded in parts
    await store.put("objects/a/small", pieces(small), len(small))
    await store.put("objects/a/large", pieces(large), len(large))
    assert await store.get("objects/a/small") == small
    assert await store.get_range("objects/a/large", 7_000_000, 9_000_000) == large[7_000_000:9_000_000]
    assert await store.get_range("objects/a/large", len(large) - 10, len(large) + 10) == large[-10:]
    assert await store.list_objects("objects/a/s") == [("objects/a/small", len(small))]
    assert len(await store.list_objects("objects/")) == 2
    await store.delete(["objects/a/small", "objects/a/large", "objects/never"])
    assert await store.list_objects("objects/") == []
    with pytest.raises(ObjectNotFound):
        await store.get("objects/a/small")
    with pytest.raises(ObjectNotFound):
        await store.get_range("objects/a/small", 0, 1)


def test_segments_go_to_azure_and_come_back(
    settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    def stored() -> set[str]:
        found = asyncio.run(open_store(settings).list_objects("tier/"))
        return {each.key.removeprefix("tier/") for each in found}

    node_settings = {
        "remote.log.storage.system.enable": "true",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "50",
        **settings,
    }
    with LocalNode(node_settings) as node:
        bootstrap = node.bootstrap_servers
        create(bootstrap, "orders", local_retention_bytes="1")
        produce(bootstrap, "orders", 120)
        wait_until(
            lambda: [each.end_offset for each in finished_segments(node.data_dir, "orders")][-1:] >= [90],
            "nothing is copied",
            poll_s=0.1,
        )
        log_dir = Path(node.data_dir, "orders-0")
        wait_until(lambda: len(list(log_dir.glob("*.log"))) == 1, "nothing leaves the disk")
        assert consume(bootstrap, "orders", 120) == list(range(120))
        wait_until(
            lambda: stored() == objects_of(knlog_lineage(metadata_events(node.data_dir))),
            "the store has other objects than the metadata know",
            poll_s=0.1,
        )
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics(["orders"])["orders"].result(60)
        wait_until(lambda: not stored(), "a deleted topic stays in the store", poll_s=0.1)
    assert ACCOUNT_KEY not in caplog.text
