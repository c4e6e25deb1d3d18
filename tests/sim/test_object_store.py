"""The simulated object store fails as real ones do, and keeps what it has acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from ottla.runtime.object_store import (
    ObjectNotFound,
    ObjectStore,
    ObjectStoreError,
    ObjectStoreKind,
    ObjectStoreSettings,
)
from ottla.runtime.runtime import Runtime
from ottla.sim.object_store import SimObjectStore
from ottla.sim.world import World

SETTINGS = ObjectStoreSettings(ObjectStoreKind.S3, "tier")
Work = Callable[[ObjectStore], Coroutine[Any, Any, None]]


async def chunks(data: bytes, size: int = 4) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def put(client: ObjectStore, key: str, data: bytes) -> None:
    await client.put(key, chunks(data), len(data))


async def put_many(client: ObjectStore) -> None:
    for number in range(20):
        await put(client, f"{number}", b"x")


class Lab:
    """One machine that uses the store."""

    def __init__(self, seed: int = 1, **options: Any) -> None:
        self.world = World(seed)
        self.store = SimObjectStore(self.world, **options)
        self.world.object_store = self.store.open

    def run(self, work: Work, *, after: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        done: list[bool] = []

        async def main(runtime: Runtime) -> None:
            assert runtime.object_store is not None
            await work(runtime.object_store(SETTINGS))
            done.append(True)

        async def scenario() -> None:
            self.machine.boot()
            if after is not None:
                await after()
                return
            while not done:  # noqa: ASYNC110 - another process sets it
                await asyncio.sleep(0.01)

        self.machine = self.world.machine("node1", main)
        self.world.run(scenario())
        assert not self.world.violations, self.world.violations[0]


def test_what_was_put_is_read_in_ranges_listed_and_deleted() -> None:
    lab = Lab(part_bytes=5)

    async def work(client: ObjectStore) -> None:
        await put(client, "a/1", b"abc")
        await put(client, "a/2", b"0123456789abc")  # in three parts
        assert await client.get("a/2") == b"0123456789abc"
        assert await client.get_range("a/2", 3, 6) == b"345"
        assert await client.get_range("a/1", 1, 100) == b"bc"
        assert [each.key for each in await client.list_objects("a/")] == ["a/1", "a/2"]
        await client.delete(["a/1", "missing"])
        with pytest.raises(ObjectNotFound):
            await client.get("a/1")
        assert [tuple(each) for each in await client.list_objects("")] == [("a/2", 13)]
        with pytest.raises(ObjectStoreError, match="should have 4 bytes"):
            await client.put("short", chunks(b"abc"), 4)

    lab.run(work)
    assert not lab.store.parts


def test_requests_fail_before_their_effect_and_after_it() -> None:
    lab = Lab(error_rate=0.5)
    failed_after = []

    async def work(client: ObjectStore) -> None:
        for number in range(40):
            try:
                await put(client, f"{number}", b"x")
            except ObjectStoreError:
                failed_after.append(f"{number}" in lab.store.objects)
            else:
                assert f"{number}" in lab.store.objects

    lab.run(work)
    assert {True, False} <= set(failed_after)


def test_an_upload_that_fails_in_the_middle_leaves_nothing_or_a_part_and_no_object() -> None:
    lab = Lab(part_bytes=2, error_rate=0.3)

    async def work(client: ObjectStore) -> None:
        for number in range(40):
            try:
                await put(client, f"{number}", b"abcdef")
            except ObjectStoreError:
                assert lab.store.objects.get(f"{number}", b"abcdef") == b"abcdef"
        left = [key for key, _ in lab.store.parts]
        assert left
        assert not set(left) & set(lab.store.objects)
        lab.store.heal()
        await client.delete(left)

    lab.run(work)
    assert not lab.store.parts
    assert lab.world.coverage["store: an upload ends in the middle"] > 10


@pytest.mark.parametrize("fault", ["is_away", "throttles"])
def test_a_store_that_is_away_or_throttles_refuses_requests_and_recovers(fault: str) -> None:
    lab = Lab()

    async def work(client: ObjectStore) -> None:
        setattr(lab.store, fault, True)
        with pytest.raises(ObjectStoreError, match=r"cannot be reached|503"):
            await put_many(client)
        lab.store.heal()
        await put(client, "late", b"x")

    lab.run(work)


def test_only_the_machine_that_is_cut_off_does_not_reach_the_store() -> None:
    lab = Lab()
    lab.store.cut_off["node2"] = None

    async def work(client: ObjectStore) -> None:
        await put(client, "a", b"x")
        lab.store.cut_off["node1"] = None
        with pytest.raises(ObjectStoreError, match="cannot be reached"):
            await client.get("a")

    lab.run(work)


def test_a_stale_list_is_an_earlier_one() -> None:
    lab = Lab()

    async def work(client: ObjectStore) -> None:
        await put(client, "a", b"x")
        lab.store.stale_s = 1e9
        assert await client.list_objects("") == []
        lab.store.stale_s = 0
        assert [each.key for each in await client.list_objects("")] == ["a"]

    lab.run(work)


def test_a_request_may_take_effect_when_its_process_is_gone() -> None:
    late = 0
    for seed in range(20):
        lab = Lab(seed)
        lab.store.slowness = 50.0

        async def work(client: ObjectStore) -> None:
            await put(client, "a", b"x")

        async def after(lab: Lab = lab) -> None:
            await asyncio.sleep(0.02)
            lab.machine.kill(power_loss=False)
            await asyncio.sleep(2)

        lab.run(work, after=after)
        assert lab.store.is_late("a") == ("a" in lab.store.objects)
        late += lab.store.is_late("a")
    assert 0 < late <= 20
