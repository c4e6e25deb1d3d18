"""Remote storage in an object store, in the layout of `ottla.remote.object_layout`.

The manifest is written last, so a segment that has one is complete. An upload that fails leaves objects that
only its own id names; deleting the segment deletes them, however far the upload had come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from ottla.protocol.names import TopicPartition, parse_uuid
from ottla.remote.object_layout import (
    DEFAULT_CHUNK_SIZE,
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    MANIFEST_SUFFIX,
    SUFFIXES,
    SegmentManifest,
    decode_manifest,
    decode_manifest_metadata,
    encode_manifest,
    indexes_object,
    object_key,
    partition_prefix,
)
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from ottla.remote.storage_manager import IndexType, LogSegmentData
from ottla.runtime.object_store import FileContent, ObjectNotFound, ObjectStore, ObjectStoreError

_log = logging.getLogger(__name__)

# Longer than the time after which a store over the network gives a request up by itself.
DEFAULT_STALL_MS: Final = 150_000
_MAX_MANIFESTS: Final = 1_000
# Keys of a list that are looked at in one turn of the event loop, and manifests that are read at once.
_KEYS_AT_ONCE: Final = 256
_STALLS_OF_A_LIST: Final = 10
# A trial of the store takes no longer for each of its two steps.
_MAX_TRIAL_S: Final = 30.0
_MANIFESTS_AT_ONCE: Final = 16


class ObjectStoreStatistics:
    """What the store was asked for, for metrics."""

    __slots__ = ("errors", "read_bytes", "reads", "timeouts", "under_way")

    def __init__(self) -> None:
        self.reads = self.read_bytes = self.errors = self.timeouts = 0
        # When each of the operations under way began or last made progress, by the time of the event loop.
        self.under_way: dict[object, float] = {}

    def longest_wait_s(self) -> float:
        """For how long the operation has waited that waits longest; it grows while the store hangs."""
        if not self.under_way:
            return 0.0
        return max(0.0, asyncio.get_running_loop().time() - min(self.under_way.values()))


class ObjectStorageManager:
    """`RemoteStorageManager` over an object store."""

    __slots__ = ("_chunk_size", "_manifests", "_prefix", "_stall_s", "_store", "statistics")

    def __init__(
        self,
        store: ObjectStore,
        *,
        prefix: str = "",
        chunk_size: int = DEFAULT_CHUNK_SIZE,
        stall_ms: int = DEFAULT_STALL_MS,
    ) -> None:
        """An operation fails that makes no progress for `stall_ms`."""
        self._store = store
        self._prefix = prefix
        self._chunk_size = chunk_size
        # By key, the ones used last at the end. A manifest never changes.
        self._manifests: OrderedDict[str, SegmentManifest] = OrderedDict()
        self._stall_s = stall_ms / 1000
        self.statistics = ObjectStoreStatistics()

    @asynccontextmanager
    async def _operation(self, limit_s: float | None = None) -> AsyncIterator[Callable[[], None]]:
        """Bound the time of an operation of the store; what it yields is to be called at each progress."""
        loop, under_way, key = asyncio.get_running_loop(), self.statistics.under_way, object()
        limit_s = self._stall_s if limit_s is None else limit_s
        under_way[key] = loop.time()
        try:
            async with asyncio.timeout(limit_s) as limit:

                def on_progress() -> None:
                    # The library may ask for more of what it has given up.
                    if key in under_way and not limit.expired():
                        under_way[key] = now = loop.time()
                        limit.reschedule(now + limit_s)

                yield on_progress
        except TimeoutError:
            self.statistics.timeouts += 1
            raise ObjectStoreError(f"the store did not answer for {limit_s:g} s") from None
        finally:
            del under_way[key]

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        indexes, places = indexes_object(data)
        manifest = SegmentManifest(data.log_size, self._chunk_size, places)
        try:
            async with self._operation() as on_progress:
                pieces = data.log()
                if isinstance(pieces, FileContent):
                    pieces.on_progress = on_progress
                else:
                    pieces = _observed(pieces, on_progress)
                await self._store.put(self._key(metadata, LOG_SUFFIX), pieces, data.log_size)
            await self._put(self._key(metadata, INDEXES_SUFFIX), indexes)
            await self._put(self._key(metadata, MANIFEST_SUFFIX), encode_manifest(manifest, metadata))
        except ObjectStoreError as error:
            self.statistics.errors += 1
            raise RemoteStorageError(f"Copying {metadata.id} to remote storage failed: {error}") from error
        return None

    async def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        end = min(end, metadata.segment_size_in_bytes)
        if start >= end:
            return b""
        await self._manifest(metadata)
        return await self._get_range(self._key(metadata, LOG_SUFFIX), start, end)

    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        manifest = await self._manifest(metadata)
        place = manifest.indexes.get(index_type)
        if place is None:
            raise RemoteResourceNotFound(f"{metadata.id} has no {index_type.name} index")
        position, size = place
        if not size:
            return b""
        key = self._key(metadata, INDEXES_SUFFIX)
        data = await self._get_range(key, position, position + size)
        if len(data) != size:
            raise RemoteStorageError(
                f"{key} has {len(data)} of the {size} bytes of its {index_type.name} index"
            )
        return data

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        # The manifest first: without it the segment is not complete, whatever else is left.
        keys = [self._key(metadata, suffix) for suffix in reversed(SUFFIXES)]
        self._manifests.pop(keys[0], None)
        try:
            async with self._operation():
                await self._store.delete(keys)
        except ObjectStoreError as error:
            self.statistics.errors += 1
            raise RemoteStorageError(f"Deleting {metadata.id} from remote storage failed: {error}") from error

    async def list_log_segments(
        self, topic_id: bytes, topic_partition: TopicPartition, is_known: Callable[[RemoteLogSegmentId], bool]
    ) -> list[RemoteLogSegmentMetadata]:
        prefix = partition_prefix(self._prefix, topic_id, topic_partition)
        try:
            # A list may come in many parts.
            async with self._operation(self._stall_s * _STALLS_OF_A_LIST):
                objects = await self._store.list_objects(prefix)
        except ObjectStoreError as error:
            raise self._read_error(error) from error
        unknown: list[str] = []
        sizes: dict[str, int] = {}
        for number, (key, size) in enumerate(objects, 1):
            name, _, suffix = key.removeprefix(prefix).partition(".")
            if suffix == LOG_SUFFIX:
                sizes[key] = size
            elif suffix == MANIFEST_SUFFIX:
                id = _segment_id(name)
                if id is not None and not is_known(RemoteLogSegmentId(topic_id, topic_partition, id)):
                    unknown.append(key)
            if number % _KEYS_AT_ONCE == 0:
                await asyncio.sleep(0)
        found: list[RemoteLogSegmentMetadata] = []
        for at in range(0, len(unknown), _MANIFESTS_AT_ONCE):
            some = await asyncio.gather(
                *(self._described(key) for key in unknown[at : at + _MANIFESTS_AT_ONCE])
            )
            # One that was deleted while its writer was paused may have the objects that were written later.
            found += [
                each
                for each in some
                if each is not None and sizes.get(self._key(each, LOG_SUFFIX)) == each.segment_size_in_bytes
            ]
        return found

    async def delete_partition_data(self, topic_id: bytes, topic_partition: TopicPartition) -> int:
        prefix = partition_prefix(self._prefix, topic_id, topic_partition)
        try:
            async with self._operation(self._stall_s * _STALLS_OF_A_LIST):
                objects = await self._store.list_objects(prefix)
            for at in range(0, len(objects), _KEYS_AT_ONCE):
                keys = [key for key, _ in objects[at : at + _KEYS_AT_ONCE]]
                async with self._operation(self._stall_s * _STALLS_OF_A_LIST):
                    await self._store.delete(keys)
        except ObjectStoreError as error:
            self.statistics.errors += 1
            raise RemoteStorageError(
                f"Deleting the objects of {topic_partition} from remote storage failed: {error}"
            ) from error
        return len(objects)

    async def try_store(self, name: str) -> None:
        """Write a small object of this name, and delete it."""
        key, limit_s = f"{self._prefix}{name}", min(self._stall_s, _MAX_TRIAL_S)
        try:
            await self._put(key, b"ottla", limit_s)
            async with self._operation(limit_s):
                await self._store.delete([key])
        except ObjectStoreError as error:
            self.statistics.errors += 1
            raise RemoteStorageError(str(error)) from error

    async def _described(self, key: str) -> RemoteLogSegmentMetadata | None:
        """The segment that a manifest describes; None if it is none of ours, or was deleted."""
        try:
            async with self._operation():
                data = await self._store.get(key)
            metadata = decode_manifest_metadata(data, key)
        except ObjectNotFound:
            return None
        except ObjectStoreError as error:
            raise self._read_error(error) from error
        except RemoteStorageError as error:
            _log.warning("a segment in remote storage is passed over: %s", error.message)
            return None
        return metadata if self._key(metadata, MANIFEST_SUFFIX) == key else None

    def _key(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
        return object_key(self._prefix, metadata, suffix)

    async def _manifest(self, metadata: RemoteLogSegmentMetadata) -> SegmentManifest:
        key = self._key(metadata, MANIFEST_SUFFIX)
        manifest = self._manifests.get(key)
        if manifest is None:
            try:
                async with self._operation():
                    data = await self._store.get(key)
            except ObjectStoreError as error:
                raise self._read_error(error) from error
            self._count(data)
            manifest = self._manifests[key] = decode_manifest(data, key)
            if len(self._manifests) > _MAX_MANIFESTS:
                self._manifests.popitem(last=False)
        else:
            self._manifests.move_to_end(key)
        return manifest

    async def _get_range(self, key: str, start: int, end: int) -> bytes:
        try:
            async with self._operation():
                data = await self._store.get_range(key, start, end)
        except ObjectStoreError as error:
            raise self._read_error(error) from error
        self._count(data)
        return data

    def _count(self, data: bytes) -> None:
        self.statistics.reads += 1
        self.statistics.read_bytes += len(data)

    def _read_error(self, error: ObjectStoreError) -> RemoteStorageError:
        self.statistics.errors += 1
        if isinstance(error, ObjectNotFound):
            return RemoteResourceNotFound(str(error))
        return RemoteStorageError(str(error))

    async def _put(self, key: str, data: bytes, limit_s: float | None = None) -> None:
        async def whole() -> AsyncIterator[bytes]:
            yield data

        async with self._operation(limit_s):
            await self._store.put(key, whole(), len(data))


async def _observed(pieces: AsyncIterable[bytes], on_progress: Callable[[], None]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        on_progress()
        yield piece


def _segment_id(name: str) -> bytes | None:
    """The id of a segment in the name of its objects, `<start offset>-<id>`; None if there is none."""
    try:
        return parse_uuid(name.partition("-")[2])
    except ValueError:
        return None
