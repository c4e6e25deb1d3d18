"""The clean shutdown of a log directory: everything durable, and a mark that says so.

What all its logs share is done once and first: their names in the directory, and the log starts that their
leader epochs begin with. Then they are closed side by side, many at a time in the pool: most of that time is
spent waiting for the disk, which completes many syncs at once about as fast as one. The checkpoints follow,
and at last the mark, so that it is never there without the rest. Where any of it fails there is no mark, and
the next start recovers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from ottla.log.directory import checkpoints
from ottla.log.directory.checkpointing import DirectoryOffsets
from ottla.log.directory.directory import LogDirectory
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import KafkaError
from ottla.runtime.pool import Pool

_log = logging.getLogger(__name__)

_AT_ONCE = 16
"""Logs that one call in the pool closes."""


async def close_logs(directory: LogDirectory, logs: Sequence[UnifiedLog], pool: Pool) -> bool:
    """Close all logs of a directory; True if all could be closed."""
    if not await pool.run(_prepare, directory, logs):
        return False
    parts = (logs[start : start + _AT_ONCE] for start in range(0, len(logs), _AT_ONCE))
    return all(await asyncio.gather(*(pool.run(_close, part) for part in parts)))


def _prepare(directory: LogDirectory, logs: Sequence[UnifiedLog]) -> bool:
    """Do once what each log would do for itself."""
    new = [log for log in logs if not log.local_log.parent_synced]
    try:
        if new:
            directory.disk.sync_dir(directory.path)
            for log in new:
                log.local_log.parent_synced = True
        starts = {
            log.topic_partition: log.log_start_offset
            for log in logs
            if log.log_start_offset > (directory.log_start(log.topic_partition) or 0)
        }
        if starts:
            directory.set_log_starts(starts)
    except OSError as error:
        _log.error("%s", directory.io_error("closing the directory", error).message)
        return False
    return True


def _close(logs: Iterable[UnifiedLog]) -> bool:
    sound = True
    for log in logs:
        try:
            log.close()
        except KafkaError as error:
            _log.error("%s could not be closed: %s", log.topic_partition, error.message)
            sound = False
    return sound


def seal(offsets: DirectoryOffsets, broker_epoch: int) -> None:
    """Write the last checkpoints, and that the shutdown was clean."""
    directory = offsets.directory
    try:
        directory.write_recovery_points(offsets.recovery_points())
        directory.write_log_starts(offsets.log_starts())
        offsets.write_high_watermarks(offsets.high_watermarks())
        if offsets.refused:
            _log.warning("%s has a damaged log and will be recovered at the next start", directory.path)
        else:
            checkpoints.write_clean_shutdown(directory.disk, directory.path, broker_epoch)
    except OSError as error:
        _log.error("%s", directory.io_error("closing the directory", error).message)
