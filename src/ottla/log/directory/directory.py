"""A log directory: the state that its partitions share, and whether it can be used at all.

A directory goes offline with the first I/O error that is not a lack of room, and stays so until the node
starts again: after a failed write or sync it is unknown what the disk holds. The other directories go on.

It also keeps the two checkpoints that make a crash safe, `recovery-point-offset-checkpoint` and
`log-start-offset-checkpoint`, and that of the cleaner, and knows what is durable in them. Three rules hold.
Before a log is truncated below its durable recovery point, that point is lowered, so what lies below the
recovery point was synced and has not been touched since; and so is the offset up to which it is clean. Before
segments are removed from the front, the durable log start is raised above them, so it does not matter which
of the removals survive a crash. A log that leaves the directory leaves the checkpoints too, before there is
another one of its name.
"""

from __future__ import annotations

import heapq
import logging
import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping

from ottla.log.directory import checkpoints
from ottla.log.directory.checkpoints import HighWatermarkCheckpoint, OffsetCheckpoint
from ottla.log.directory.offset_changes import OffsetChange, OffsetChanges
from ottla.log.segment.handles import FileHandles, is_lack_of_handles
from ottla.log.segment.walk import CorruptBatch
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.clock import Clock
from ottla.runtime.disk import Disk, is_out_of_space
from ottla.runtime.pool import Pool
from ottla.runtime.random import Random

_log = logging.getLogger(__name__)

_LACK_TOLD_EVERY_MS = 10_000
_LACK_LASTS_MS = 10_000
# What follows the error of a running node whose disk is full.
GOES_ON_WITH_ROOM = "free some, and it will go on"


class LogDirectory:
    """One entry of `log.dirs`."""

    __slots__ = (
        "_deletions",
        "_deletions_made",
        "_lack_told_ms",
        "_lacked_room_ms",
        "_on_damage",
        "_on_failure",
        "cleaned_offset_changes",
        "cleaned_offset_sets",
        "cleaned_offsets",
        "clock",
        "directory_id",
        "disk",
        "failure",
        "handles",
        "high_watermarks",
        "is_online",
        "log_start_changes",
        "log_starts",
        "path",
        "random",
        "recovery_point_changes",
        "recovery_point_raises",
        "recovery_points",
    )

    def __init__(
        self,
        path: str,
        handles: FileHandles,
        clock: Clock,
        random: Random,
        on_failure: Callable[[LogDirectory], None] | None = None,
        on_damage: Callable[[str, KafkaError], None] | None = None,
    ) -> None:
        """`on_failure` is called once, when the directory fails, and `on_damage` each time that damage is met
        in a log, with its path and the error; both in any thread.
        """
        self.path = path
        self.handles = handles
        self.disk: Disk = handles.disk
        self.clock = clock
        self.random = random
        self.directory_id: bytes | None = None
        # False from the first I/O error on; `failure` then says why.
        self.is_online = True
        self.failure: str | None = None
        self._on_failure = on_failure
        self._on_damage = on_damage
        self._lack_told_ms = -_LACK_TOLD_EVERY_MS
        self._lacked_room_ms: int | None = None
        self.recovery_points = OffsetCheckpoint(self.disk, self._file(checkpoints.RECOVERY_POINTS))
        self.log_starts = OffsetCheckpoint(self.disk, self._file(checkpoints.LOG_STARTS))
        # Up to where the cleaner has left one record of each key.
        self.cleaned_offsets = OffsetCheckpoint(self.disk, self._file(checkpoints.CLEANER_OFFSETS))
        self.cleaned_offset_sets = OffsetChanges(self.cleaned_offsets, OffsetChange.SET)
        self.cleaned_offset_changes = OffsetChanges(self.cleaned_offsets, OffsetChange.LOWER)
        # Single entries that truncations change, and swaps of segments.
        self.recovery_point_changes = OffsetChanges(self.recovery_points, OffsetChange.LOWER)
        self.recovery_point_raises = OffsetChanges(self.recovery_points, OffsetChange.RAISE)
        self.log_start_changes = OffsetChanges(self.log_starts, OffsetChange.SET)
        self.high_watermarks = HighWatermarkCheckpoint(self.disk, self._file(checkpoints.HIGH_WATERMARKS))
        # (due time, number, path): what to unlink, and when.
        self._deletions: list[tuple[int, int, str]] = []
        self._deletions_made = 0

    def __repr__(self) -> str:
        return f"<log directory {self.path!r}{' offline' if self.failure else ''}>"

    # Failure

    def check_online(self) -> None:
        if self.failure is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the log directory {self.path} is offline: {self.failure}; restart the node once the disk "
                "is repaired",
            )

    def fail(self, reason: str) -> None:
        """Take the directory offline."""
        if self.failure is None:
            # In this order: another thread that finds it offline raises the reason.
            self.failure = reason
            self.is_online = False
            _log.error("the log directory %s goes offline: %s", self.path, reason)
            if self._on_failure is not None:
                self._on_failure(self)

    def report_damage(self, log_dir: str, error: KafkaError) -> None:
        """Report that batches of a log are damaged; that is no failure of the directory."""
        if self._on_damage is not None:
            self._on_damage(log_dir, error)

    @property
    def lacks_room(self) -> bool:
        """Whether something that was to be written lately found no room."""
        lacked_ms = self._lacked_room_ms
        return lacked_ms is not None and 0 <= self.clock.wall_ms() - lacked_ms < _LACK_LASTS_MS

    def io_error(self, action: str, error: OSError) -> KafkaError:
        """Return the error to raise for an I/O error. Unless it is a lack of room, or of file handles, the
        directory goes offline.
        """
        if is_out_of_space(error) and self.failure is None:
            self._lacked_room_ms = self.clock.wall_ms()
            return self._lack(
                f"no room in the log directory {self.path} for {action} ({error}); {GOES_ON_WITH_ROOM}"
            )
        reason = f"{action} failed with {error}"
        if is_lack_of_handles(error) and self.failure is None:
            return self._lack(f"{reason}; raise the limit of open files (ulimit -n)")
        self.fail(reason)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {self.path}: {reason}")

    def _lack(self, message: str) -> KafkaError:
        """Log and return the error of a resource that ran out and may come back. Clients try again at once,
        so that only one error in ten seconds is logged.
        """
        now_ms = self.clock.wall_ms()
        if not self._lack_told_ms <= now_ms < self._lack_told_ms + _LACK_TOLD_EVERY_MS:
            self._lack_told_ms = now_ms
            _log.error("%s", message)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    # Checkpoints

    def load_checkpoints(self) -> None:
        """Read the files. A damaged one counts as empty: it costs a longer recovery, or another cleaning."""
        for checkpoint in self._checkpoints:
            try:
                checkpoint.load()
            except checkpoints.CorruptCheckpoint as error:
                _log.error("the checkpoint is not usable and is taken as empty: %s", error)

    @property
    def _checkpoints(self) -> tuple[OffsetCheckpoint, ...]:
        return self.recovery_points, self.log_starts, self.cleaned_offsets

    def recovery_point(self, partition: TopicPartition) -> int | None:
        return self.recovery_points.offsets.get(partition)

    def log_start(self, partition: TopicPartition) -> int | None:
        return self.log_starts.offsets.get(partition)

    def write_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file; it then holds exactly these."""
        self.recovery_points.write(offsets)

    def write_log_starts(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.log_starts.write(offsets)

    def lower_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make sure that the durable recovery points are not above these, nor the offsets up to which the
        logs are clean.
        """
        for known, write in (
            (self.recovery_points, self.write_recovery_points),
            (self.cleaned_offsets, self.cleaned_offsets.write),
        ):
            known.drop_staged()
            if any(known.may_hold_above(partition, offset) for partition, offset in offsets.items()):
                lower = {tp: min(at, known.offsets.get(tp, 0)) for tp, at in offsets.items()}
                write(known.offsets | lower)

    def raise_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make sure that the durable recovery points are not below these, which have been synced."""
        known = self.recovery_points
        if any(known.may_hold_below(partition, offset) for partition, offset in offsets.items()):
            higher = {tp: max(at, known.offsets.get(tp, 0)) for tp, at in offsets.items()}
            self.write_recovery_points(known.offsets | higher)

    def set_log_starts(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make the log starts durable, and leave the others as they are."""
        self.write_log_starts(self.log_starts.offsets | dict(offsets))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions from the checkpoints: a new log of that name must not inherit the offsets of the
        old.
        """
        gone = frozenset(partitions)
        write = self._forget_high_watermarks(gone)
        if write is not None:
            write()
        self.high_watermarks.on_forgotten(gone)
        for checkpoint in self._checkpoints:
            checkpoint.write({tp: at for tp, at in checkpoint.offsets.items() if tp not in gone})

    async def forget_in_pool(self, gone: set[TopicPartition], pool: Pool) -> None:
        """The same in the pool; other writes may come in between."""
        write = self._forget_high_watermarks(gone)
        if write is not None:
            await pool.run(write)
        self.high_watermarks.on_forgotten(gone)
        for checkpoint in self._checkpoints:
            while not gone.isdisjoint(checkpoint.offsets):
                async with checkpoint.staging:
                    left = {tp: at for tp, at in checkpoint.offsets.items() if tp not in gone}
                    staged = checkpoint.stage(left, checkpoint.begin())
                    if staged is None:
                        continue  # they went while this waited
                    await pool.run(staged.write)
                    if checkpoint.install(staged):
                        await pool.run(staged.sync_name)
                        checkpoint.on_synced(staged)
                    else:
                        await pool.run(staged.drop)

    def _forget_high_watermarks(self, gone: Collection[TopicPartition]) -> Callable[[], None] | None:
        self.high_watermarks.forget(sorted(gone))
        known = any(self.high_watermarks.knows(partition) for partition in gone)
        return self.high_watermarks.stage() if known else None

    def knows(self, partition: TopicPartition) -> bool:
        return self.high_watermarks.knows(partition) or any(
            partition in checkpoint.offsets for checkpoint in self._checkpoints
        )

    # Delayed deletion

    def delete_later(self, paths: Iterable[str], delay_ms: int) -> None:
        due_ms = self.clock.wall_ms() + delay_ms
        for path in paths:
            self._deletions_made += 1
            heapq.heappush(self._deletions, (due_ms, self._deletions_made, path))

    def remove_due(self, now_ms: int) -> int:
        """Unlink the files that are due; how many were removed."""
        due = self.take_due(now_ms)
        try:
            return self.remove(due)
        except OSError:
            self.delete_later(due, 0)
            raise

    def take_due(self, now_ms: int) -> list[str]:
        """Take the paths that are due off the queue, for the caller to remove."""
        due = []
        while self._deletions and self._deletions[0][0] <= now_ms:
            due.append(heapq.heappop(self._deletions)[2])
        return due

    def remove(self, paths: Iterable[str]) -> int:
        """Unlink files, in any thread, since large ones take their time; how many existed."""
        removed = 0
        for path in paths:
            try:
                self.disk.unlink(path)
                removed += 1
            except FileNotFoundError:
                _log.debug("%s had gone already", path)
        return removed

    @property
    def deletions(self) -> int:
        """How many files wait for their removal."""
        return len(self._deletions)

    def _file(self, name: str) -> str:
        return posixpath.join(self.path, name)


class IoGuard:
    """A context that turns I/O errors of the log in the directory `what` into KAFKA_STORAGE_ERROR, and
    reports damaged batches. What must not stop half-way is `fatal`: then also a lack of room takes the
    directory offline.
    """

    __slots__ = ("_action", "_directory", "_fatal", "_what")

    def __init__(self, directory: LogDirectory, action: str, what: str, fatal: bool = False) -> None:
        self._directory = directory
        self._action = action
        self._what = what
        self._fatal = fatal

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise self.failure(error) from error
        if isinstance(error, CorruptBatch):
            self._directory.report_damage(self._what, error)

    def failure(self, error: OSError) -> KafkaError:
        """Report the error to the directory; return the error to raise."""
        action = f"{self._action} ({self._what})"
        if self._fatal:
            self._directory.fail(f"{action} failed with {error}")
        elif isinstance(error, FileNotFoundError) and not self._directory.disk.is_dir(self._what):
            # Renamed under a reader in another thread, which is no fault of the disk.
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{action}: the log has been deleted or moved meanwhile"
            )
        return self._directory.io_error(action, error)
