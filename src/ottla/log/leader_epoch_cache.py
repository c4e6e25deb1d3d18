"""The leader epochs of a partition, each with the offset where it starts, and their checkpoint file.

Kafka's `LeaderEpochFileCache`. A follower asks where an epoch ended in order to find the offset up to which
its log agrees with its leader's. The cache is a list of (epoch, start offset), both ascending; it is a digest
of the epochs in the batches and is written to `leader-epoch-checkpoint`. It is read from there when it is
first needed; where the file is damaged, empty or lost, from the batches.

Writing the file with every new epoch would cost a sync for each partition of a failed leader. A flush writes
it instead, before the recovery point passes the start of an epoch that the file does not have; recovery finds
epochs that a crash has lost in the batches above the recovery point. An epoch that starts at the end of the
log has no record, and the next leader or batch replaces its entry: so an idle log costs no write, however
often it gets another leader. Invariant: the file, corrected by those batches, is the cache below the log end.
Flushes may overlap: each write has a number, and the last one to be planned wins.
"""

from __future__ import annotations

import logging
import posixpath
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from ottla.log.directory.checkpoints import CorruptCheckpoint, decode_entries, encode_entries
from ottla.log.segment.segment import LogSegment
from ottla.runtime import invariants
from ottla.runtime.disk import Disk, read_file

_log = logging.getLogger(__name__)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1
_ANY_EPOCH = (1 << 31) - 1
_END = (1 << 63) - 1


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class EpochWrite(NamedTuple):
    """A planned write of the checkpoint file."""

    entries: tuple[EpochEntry, ...]
    number: int
    """How many writes had been planned with this one."""


class LeaderEpochCache:
    __slots__ = ("_entries", "_planned_writes", "_written", "is_of_batches", "is_sealed", "latest_epoch")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Take the entries of the file."""
        # Epochs and start offsets ascend strictly.
        self._entries: list[EpochEntry] = []
        # The epoch of the last entry; a plain value, since every append reads it.
        self.latest_epoch: int | None = None
        self._planned_writes = 0
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        # What the file has; None if that is unknown.
        self._written: tuple[EpochEntry, ...] | None = self.entries
        # True if the entries are those of the batches, whatever the file said.
        self.is_of_batches = False
        # True if they were read from a file that has their checksums.
        self.is_sealed = False

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def earliest(self) -> EpochEntry | None:
        return self._entries[0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` writes from `start_offset` on. Entries that contradict it go."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"there is no epoch {epoch} that starts at offset {start_offset}")
        entries = self._entries
        if entries:
            last = entries[-1]
            if last.epoch == epoch and last.start_offset <= start_offset:
                return
            while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
                entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        self._on_changed()

    def reconcile(self, epoch: int, base_offset: int) -> None:
        """Correct the cache by a batch that is in the log: at `base_offset` the epoch is `epoch`."""
        if epoch < 0:
            return
        entries = self._entries
        at = bisect_right(
            entries, base_offset, key=_start_offset
        )  # entries[:at] begin at or before the batch
        keep = at
        while keep and entries[keep - 1].epoch > epoch:
            keep -= 1
        if keep < at:
            del entries[keep:at]
            self._on_changed()
        if keep == 0 or entries[keep - 1].epoch < epoch:
            if keep and entries[keep - 1].start_offset == base_offset:
                keep -= 1
                del entries[keep]
            later = keep
            while later < len(entries) and entries[later].epoch <= epoch:
                later += 1
            entries[keep:later] = [EpochEntry(epoch, base_offset)]
            self._on_changed()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The greatest epoch up to `epoch` that wrote here, and where it ended: OffsetForLeaderEpoch's
        answer.

        (-1, -1) where the epoch is unknown because it is greater than all, or because there are none.
        """
        entries = self._entries
        if epoch == UNDEFINED_EPOCH or not entries:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if entries[-1].epoch == epoch:
            return epoch, log_end_offset
        higher = bisect_right(entries, epoch, key=_epoch)
        if higher == len(entries):
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        # Older than all that is left: the log of that epoch is gone, and the follower starts where we do.
        found = entries[higher - 1].epoch if higher else epoch
        return found, entries[higher].start_offset

    def epoch_for_offset(self, offset: int) -> int | None:
        at = bisect_right(self._entries, offset, key=_start_offset)
        return self._entries[at - 1].epoch if at else None

    def span(self, offset: int) -> tuple[int, int, int]:
        """The least and the greatest epoch that a batch at `offset` can have, and the offset from which on
        that may be another; what lies below the earliest entry is of some older epoch.
        """
        entries = self._entries
        if not entries:
            return UNDEFINED_EPOCH, _ANY_EPOCH, _END
        if offset >= entries[-1].start_offset:
            return entries[-1].epoch, entries[-1].epoch, _END
        at = bisect_right(entries, offset, key=_start_offset)
        least, greatest = (entries[at - 1].epoch,) * 2 if at else (UNDEFINED_EPOCH, entries[0].epoch)
        return least, greatest, entries[at].start_offset

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that start at or above `end_offset`."""
        at = bisect_left(self._entries, end_offset, key=_start_offset)
        if at < len(self._entries):
            del self._entries[at:]
            self._on_changed()

    def remove_above(self, epoch: int) -> int | None:
        """Forget the epochs above `epoch`; where the first of them started, None if there was none."""
        at = bisect_right(self._entries, epoch, key=_epoch)
        if at == len(self._entries):
            return None
        start_offset = self._entries[at].start_offset
        del self._entries[at:]
        self._on_changed()
        return start_offset

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs that ended at or below `start_offset`; the one it lies in starts there from now
        on.
        """
        at = bisect_right(self._entries, start_offset, key=_start_offset)
        if at and (at > 1 or self._entries[0].start_offset != start_offset):
            self._entries[:at] = [EpochEntry(self._entries[at - 1].epoch, start_offset)]
            self._on_changed()

    def fit(self, log_start_offset: int, log_end_offset: int) -> None:
        """Keep what lies in the log; of an empty log the epoch of its last records, which are gone."""
        self.truncate_from_end(max(log_end_offset, log_start_offset + 1))
        self.truncate_from_start(log_start_offset)

    def prepend(self, older: Iterable[EpochEntry], before: int) -> None:
        """Add the entries of `older` that start below the offset `before`, at which the known ones begin."""
        first = self._entries[0].epoch if self._entries else None
        known = [
            each for each in older if each.start_offset < before and (first is None or each.epoch <= first)
        ]
        if known:
            if known[-1].epoch == first:
                del self._entries[0]
            self._entries[:0] = known
            self._on_changed()

    def clear(self) -> None:
        if self._entries:
            self._entries.clear()
            self._on_changed()

    def _on_changed(self) -> None:
        self.latest_epoch = self._entries[-1].epoch if self._entries else None
        if invariants.thorough:
            for before, after in pairwise(self._entries):
                ascending = before.epoch < after.epoch and before.start_offset < after.start_offset
                assert ascending, f"the leader epochs do not ascend: {before} before {after}"

    # The checkpoint file

    def is_written(self, log_start_offset: int, log_end_offset: int) -> bool:
        """True if the file has every entry below the end of the log, and no other below it; where all records
        are gone, also an epoch of theirs.
        """
        written = self._written
        if written is None or (self._entries and not written and 0 < log_end_offset == log_start_offset):
            return False
        return _below(written, log_end_offset) == _below(self._entries, log_end_offset)

    @property
    def written(self) -> tuple[EpochEntry, ...] | None:
        """What the file has; None if that is unknown."""
        return self._written

    def forget_file(self) -> None:
        """Let the next flush replace the file."""
        self._written = None

    def prepare_write(self) -> EpochWrite:
        """Plan a write of the entries as they are now."""
        self._planned_writes += 1
        self._written = None
        return EpochWrite(self.entries, self._planned_writes)

    def write(self, disk: Disk, dir: str, write: EpochWrite) -> None:
        """Write the file, in any thread, unless a later write has been planned. The caller syncs its name."""
        path = posixpath.join(dir, LEADER_EPOCH_CHECKPOINT)
        staged = _stage_epochs(disk, path, write)
        if write.number == self._planned_writes:
            disk.rename(staged, path)
        else:
            disk.unlink(staged)

    def complete_write(self, write: EpochWrite) -> bool:
        """Note that the write is durable; False if a later one may have overtaken it."""
        if write.number != self._planned_writes:
            # Which of the two came last to the file is unknown.
            self._written = None
            return False
        self._written = write.entries
        return True


def _below(entries: Sequence[EpochEntry], end_offset: int) -> list[EpochEntry]:
    return [entry for entry in entries if entry.start_offset < end_offset]


def _epoch(entry: EpochEntry | _Run) -> int:
    return entry.epoch


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset


def read_leader_epochs(disk: Disk, dir: str, segments: Sequence[LogSegment]) -> LeaderEpochCache:
    """Read the leader epochs of the checkpoint; where that is damaged, empty or lost, of the batches."""
    path = posixpath.join(dir, LEADER_EPOCH_CHECKPOINT)
    try:
        data = _read_if_exists(disk, path)
        entries = _decode_epochs(data, path)
    except CorruptCheckpoint as error:
        _log.error("the leader epochs are read from the log, as their file is damaged: %s", error)
        return leader_epochs_of_batches(segments, is_file_known=False)
    if not entries:
        return leader_epochs_of_batches(segments)
    cache = LeaderEpochCache(entries)
    cache.is_sealed = data == encode_epochs(cache.entries)
    return cache


class _Run:
    """Batches of one leader epoch, one after another."""

    __slots__ = ("agreeing", "batches", "before", "epoch", "start_offset")

    def __init__(self, epoch: int, start_offset: int) -> None:
        self.epoch = epoch
        self.start_offset = start_offset
        self.batches = 0
        # The most batches up to here whose epochs do not fall, and the run before this one among them.
        self.agreeing = 0
        self.before: _Run | None = None


def leader_epochs_of_batches(
    segments: Iterable[LogSegment], *, is_file_known: bool = True
) -> LeaderEpochCache:
    """Read the leader epochs of all batches. No checksum covers them, but they never fall: where they do, the
    most batches that agree are believed. The next flush replaces the file, unless it `is_file_known` to be
    empty, and rightly so.
    """
    runs: list[_Run] = []
    end_offset = 0
    for segment in segments:
        for _, header in segment.headers():
            if not runs or runs[-1].epoch != header.leader_epoch:
                runs.append(_Run(header.leader_epoch, max(header.base_offset, end_offset)))
            runs[-1].batches += 1
            end_offset = header.next_offset
    epochs = LeaderEpochCache()
    for run in _most_agreeing(runs):
        if run.epoch >= 0:
            epochs.assign(run.epoch, run.start_offset)
    epochs.is_of_batches = True
    if not is_file_known:
        epochs.forget_file()
    return epochs


def _most_agreeing(runs: Sequence[_Run]) -> Sequence[_Run]:
    """Those of the runs whose epochs do not fall and that have the most batches."""
    if all(one.epoch < other.epoch for one, other in pairwise(runs)):
        return runs
    best: list[_Run] = []  # epochs and batches ascend
    for run in runs:
        at = bisect_right(best, run.epoch, key=_epoch)
        run.before = best[at - 1] if at else None
        run.agreeing = run.batches + (run.before.agreeing if run.before is not None else 0)
        while at < len(best) and best[at].agreeing <= run.agreeing:
            del best[at]
        if at and best[at - 1].epoch == run.epoch:
            at -= 1
            del best[at]
        best.insert(at, run)
    chosen = []
    last: _Run | None = best[-1]
    while last is not None:
        chosen.append(last)
        last = last.before
    return chosen[::-1]


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """The (epoch, start offset) pairs of a file; none where there is no file."""
    return _decode_epochs(_read_if_exists(disk, path), path)


def _read_if_exists(disk: Disk, path: str) -> bytes:
    try:
        return read_file(disk, path)
    except FileNotFoundError:
        return b""


def _decode_epochs(data: bytes, path: str) -> list[tuple[int, int]]:
    epochs = []
    for entry in decode_entries(data, path):
        try:
            epoch, offset = entry
            epochs.append((int(epoch), int(offset)))
        except ValueError:
            raise CorruptCheckpoint(f"{path} has the entry {' '.join(entry)[:80]!r}") from None
    return epochs


def _stage_epochs(disk: Disk, path: str, write: EpochWrite) -> str:
    """Write epochs beside the file that they are to replace, durably but for the name, which it returns."""
    staged = f"{path}.{write.number}.tmp"
    file = disk.open(staged, create=True)
    try:
        file.truncate(0)
        file.pwrite(encode_epochs(write.entries), 0)
        file.sync()
    except OSError:
        with suppress(OSError):
            disk.unlink(staged)
        raise
    finally:
        file.close()
    return staged


def encode_epochs(epochs: Iterable[tuple[int, int]], *, sealed: bool = True) -> bytes:
    return encode_entries((f"{epoch} {offset}" for epoch, offset in epochs), sealed=sealed)
