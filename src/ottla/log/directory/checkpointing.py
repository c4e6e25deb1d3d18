"""What the checkpoints of a log directory are to say, and how they get there from time to time.

The event loop says what there is to write and gives it its name; what blocks runs in the pool. A disk that
fails is told to the directory and to the log, not to the caller: the next time may go better, and if not, the
directory is offline.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ottla.log.directory import checkpoints
from ottla.log.directory.directory import LogDirectory
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.names import CLUSTER_METADATA_TOPIC, TopicPartition
from ottla.runtime.pool import Pool

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryOffsets:
    directory: LogDirectory
    logs: Sequence[UnifiedLog]
    """All its logs."""
    refused: Collection[TopicPartition]
    """Those that could not be loaded: what the checkpoints say of them stays."""

    def recovery_points(self) -> dict[TopicPartition, int]:
        kept = self._kept(self.directory.recovery_points.offsets)
        return kept | {log.topic_partition: log.recovery_point for log in self.logs}

    def log_starts(self) -> dict[TopicPartition, int]:
        """Those that do not follow from the names of files."""
        kept = self._kept(self.directory.log_starts.offsets)
        return kept | {
            log.topic_partition: log.log_start_offset
            for log in self.logs
            if log.log_start_offset > log.segments[0].base_offset or not log.local_log.names_synced
        }

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {log.topic_partition: log.high_watermark for log in self.logs}

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        path = posixpath.join(self.directory.path, checkpoints.HIGH_WATERMARKS)
        checkpoints.write_offsets(self.directory.disk, path, offsets)

    def _kept(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """What a checkpoint says of logs that are not ours to judge: refused ones, and the metadata log."""
        return {
            partition: offset
            for partition, offset in offsets.items()
            if partition.topic == CLUSTER_METADATA_TOPIC or partition in self.refused
        }

    # From time to time

    async def checkpoint_recovery_points(self, pool: Pool) -> None:
        await self._checkpoint(self.directory.recovery_points, self.recovery_points(), pool)

    async def checkpoint_log_starts(self, pool: Pool) -> None:
        await self._checkpoint(self.directory.log_starts, self.log_starts(), pool)

    async def checkpoint_high_watermarks(self, pool: Pool) -> None:
        await self._guarded(pool.run(self.write_high_watermarks, self.high_watermarks()))

    async def _checkpoint(
        self, checkpoint: checkpoints.OffsetCheckpoint, offsets: Mapping[TopicPartition, int], pool: Pool
    ) -> None:
        staged = checkpoint.stage(offsets)
        if staged is None or not await self._guarded(pool.run(staged.write)):
            return
        try:
            installed = checkpoint.install(staged)
        except OSError as error:
            _log.error("%s", self.directory.io_error("installing a checkpoint", error).message)
            return
        if installed and await self._guarded(pool.run(staged.settle)):
            checkpoint.settled(staged)

    async def _guarded(self, work: Awaitable[object]) -> bool:
        try:
            await work
        except OSError as error:
            _log.error("%s", self.directory.io_error("writing a checkpoint", error).message)
            return False
        return True
