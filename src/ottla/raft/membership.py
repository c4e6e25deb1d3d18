"""Who votes, by the records of the log itself: the voters and the version of the quorum at each offset.

A voter set is in force as soon as its record is in the log, committed or not, and no longer if the record is
cut off again. With ``kraft.version`` 0 the voters are those of the configuration. Invariant: at most one
change is not committed, so any majority of the old voters meets any majority of the new ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

from ottla.protocol.control_records import KRaftVersionRecord, VotersRecord
from ottla.raft.snapshot import SnapshotContent
from ottla.raft.voters import ReplicaKey, VoterSet
from ottla.records.batch import iter_batches, read_records
from ottla.records.control import QuorumRecord, parse_control_records

# The offset of what was configured, or written when the directory was formatted.
BEFORE_LOG: Final = -1


class VotersEntry(NamedTuple):
    offset: int
    voters: VoterSet


class _VersionEntry(NamedTuple):
    offset: int
    kraft_version: int


class VoterSetHistory:
    __slots__ = ("_entries", "_static", "_versions")

    def __init__(self, static: VoterSet | None = None) -> None:
        self._static = static
        self._entries: list[VotersEntry] = []  # ascending
        self._versions: list[_VersionEntry] = []  # ascending

    @property
    def kraft_version(self) -> int:
        return self._versions[-1].kraft_version if self._versions else 0

    @property
    def voters(self) -> VoterSet | None:
        """The newest voters, committed or not; None if this node knows none yet."""
        entry = self.entry
        return self._static if entry is None else entry.voters

    @property
    def entry(self) -> VotersEntry | None:
        """The newest voters of the log, with the offset of their record."""
        return self._entries[-1] if self._entries and self.kraft_version >= 1 else None

    def at(self, offset: int) -> tuple[int, VoterSet | None]:
        """The version and the voters that a snapshot of everything below ``offset`` has to hold."""
        versions = [entry.kraft_version for entry in self._versions if entry.offset < offset]
        version = versions[-1] if versions else 0
        entries = [entry.voters for entry in self._entries if entry.offset < offset]
        return version, entries[-1] if version >= 1 and entries else None

    def is_voter(self, key: ReplicaKey) -> bool:
        voters = self.voters
        return voters is not None and voters.is_voter(key)

    def may_vote(self, key: ReplicaKey, high_watermark: int) -> bool:
        """Whether it is a voter of the newest set, or of one that is still in force as far as is known: that
        the newest one is committed may not have happened yet. A voter that wrote its own removal and nobody
        else has it must still be able to lead, or nobody can.
        """
        if self.is_voter(key):
            return True
        if self.entry is None or self.entry.offset < high_watermark:
            return False
        committed = max(bisect_left(self._entries, high_watermark, key=_offset) - 1, 0)
        return any(entry.voters.is_voter(key) for entry in self._entries[committed:])

    def is_only_voter(self, key: ReplicaKey) -> bool:
        voters = self.voters
        return voters is not None and len(voters.voters) == 1 and voters.is_voter(key)

    # Following the log

    def load(self, offset: int, content: SnapshotContent) -> None:
        """Begin with what a snapshot up to ``offset`` says."""
        self._entries.clear()
        self._versions.clear()
        at = offset - 1 if offset else BEFORE_LOG
        if content.kraft_version:
            self._versions.append(_VersionEntry(at, content.kraft_version))
        if content.voters is not None:
            self._entries.append(VotersEntry(at, content.voters))

    def read(self, records: bytes, end_offset: int) -> bool:
        """Take in the batches that were appended, up to ``end_offset``; whether they change anything."""
        changed = False
        for position, header in iter_batches(records):
            if header.is_control and header.last_offset < end_offset:
                for control in parse_control_records(read_records(records, position)):
                    changed |= self._take(control.offset, control.value)
        return changed

    def take(self, first_offset: int, records: Iterable[QuorumRecord]) -> None:
        """The same for records that this node appended itself."""
        for offset, record in enumerate(records, first_offset):
            self._take(offset, record)

    def _take(self, offset: int, record: object) -> bool:
        if isinstance(record, KRaftVersionRecord):
            self._versions.append(_VersionEntry(offset, record.kraft_version))
            return True
        if isinstance(record, VotersRecord):
            self._entries.append(VotersEntry(offset, VoterSet.from_record(record)))
            return True
        return False

    def truncate_to(self, offset: int) -> bool:
        """Forget what is cut off; whether that changes anything."""
        entries = bisect_left(self._entries, offset, key=_offset)
        versions = bisect_left(self._versions, offset, key=_offset)
        changed = entries < len(self._entries) or versions < len(self._versions)
        del self._entries[entries:], self._versions[versions:]
        return changed

    def forget_before(self, offset: int) -> None:
        """Forget what nobody will ask for once the log begins at ``offset``."""
        del self._entries[: max(bisect_left(self._entries, offset, key=_offset) - 1, 0)]
        del self._versions[: max(bisect_left(self._versions, offset, key=_offset) - 1, 0)]


def _offset(entry: VotersEntry | _VersionEntry) -> int:
    return entry.offset
