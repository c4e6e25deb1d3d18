"""How a new log becomes part of the disk, without a sync for each partition on the event loop.

A new log is settled once its directory, its first segment and its topic id are durable. Until then it holds
no record, for every change of a log settles it first. So a crash before that loses nothing: whatever it
leaves is an empty log without a topic id, or no log at all, and the metadata, which were committed before the
log was made, say to which topic it belongs. Most logs are settled in the pool right after they were made,
many at a time, in steps like those of a checkpoint: `write` and `sync` in any thread, the change of names
between them on the event loop, which knows whether the log is still where it was.
"""

from __future__ import annotations

import logging
import posixpath
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.log.directory import checkpoints
from ottla.log.files import PARTITION_METADATA
from ottla.protocol.errors import KafkaError
from ottla.runtime.disk import Disk
from ottla.runtime.pool import Pool

if TYPE_CHECKING:
    from ottla.log.unified_log import UnifiedLog

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Logs that one call in the pool settles."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The topic id of a new log on its way to the disk. A log that was deleted meanwhile needs none of it."""

    disk: Disk
    dir: str
    topic_id: bytes
    names_version: int
    """How often the files of the log had changed when this was made."""

    @property
    def staged(self) -> str:
        # With the id in its name: a later topic of the same name has the same directory.
        return posixpath.join(self.dir, f"{PARTITION_METADATA}.{self.topic_id.hex()}.tmp")

    def write(self) -> None:
        """Put the id beside the place where it belongs."""
        with suppress(FileNotFoundError):
            file = self.disk.open(self.staged, create=True)
            try:
                file.pwrite(checkpoints.encode_topic_id(self.topic_id), 0)
                file.sync()
            except OSError:
                with suppress(OSError):
                    self.disk.unlink(self.staged)
                raise
            finally:
                file.close()

    def install(self) -> None:
        self.disk.rename(self.staged, posixpath.join(self.dir, PARTITION_METADATA))

    def sync(self) -> None:
        with suppress(FileNotFoundError):
            self.disk.sync_dir(self.dir)


async def settle(logs: deque[UnifiedLog], pool: Pool) -> None:
    """Settle the logs of a queue, and those that join it meanwhile, off the event loop."""
    while logs:
        part = [logs.popleft() for _ in range(min(_AT_ONCE, len(logs)))]
        found = [(log, log.settlement()) for log in part if log.directory.is_online]
        pending = [(log, settlement) for log, settlement in found if settlement is not None]
        try:
            await pool.run(_write_all, [settlement for _, settlement in pending])
            installed = [(log, settlement) for log, settlement in pending if log.install(settlement)]
            await pool.run(_sync_all, [settlement for _, settlement in installed])
        except (KafkaError, OSError) as error:
            # The first record of each settles it, or meets the same error.
            _log.warning("new logs could not be made durable yet: %s", error)
            continue
        for log, settlement in installed:
            log.settled(settlement)


def _write_all(settlements: Iterable[Settlement]) -> None:
    for settlement in settlements:
        settlement.write()


def _sync_all(settlements: Iterable[Settlement]) -> None:
    for settlement in settlements:
        settlement.sync()
