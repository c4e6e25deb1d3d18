"""The metadata log as the quorum sees it: a port, so that the state machine does no I/O of its own.

Everything here returns at once; what has to reach the disk is asked for by effects. Positions in it are
ends: an offset together with the epoch of the record before it, which two logs share exactly if they are
equal up to there.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from ottla.raft.messages import OffsetAndEpoch
from ottla.raft.snapshot import BOOTSTRAP_SNAPSHOT, SnapshotContent, SnapshotId


class RaftLog(Protocol):
    @property
    def start_offset(self) -> int: ...

    @property
    def end(self) -> OffsetAndEpoch:
        """Where the log ends; of an empty one, the end of the snapshot before it."""
        ...

    @property
    def high_watermark(self) -> int: ...

    def set_high_watermark(self, offset: int) -> None: ...

    def end_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Where the greatest epoch up to ``epoch`` ends here."""
        ...

    def append_as_leader(self, batch: bytes, epoch: int) -> None: ...

    def append_as_follower(self, records: bytes, epoch: int) -> None:
        """Append batches as the leader of ``epoch`` sent them; KafkaError if they are damaged or do not
        follow.
        """
        ...

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from ``offset`` on, at least one if there is one."""
        ...

    def truncate_to(self, offset: int) -> None: ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    def snapshot_size(self, id: SnapshotId) -> int | None:
        """None if there is no such snapshot."""
        ...

    def read_snapshot(self, id: SnapshotId, position: int, max_bytes: int) -> bytes: ...

    def begin_snapshot(self, id: SnapshotId) -> None:
        """Begin to receive a snapshot; one that was not finished is given up."""
        ...

    def write_snapshot(self, id: SnapshotId, position: int, data: bytes) -> None: ...

    def abandon_snapshot(self) -> None: ...

    def start_after_snapshot(self, id: SnapshotId) -> SnapshotContent:
        """Begin anew behind a snapshot that was received and is durable; its content."""
        ...


class Validity(Enum):
    VALID = "valid"
    DIVERGING = "diverging"  # the logs part at the end that is told
    SNAPSHOT = "snapshot"  # the beginning is gone; the snapshot that is told stands for it


class ValidOffsetAndEpoch(NamedTuple):
    kind: Validity
    end: OffsetAndEpoch


def validate(log: RaftLog, end: OffsetAndEpoch) -> ValidOffsetAndEpoch:
    """Whether a replica whose log ends so can go on from there."""
    latest, earliest = log.latest_snapshot, log.earliest_snapshot
    if end.offset == 0 and latest is not None and latest != BOOTSTRAP_SNAPSHOT:
        return ValidOffsetAndEpoch(Validity.SNAPSHOT, OffsetAndEpoch(*latest))
    start = log.start_offset
    if start == 0 and end == (0, 0):
        return ValidOffsetAndEpoch(Validity.VALID, end)
    if earliest is not None and latest is not None:
        beheaded = end.offset == start > 0 and end.epoch != earliest.epoch
        if end.offset < start or beheaded or end.epoch < earliest.epoch:
            return ValidOffsetAndEpoch(Validity.SNAPSHOT, OffsetAndEpoch(*latest))
    ours = log.end_for_epoch(end.epoch)
    if ours.epoch != end.epoch or ours.offset < end.offset:
        return ValidOffsetAndEpoch(Validity.DIVERGING, ours)
    return ValidOffsetAndEpoch(Validity.VALID, end)


def truncation_point(log: RaftLog, diverging: OffsetAndEpoch) -> int:
    """Where a follower cuts its log, given where the leader's log parts from it."""
    ours = log.end_for_epoch(diverging.epoch)
    if ours.epoch == diverging.epoch:
        return min(ours.offset, diverging.offset)
    return ours.offset
