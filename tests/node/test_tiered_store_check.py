"""A broker says at its start that its store cannot be used, once and without credentials, and when it can."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.remote_harness import RemoteWorld
from tests.support.fake_s3 import BUCKET, FakeS3, fake_s3, fake_s3_settings
from tests.support.tiered import tiered_settings
from tests.support.waiting import wait_until

from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.node_config import NodeConfig
from ottla.node.remote.settings import remote_storage_settings
from ottla.node.remote.store_check import StoreCheck
from ottla.remote.object_storage import ObjectStorageManager
from ottla.runtime.object_store import ObjectStore, open_object_store
from ottla.runtime.random import SeededRandom
from ottla.testing.local_node import LocalNode

KEY_ID, SECRET = "AKIA-the-key-id", "the-secret/of+the key"


@pytest.fixture
def store() -> Iterator[FakeS3]:
    pytest.importorskip("obstore")
    with fake_s3() as running:
        yield running


def make_check(settings: dict[str, str], store: ObjectStore | None = None) -> StoreCheck:
    config = NodeConfig({"node.id": "4", **settings})
    stored = remote_storage_settings(config)
    opened = open_object_store(stored.store, None, None) if store is None else store  # type: ignore[arg-type]
    storage = ObjectStorageManager(opened, prefix=stored.prefix, stall_ms=60_000)
    return StoreCheck(SeededRandom(1), DynamicBrokerConfig(config), stored, storage)


def s3_settings(store: FakeS3, **more: str) -> dict[str, str]:
    credentials = {
        "rsm.config.storage.aws.access.key.id": KEY_ID,
        "rsm.config.storage.aws.secret.access.key": SECRET,
        "rsm.config.storage.s3.api.call.attempt.timeout": "60000",
    }
    return fake_s3_settings(store) | credentials | more


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "store of tiered storage" in each.getMessage()]


@pytest.mark.slow
def test_a_node_starts_and_says_that_its_store_cannot_be_used_and_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    not_a_directory = tmp_path / "disk"
    not_a_directory.write_text("a file")
    store = not_a_directory / "tier"
    with LocalNode(tiered_settings(store)):
        wait_until(lambda: bool(warnings(caplog)), "nothing is said of a store that cannot be used")
        (said,) = warnings(caplog)
        assert said.startswith(f"the store of tiered storage, {store}, cannot be used")
        assert "Not a directory" in said
        assert "rsm.config.storage.url" in said
        not_a_directory.unlink()
        wait_until(lambda: len(warnings(caplog)) == 2, "that it works is not said")
        assert warnings(caplog)[1] == f"the store of tiered storage, {store}, can be used now"
        assert list(store.iterdir()) == []


def test_a_node_says_nothing_of_a_store_that_works(store: FakeS3, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with LocalNode(s3_settings(store)):
        wait_until(lambda: store.deleted == ["ottla-check-1"], "the store is not tried")
    assert warnings(caplog) == []
    assert not store.objects


@pytest.mark.slow
def test_a_store_that_hangs_does_not_delay_the_start(store: FakeS3, caplog: pytest.LogCaptureFixture) -> None:
    store.hang()
    with LocalNode(s3_settings(store, **{"rsm.config.storage.s3.api.call.attempt.timeout": "1000"})):
        wait_until(lambda: bool(warnings(caplog)), "nothing is said of a store that hangs")
        assert len(warnings(caplog)) == 1
        assert store.unanswered


async def first_warning(check: StoreCheck, caplog: pytest.LogCaptureFixture) -> str:
    running = asyncio.ensure_future(check.run())
    try:
        await asyncio.to_thread(wait_until, lambda: bool(warnings(caplog)), "nothing is said of the store")
    finally:
        running.cancel()
    (said,) = warnings(caplog)
    assert KEY_ID not in said
    assert SECRET not in said
    return said


async def test_a_store_that_refuses_the_credentials_is_named_without_them(
    store: FakeS3, caplog: pytest.LogCaptureFixture
) -> None:
    store.refusal = (
        f"<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId>"
        f"<StringToSign>{SECRET}</StringToSign></Error>"
    )
    said = await first_warning(make_check(s3_settings(store)), caplog)
    assert said.startswith(f"the store of tiered storage, s3://{BUCKET}, cannot be used")
    assert "InvalidAccessKeyId" in said
    assert "credentials allow" in said


async def test_credentials_of_the_environment_are_not_named_either(
    store: FakeS3, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    store.refusal = f"<Error><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>"
    settings = {name: value for name, value in s3_settings(store).items() if ".aws." not in name}
    assert "AWSAccessKeyId" in await first_warning(make_check(settings), caplog)


async def test_a_bucket_that_does_not_exist_is_named(store: FakeS3, caplog: pytest.LogCaptureFixture) -> None:
    settings = s3_settings(store, **{"rsm.config.storage.url": "s3://other/prefix"})
    said = await first_warning(make_check(settings), caplog)
    assert said.startswith("the store of tiered storage, s3://other/prefix, cannot be used")
    assert "NoSuchBucket" in said


async def test_a_store_that_cannot_be_reached_is_named(
    store: FakeS3, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    settings = s3_settings(store, **{"rsm.config.storage.s3.endpoint.url": url})
    assert "endpoint" in await first_warning(make_check(settings), caplog)


def test_it_is_tried_again_with_pauses_that_grow_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = RemoteWorld()
    world.store.failures = 1_000_000
    check = make_check({"rsm.config.storage.url": "s3://bucket"}, world.store)

    async def test() -> None:
        running = asyncio.ensure_future(check.run())
        await asyncio.sleep(3600)
        assert len(warnings(caplog)) == 1
        assert 100 < world.store.puts < 250
        world.store.failures = 0
        await running

    world.loop.run_until_complete(test())
    assert len(warnings(caplog)) == 2
    assert not world.store.memory.objects
