"""The metadata log as a source of messages, from its files: no client can fetch it from a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from ottla.console.files.partition_files import batches_from, end_offset, indexed_position
from ottla.console.messages.source import POLL_MS, POLL_RECORDS, Bounds, RecordReader
from ottla.log.segment.file_names import LOG, parse_segment_file
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import CLUSTER_METADATA_TOPIC
from ottla.records._kernel import ConsumerRecord
from ottla.records.batch import BatchHeader, read_records
from ottla.runtime.disk import Disk
from ottla.runtime.pool import Pool

_POLL_BYTES: Final = 4 * 1024 * 1024


class MetadataLogSource:
    topic: Final = CLUSTER_METADATA_TOPIC

    def __init__(self, disk: Disk, pool: Pool, directory: str) -> None:
        self._disk: Final = disk
        self._pool: Final = pool
        self._directory: Final = directory

    async def bounds(self, partitions: Iterable[int] | None) -> Bounds:
        if partitions is not None and any(partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the metadata log has the partition 0 only"
            )
        return {0: await self._pool.run(self._bounds)}

    def _bounds(self) -> tuple[int, int]:
        bases = self._segments()
        return (bases[0], end_offset(self._disk, self._directory, bases[-1])) if bases else (0, 0)

    def _segments(self) -> list[int]:
        parsed = (parse_segment_file(name) for name in self._disk.list_dir(self._directory))
        return sorted(each.offset for each in parsed if each and each.kind == LOG and not each.suffix)

    async def offsets_at(self, partitions: Iterable[int], time_ms: int) -> dict[int, int | None]:
        return {0: await self._pool.run(self._offset_at, time_ms)}

    def _offset_at(self, time_ms: int) -> int | None:
        for base in self._segments():
            for _, header in batches_from(self._disk, self._directory, base, 0):
                if isinstance(header, BatchHeader) and header.max_timestamp >= time_ms:
                    return header.base_offset
        return None

    @asynccontextmanager
    async def open(self, *, live: bool = False, whole: bool = False) -> AsyncIterator[RecordReader]:
        yield _FileReader(self)

    def read(self, offset: int) -> tuple[list[ConsumerRecord[bytes, bytes]], int]:
        """The next messages from an offset on, and the offset after them."""
        found: list[ConsumerRecord[bytes, bytes]] = []
        size = 0
        bases = self._segments()
        for number, base in enumerate(bases):
            if number + 1 < len(bases) and bases[number + 1] <= offset:
                continue
            start = indexed_position(self._disk, self._directory, base, offset)
            for position, header in batches_from(self._disk, self._directory, base, start):
                if not isinstance(header, BatchHeader):
                    break
                if header.last_offset < offset:
                    continue
                found += self._records(base, position, header, offset)
                offset = header.last_offset + 1
                size += header.size
                if len(found) >= POLL_RECORDS or size >= _POLL_BYTES:
                    return found, offset
        return found, offset

    def _records(
        self, base: int, position: int, header: BatchHeader, offset: int
    ) -> list[ConsumerRecord[bytes, bytes]]:
        if header.is_control:
            return []
        file = self._disk.open(f"{self._directory}/{base:020d}{LOG}", writable=False)
        try:
            records = read_records(file.pread(header.size, position))
        except KafkaError:
            return []  # torn, or damaged: `ottla log dump` says how
        finally:
            file.close()
        return [
            ConsumerRecord(
                self.topic,
                0,
                each.offset,
                each.timestamp,
                each.key,
                each.value,
                each.headers,
                0,
                header.leader_epoch,
            )
            for each in records
            if each.offset >= offset
        ]

    async def read_in_pool(self, offset: int) -> tuple[list[ConsumerRecord[bytes, bytes]], int]:
        return await self._pool.run(self.read, offset)


class _FileReader:
    def __init__(self, source: MetadataLogSource) -> None:
        self._source = source
        self._position: int | None = None
        self.problems: list[str] = []

    async def poll(self) -> list[ConsumerRecord[bytes, bytes]]:
        if self._position is None:
            return []
        found, self._position = await self._source.read_in_pool(self._position)
        if not found:
            await asyncio.sleep(POLL_MS / 1000)
        return found

    def positions(self) -> dict[int, int]:
        return {} if self._position is None else {0: self._position}

    def seek(self, positions: Mapping[int, int]) -> None:
        self._position = positions.get(0)
