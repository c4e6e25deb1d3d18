"""Parts of remote segments, read once for all that want them: chunks of their records, and their indexes
(Kafka's `RemoteIndexCache`).

A part is in memory, or in a file of the disk cache, or is loaded from the store: once, also if several
readers want it at the same time, and to its end, also if they stop waiting. Chunks are larger than what one
fetch takes, and the chunk after the one that is read is loaded ahead, so a reader that goes through a segment
waits for the store only at its beginning.

Everything is bounded: the bytes in memory, the bytes on disk, the loads under way, those that wait, and the
time of each. A store that is slow or fails therefore slows only those that read from it. What the disk cache
has is not needed after a restart, so its directory is emptied at the start.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from ottla.protocol.names import uuid_text
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteResourceNotFound, RemoteStorageError
from ottla.remote.storage_manager import IndexType, RemoteStorageManager
from ottla.runtime.disk import Disk, read_file
from ottla.runtime.pool import Pool

_log = logging.getLogger(__name__)

PartKey: TypeAlias = tuple[bytes, int | IndexType]
"""The id of a segment, and the number of a chunk of its records or one of its indexes."""

_MIB: Final = 1024 * 1024
_MAX_PAUSE_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class SegmentCacheLimits:
    chunk_bytes: int = 4 * _MIB
    memory_bytes: int = 64 * _MIB
    loads_at_once: int = 10
    """`remote.log.reader.threads`"""
    max_pending_loads: int = 100
    """`remote.log.reader.max.pending.tasks`"""
    load_timeout_s: float = 60.0


class FetchThrottle(Protocol):
    """The rate that reads of remote segments stay under."""

    def throttle_ms(self) -> int:
        """How long to wait before the next read."""
        ...

    def record(self, size: int) -> None:
        """Count bytes that were read."""


class TooManyRemoteReads(RemoteStorageError):
    """So many reads wait for remote storage that another one is refused."""


class RemoteSegmentCache:
    """Belongs to one event loop."""

    __slots__ = (
        "_disk",
        "_limits",
        "_loads",
        "_memory",
        "_memory_bytes",
        "_running",
        "_storage",
        "_throttle",
        "_waiting",
    )

    def __init__(
        self,
        storage: RemoteStorageManager,
        limits: SegmentCacheLimits,
        disk_cache: DiskPartCache | None = None,
        throttle: FetchThrottle | None = None,
    ) -> None:
        self._storage: Final = storage
        self._limits = limits
        self._disk: Final = disk_cache
        self._throttle: Final = throttle
        # Those used last at the end.
        self._memory: OrderedDict[PartKey, bytes] = OrderedDict()
        # The size of all of them: never above the limit, but for a part that is larger alone.
        self._memory_bytes = 0
        self._loads: dict[PartKey, asyncio.Task[bytes]] = {}
        # Loads that fetch from the store, never more than the limit when they began.
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def resize(self, loads_at_once: int) -> None:
        """Fetch so many parts at a time from now on."""
        self._limits = replace(self._limits, loads_at_once=loads_at_once)
        self._wake()

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    @property
    def loads(self) -> int:
        """Loads that are under way or wait."""
        return len(self._loads)

    async def index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """Return an index of a segment. That of transactions is empty where it has none; of a segment that is
        being deleted it is not known which were aborted.
        """

        async def fetch() -> bytes:
            try:
                return await self._storage.fetch_index(metadata, index_type)
            except RemoteResourceNotFound:
                if index_type is not IndexType.TRANSACTION:
                    raise
                await self._storage.fetch_index(metadata, IndexType.OFFSET)
                return b""

        return await self._part((metadata.id.id, index_type), fetch)

    async def read(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        """Return the bytes of a segment's records from `start` to before `end`, fewer at its end."""
        size = self._limits.chunk_bytes
        end = min(end, metadata.segment_size_in_bytes)
        if start >= end:
            return b""
        first, last = start // size, (end - 1) // size
        parts = [await self._chunk(metadata, number) for number in range(first, last + 1)]
        self.load_ahead(metadata, last + 1)
        if first == last:
            return parts[0][start - first * size : end - first * size]
        parts[-1] = parts[-1][: end - last * size]
        parts[0] = parts[0][start - first * size :]
        return b"".join(parts)

    async def _chunk(self, metadata: RemoteLogSegmentMetadata, number: int) -> bytes:
        start = number * self._limits.chunk_bytes
        end = min(start + self._limits.chunk_bytes, metadata.segment_size_in_bytes)
        data = await self._part((metadata.id.id, number), self._fetch_of(metadata, start, end))
        if len(data) != end - start:
            raise RemoteStorageError(
                f"{metadata.id} has {len(data)} of the bytes from {start} to {end}; its object was changed"
            )
        return data

    def _fetch_of(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Callable[[], object]:
        return lambda: self._storage.fetch_log_segment(metadata, start, end)

    def load_ahead(self, metadata: RemoteLogSegmentMetadata, number: int) -> None:
        """Begin to load a chunk that will be wanted next, unless there is none or others wait."""
        if number * self._limits.chunk_bytes >= metadata.segment_size_in_bytes:
            return
        key = metadata.id.id, number
        if key in self._memory or key in self._loads or len(self._loads) >= self._limits.loads_at_once:
            return
        if self._disk is not None and key in self._disk:
            return
        start = number * self._limits.chunk_bytes
        end = min(start + self._limits.chunk_bytes, metadata.segment_size_in_bytes)
        self._begin_load(key, self._fetch_of(metadata, start, end))

    async def _part(self, key: PartKey, fetch: Callable[[], object]) -> bytes:
        data = self._memory.get(key)
        if data is not None:
            self._memory.move_to_end(key)
            return data
        load = self._loads.get(key)
        if load is None:
            if len(self._waiting) >= self._limits.max_pending_loads:
                raise TooManyRemoteReads(
                    f"{len(self._waiting)} reads wait for remote storage already; see "
                    "remote.log.reader.max.pending.tasks and remote.log.reader.threads"
                )
            load = self._begin_load(key, fetch)
        return await asyncio.shield(load)

    def _begin_load(self, key: PartKey, fetch: Callable[[], object]) -> asyncio.Task[bytes]:
        load = asyncio.get_running_loop().create_task(self._load(key, fetch), name="remote read")
        self._loads[key] = load
        load.add_done_callback(lambda done: self._on_load_ended(key, done))
        return load

    async def _load(self, key: PartKey, fetch: Callable[[], object]) -> bytes:
        if self._disk is not None and (known := await self._disk.get(key)) is not None:
            self._keep(key, known)
            return known
        await self._begin()
        try:
            while self._throttle is not None and (pause_ms := self._throttle.throttle_ms()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(min(pause_ms, _MAX_PAUSE_MS) / 1000)
            async with asyncio.timeout(self._limits.load_timeout_s):
                data = bytes(await fetch())  # type: ignore[misc]
        except TimeoutError:
            raise RemoteStorageError(
                f"Remote storage did not answer within {self._limits.load_timeout_s:g} s"
            ) from None
        finally:
            self._running -= 1
            self._wake()
        if self._throttle is not None:
            self._throttle.record(len(data))
        self._keep(key, data)
        if self._disk is not None:
            await self._disk.put(key, data)
        return data

    async def _begin(self) -> None:
        """Wait until fewer loads than the limit are under way, first come first served."""
        if self._running < self._limits.loads_at_once and not self._waiting:
            self._running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._running -= 1
            elif turn in self._waiting:
                self._waiting.remove(turn)
            self._wake()
            raise

    def _wake(self) -> None:
        while self._waiting and self._running < self._limits.loads_at_once:
            turn = self._waiting.popleft()
            if not turn.done():
                self._running += 1
                turn.set_result(None)

    def _on_load_ended(self, key: PartKey, load: asyncio.Task[bytes]) -> None:
        if self._loads.get(key) is load:
            del self._loads[key]
        if not load.cancelled():
            load.exception()  # readers have it; if there are none, the next one meets it again

    def _keep(self, key: PartKey, data: bytes) -> None:
        before = self._memory.pop(key, None)
        self._memory[key] = data
        self._memory_bytes += len(data) - (0 if before is None else len(before))
        while self._memory_bytes > self._limits.memory_bytes and len(self._memory) > 1:
            _, gone = self._memory.popitem(last=False)
            self._memory_bytes -= len(gone)

    async def close(self) -> None:
        """Stop the loads that are under way."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)


class DiskPartCache:
    """Parts in files of one directory, those used last up to a number of bytes. A part that cannot be written
    or read is not in it: the store has it.
    """

    __slots__ = ("_bytes", "_disk", "_is_open", "_path", "_pool", "_sizes", "max_bytes")

    def __init__(self, disk: Disk, pool: Pool, path: str, max_bytes: int) -> None:
        """The directory is made, or emptied, when the first part is put into it."""
        self._disk: Final = disk
        self._pool: Final = pool
        self._path: Final = path
        self.max_bytes = max_bytes
        # By key, those used last at the end.
        self._sizes: OrderedDict[PartKey, int] = OrderedDict()
        self._bytes = 0
        self._is_open = False

    def __contains__(self, key: PartKey) -> bool:
        return key in self._sizes

    @property
    def size(self) -> int:
        return self._bytes

    def _open(self) -> None:
        """Make the directory, or remove what an earlier run has left in it."""
        if self._is_open:
            return
        self._is_open = True
        self._disk.make_dirs(self._path)
        for name in self._disk.list_dir(self._path):
            path = posixpath.join(self._path, name)
            if not self._disk.is_dir(path):
                self._disk.unlink(path)

    async def get(self, key: PartKey) -> bytes | None:
        size = self._sizes.get(key)
        if size is None:
            return None
        try:
            data = await self._pool.run(read_file, self._disk, self._file(key))
        except OSError as error:
            _log.info("a part of a remote segment is read from the store again: %s", error)
            self._forget(key)
            return None
        if len(data) != size:
            self._forget(key)
            return None
        if key in self._sizes:
            self._sizes.move_to_end(key)
        return data

    async def put(self, key: PartKey, data: bytes) -> None:
        if len(data) > self.max_bytes or key in self._sizes:
            return
        gone = []
        while self._sizes and self._bytes + len(data) > self.max_bytes:
            oldest, size = self._sizes.popitem(last=False)
            self._bytes -= size
            gone.append(self._file(oldest))
        self._bytes += len(data)  # reserved before it is written, so that the bound holds meanwhile
        try:
            await self._pool.run(self._write, gone, self._file(key), data)
        except OSError as error:
            self._bytes -= len(data)
            _log.info("a part of a remote segment is not kept on disk: %s", error)
            return
        except BaseException:
            self._bytes -= len(data)
            raise
        self._sizes[key] = len(data)

    def _write(self, gone: list[str], path: str, data: bytes) -> None:
        self._open()
        for each in gone:
            with suppress(FileNotFoundError):
                self._disk.unlink(each)
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
        except OSError:
            with suppress(OSError):
                self._disk.unlink(path)
            raise
        finally:
            file.close()

    def _forget(self, key: PartKey) -> None:
        self._bytes -= self._sizes.pop(key, 0)

    def _file(self, key: PartKey) -> str:
        segment, part = key
        suffix = part.value if isinstance(part, IndexType) else f"{part:08d}.log"
        return posixpath.join(self._path, f"{uuid_text(segment)}.{suffix}")
