"""Make new logs durable without a sync for each partition on the event loop.

The creation of a log is durable once its directory, its first segment and its topic id are. Until then the
log holds no record, for every change of a log completes its creation first. So a crash before that loses
nothing: it leaves an empty log without a topic id, or no log at all, and the metadata, which were committed
before the log was made, say to which topic it belongs. Most creations are completed in the pool right after
the log was made, many at a time (`LogManager.complete_log_creations`), in steps like those of a checkpoint:
`write` and `sync` in any thread, `install` between them on the event loop, which knows whether the log is
still where it was.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from dataclasses import dataclass

from ottla.log.directory import checkpoints
from ottla.log.directory.checkpoints import PARTITION_METADATA
from ottla.runtime.disk import Disk


@dataclass(frozen=True, slots=True)
class LogCreation:
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
        """Write the id beside the file that it belongs to."""
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
        """Give the written id the name of the file."""
        self.disk.rename(self.staged, posixpath.join(self.dir, PARTITION_METADATA))

    def sync(self) -> None:
        """Make the names in the log's directory durable."""
        with suppress(FileNotFoundError):
            self.disk.sync_dir(self.dir)
