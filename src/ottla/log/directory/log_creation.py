"""Make new logs durable without a sync for each partition on the event loop.

The creation of a log is durable once its directory, its first segment and its topic id are. Until then the
log holds no record, for every change of a log completes its creation first. So a crash before that loses
nothing: it leaves an empty log without a topic id, or no log at all, and the metadata, which were committed
before the log was made, say to which topic it belongs. Most creations are completed in the pool right after
the log was made, many at a time (`LogManager.complete_log_creations`). The event loop cancels that before it
gives the log's directory another name, as a later log of the same name has a directory of the same name.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from typing import Final

from ottla.log.directory import checkpoints
from ottla.log.directory.checkpoints import PARTITION_METADATA
from ottla.runtime.disk import Disk
from ottla.runtime.pool import CallOnce


class LogCreation:
    """The topic id of a new log on its way to the disk: `write`, `install` and `sync`, in any thread, also
    in several of them. A log that was deleted meanwhile needs none of it.
    """

    __slots__ = (
        "_installation",
        "_staged",
        "_writing",
        "dir",
        "disk",
        "is_durable",
        "is_installed",
        "names_version",
        "topic_id",
    )

    def __init__(self, disk: Disk, dir: str, topic_id: bytes, names_version: int) -> None:
        """`names_version` says how often the files of the log have changed."""
        self.disk: Final = disk
        self.dir: Final = dir
        self.topic_id: Final = topic_id
        self.names_version: Final = names_version
        self.is_installed = self.is_durable = False
        # With the id in its name: a later topic of the same name has the same directory.
        self._staged: Final = posixpath.join(dir, f"{PARTITION_METADATA}.{topic_id.hex()}.tmp")
        self._writing: Final = CallOnce(self._write)
        self._installation: Final = CallOnce(self._rename)

    def write(self) -> None:
        """Write the id beside the file that it belongs to."""
        self._writing()

    def _write(self) -> None:
        with suppress(FileNotFoundError):
            file = self.disk.open(self._staged, create=True)
            try:
                file.pwrite(checkpoints.encode_topic_id(self.topic_id), 0)
                file.sync()
            except OSError:
                with suppress(OSError):
                    self.disk.unlink(self._staged)
                raise
            finally:
                file.close()

    def install(self) -> None:
        """Give the written id the name of the file, unless that is no longer wanted."""
        self.is_installed = self._installation()

    def _rename(self) -> bool:
        try:
            self.disk.rename(self._staged, posixpath.join(self.dir, PARTITION_METADATA))
        except FileNotFoundError:
            return False
        return True

    def cancel(self) -> None:
        """Let the file be as it is from now on: its directory is about to be another, or closed."""
        self._installation.settle(False)

    def sync(self) -> None:
        """Make the names in the log's directory durable."""
        if self.is_installed:
            with suppress(FileNotFoundError):
                self.disk.sync_dir(self.dir)
            self.is_durable = True

    def complete(self) -> None:
        """Do all three steps."""
        self.write()
        self.install()
        self.sync()
