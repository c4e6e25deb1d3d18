"""Making a log durable, in three steps so that the slow one can run off the event loop.

`UnifiedLog.prepare_flush` notes what there is to sync; `FlushPlan.run` syncs it, in any thread;
`UnifiedLog.complete_flush` moves the recovery point, unless the log was cut meanwhile. Closed segments are
synced with their indexes; of the active one only the batches, as recovery builds its indexes anew. Before the
recovery point moves, the leader epochs that begin below it are durable too, and so are the names of the
files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ottla.log.epochs.leader_epoch_cache import EpochEntry
from ottla.log.segment.handles import is_lack_of_handles
from ottla.log.segment.segment import LogSegment
from ottla.runtime.disk import Disk


class SyncFailed(Exception):
    """The disk could not make durable what it had taken; nothing written since the last good sync counts."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class FlushPlan:
    disk: Disk
    dir: str
    """The directory of the log."""
    upto: int
    """The recovery point once this is done."""
    generation: int
    """How often the log had been cut when the plan was made."""
    whole: list[LogSegment]
    """To be synced with their indexes."""
    active: LogSegment | None
    """To be synced without them."""
    dirs: list[str]
    """Directories whose names are to be synced, children first."""
    names_version: int
    writes: list[Callable[[], object]] = field(default_factory=list)
    """What else must be durable: leader epochs, producer snapshots."""
    epochs: tuple[EpochEntry, ...] | None = None
    """The leader epochs that are written, if they are."""
    epochs_version: int = 0
    """How many writes of the leader epochs had been planned with this one."""
    snapshots: tuple[int, ...] = ()
    """The producer snapshots that are synced, by their offsets."""
    abandoned: bool = False
    """True if the files were no longer there."""

    def run(self) -> None:
        """Sync it all; SyncFailed where that failed, OSError where something could not be written."""
        for segment in self.whole:
            # Without room the entries of an index that was built anew still wait in memory.
            segment.flush_indexes()
        try:
            for segment in self.whole:
                segment.sync()
            if self.active is not None:
                self.active.sync_log()
        except OSError as error:
            raise _failure(error) from error
        for write in self.writes:
            write()
        try:
            for dir in self.dirs:
                with suppress(FileNotFoundError):  # renamed for deletion meanwhile: nothing is left to keep
                    self.disk.sync_dir(dir)
        except OSError as error:
            raise _failure(error) from error


def _failure(error: OSError) -> Exception:
    """A file that could not even be opened was not told to sync."""
    return error if is_lack_of_handles(error) else SyncFailed(error)
