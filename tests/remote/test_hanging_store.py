"""A store that takes requests and does not answer: what waits for it is bounded, and seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence

import pytest

from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.segment_metadata import RemoteStorageError
from ottla.remote.storage_manager import IndexType, LogSegmentData
from ottla.runtime.object_store import MemoryStore
from tests.remote.test_metadata_cache import segment
from tests.support.loops import in_virtual_time


class HangingStore(MemoryStore):
    """It takes a second for each piece, and does not answer while it hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False

    async def _wait(self) -> None:
        if self.hangs:
            await asyncio.get_running_loop().create_future()

    async def put(self, key: str, chunks: AsyncIterable[bytes], size: int) -> None:
        pieces = []
        async for chunk in chunks:
            await self._wait()
            await asyncio.sleep(1)
            pieces.append(chunk)
        self.objects[key] = b"".join(pieces)

    async def get(self, key: str) -> bytes:
        await self._wait()
        return await super().get(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._wait()
        await super().delete(keys)


def data_of(pieces: int) -> LogSegmentData:
    async def log() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield b"x"

    return LogSegmentData(log, pieces, b"", b"", b"", b"")


@in_virtual_time()
async def test_an_upload_that_makes_progress_may_take_long() -> None:
    storage = ObjectStorageManager(HangingStore(), stall_ms=5_000)
    await storage.copy_log_segment_data(segment(0, 99), data_of(100))
    assert not storage.statistics.under_way
    assert not storage.statistics.timeouts


@pytest.mark.parametrize("operation", ["copy", "read", "delete"])
@in_virtual_time()
async def test_an_operation_that_hangs_fails_in_time(operation: str) -> None:
    store = HangingStore()
    storage = ObjectStorageManager(store, stall_ms=5_000)
    metadata = segment(0, 99)
    store.hangs = True
    work = {
        "copy": lambda: storage.copy_log_segment_data(metadata, data_of(10)),
        "read": lambda: storage.fetch_index(metadata, IndexType.OFFSET),
        "delete": lambda: storage.delete_log_segment_data(metadata),
    }[operation]
    task = asyncio.ensure_future(work())
    await asyncio.sleep(4)
    assert storage.statistics.longest_wait_s() == pytest.approx(4, abs=0.1)
    await asyncio.sleep(1.1)
    assert task.done()
    with pytest.raises(RemoteStorageError, match="did not answer for 5 s"):
        await task
    assert storage.statistics.timeouts == storage.statistics.errors == 1
    assert storage.statistics.longest_wait_s() == 0
