"""The metadata log as the state machine sees it: an interface, so that the machine does no I/O of its own.

Every call returns at once; the machine asks by effects for what has to reach the disk. A position in the log
is an end: an offset together with the epoch of the record before it. Two logs that have the same end are
equal up to there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.messages import OffsetAndEpoch
from ottla.raft.snapshot import BOOTSTRAP_SNAPSHOT, SnapshotContent, SnapshotId
from ottla.records.control import QuorumRecord


class NoRoom(KafkaError):
    """A write found no room, or no file handle. The log is as it was before, and the write can be tried
    again.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class RaftLog(Protocol):
    """The log of the quorum. A write to a full disk raises `NoRoom` and leaves the log as it was."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end(self) -> OffsetAndEpoch:
        """The end of the log; if it is empty, the end of the snapshot before it."""
        ...

    @property
    def high_watermark(self) -> int: ...

    def update_high_watermark(self, offset: int) -> None: ...

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """The end of the largest epoch up to `epoch` in this log."""
        ...

    def append_as_leader(self, batch: bytes, epoch: int) -> None: ...

    def append_control_as_leader(self, records: Sequence[QuorumRecord], epoch: int) -> None:
        """Append control records as one batch, with the time of the wall clock as their timestamp."""
        ...

    def append_as_follower(self, records: bytes, epoch: int) -> None:
        """Append batches as the leader of `epoch` sent them; KafkaError if they are damaged or their offsets
        do not follow.
        """
        ...

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Read whole batches from `offset` on, at least one if there is one."""
        ...

    def truncate_to(self, offset: int) -> None: ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    def snapshot_size(self, id: SnapshotId) -> int | None:
        """The size of a snapshot in bytes; None if there is no such snapshot."""
        ...

    def read_snapshot(self, id: SnapshotId, position: int, max_bytes: int) -> bytes: ...

    def begin_snapshot(self, id: SnapshotId) -> None:
        """Start receiving a snapshot; an unfinished one is abandoned."""
        ...

    def write_snapshot(self, id: SnapshotId, position: int, data: bytes) -> None: ...

    def abandon_snapshot(self) -> None: ...

    def start_after_snapshot(self, id: SnapshotId) -> SnapshotContent:
        """Truncate the whole log and start it after a snapshot that was received and is durable; the content
        of the snapshot.
        """
        ...


class Validity(Enum):
    VALID = "valid"
    DIVERGING = "diverging"  # the logs diverge after `end`
    SNAPSHOT = "snapshot"  # the records after that offset are deleted; the snapshot at `end` stands for them


class ValidOffsetAndEpoch(NamedTuple):
    """The leader's judgement of a fetch offset."""

    kind: Validity
    end: OffsetAndEpoch


def validate_offset_and_epoch(log: RaftLog, end: OffsetAndEpoch) -> ValidOffsetAndEpoch:
    """Whether a replica whose log ends at `end` can fetch from there (Kafka's validateOffsetAndEpoch)."""
    latest, earliest = log.latest_snapshot, log.earliest_snapshot
    if end.offset == 0 and latest is not None and latest != BOOTSTRAP_SNAPSHOT:
        return ValidOffsetAndEpoch(Validity.SNAPSHOT, OffsetAndEpoch(*latest))
    start = log.start_offset
    if start == 0 and end == (0, 0):
        return ValidOffsetAndEpoch(Validity.VALID, end)
    if earliest is not None and latest is not None:
        before_snapshot = end.offset == start > 0 and end.epoch != earliest.epoch
        if end.offset < start or before_snapshot or end.epoch < earliest.epoch:
            return ValidOffsetAndEpoch(Validity.SNAPSHOT, OffsetAndEpoch(*latest))
    ours = log.end_offset_for_epoch(end.epoch)
    if ours.epoch != end.epoch or ours.offset < end.offset:
        return ValidOffsetAndEpoch(Validity.DIVERGING, ours)
    return ValidOffsetAndEpoch(Validity.VALID, end)


def truncation_offset(log: RaftLog, diverging: OffsetAndEpoch) -> int:
    """The offset to which a follower truncates its log, given the end that the leader sent as diverging."""
    ours = log.end_offset_for_epoch(diverging.epoch)
    if ours.epoch == diverging.epoch:
        return min(ours.offset, diverging.offset)
    return ours.offset
