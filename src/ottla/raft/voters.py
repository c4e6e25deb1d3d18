"""The voters of the quorum: configured (`controller.quorum.voters`), or kept in the log itself (KIP-853).

With `kraft.version` 0 the voters are what every node's configuration says; from version 1 on they are
records in the log and in snapshots, and a voter is identified by its id together with the id of its metadata
directory. Invariant: a voter set is never empty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ottla.protocol.control_records import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    VotersRecord,
    VotersRecordEndpoint,
    VotersRecordVoter,
)
from ottla.records.batch import iter_batches, read_records
from ottla.records.control import QuorumRecord, parse_control_records
from ottla.runtime.address import Address

NO_DIRECTORY: Final = bytes(16)
# The offset of voters that were configured, or written when the directory was formatted.
BEFORE_LOG: Final = -1


class ReplicaKey(NamedTuple):
    """A replica of the metadata log; the directory is NO_DIRECTORY where it is not known."""

    id: int
    directory_id: bytes = NO_DIRECTORY


@dataclass(frozen=True, slots=True)
class Voter:
    key: ReplicaKey
    endpoints: Mapping[str, Address] = field(default_factory=dict)  # by listener name
    min_kraft_version: int = 0
    max_kraft_version: int = 1


@dataclass(frozen=True, slots=True)
class VoterSet:
    voters: Mapping[int, Voter]

    def __post_init__(self) -> None:
        if not self.voters:
            raise ValueError("a quorum has at least one voter")

    @classmethod
    def of(cls, *voters: Voter) -> VoterSet:
        return cls({voter.key.id: voter for voter in voters})

    @classmethod
    def parse(cls, text: str, listener: str) -> VoterSet:
        """Parse the value of `controller.quorum.voters`, `id@host:port` separated by commas; ValueError says
        what is wrong with it.
        """
        voters: dict[int, Voter] = {}
        for item in (part.strip() for part in text.split(",")):
            id_text, at, address = item.partition("@")
            host, colon, port_text = address.rpartition(":")
            if not (at and colon and host and id_text.isdecimal() and port_text.isdecimal()):
                raise ValueError(f"controller.quorum.voters: {item!r} is not of the form id@host:port")
            port = int(port_text)
            if not 0 <= port <= 65535:
                raise ValueError(f"controller.quorum.voters: {item!r} has no valid port (0 to 65535)")
            if int(id_text) in voters:
                raise ValueError(f"controller.quorum.voters: voter {id_text} appears twice")
            voters[int(id_text)] = Voter(
                ReplicaKey(int(id_text)), {listener: Address(host.strip("[]"), port)}
            )
        return cls(voters)

    @classmethod
    def from_record(cls, record: VotersRecord) -> VoterSet:
        return cls.of(
            *(
                Voter(
                    ReplicaKey(voter.voter_id, bytes(voter.voter_directory_id)),
                    {e.name: Address(e.host, e.port) for e in voter.endpoints},
                    voter.kraft_version_feature.min_supported_version,
                    voter.kraft_version_feature.max_supported_version,
                )
                for voter in record.voters
            )
        )

    def to_record(self) -> VotersRecord:
        return VotersRecord(
            voters=[
                VotersRecordVoter(
                    voter_id=voter.key.id,
                    voter_directory_id=voter.key.directory_id,
                    endpoints=[
                        VotersRecordEndpoint(name=name, host=address.host, port=address.port)
                        for name, address in voter.endpoints.items()
                    ],
                    kraft_version_feature=KRaftVersionFeature(
                        min_supported_version=voter.min_kraft_version,
                        max_supported_version=voter.max_kraft_version,
                    ),
                )
                for voter in self.voters.values()
            ]
        )

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(sorted(self.voters))

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def is_voter(self, key: ReplicaKey) -> bool:
        """Whether the key is a voter's; a directory id that either side does not know matches any other."""
        voter = self.voters.get(key.id)
        if voter is None:
            return False
        return NO_DIRECTORY in (key.directory_id, voter.key.directory_id) or voter.key == key

    def add_voter(self, voter: Voter) -> VoterSet:
        """The set with one more voter."""
        if voter.key.id in self.voters:
            raise ValueError(f"{voter.key.id} is a voter of this quorum already ({self.ids})")
        return VoterSet({**self.voters, voter.key.id: voter})

    def remove_voter(self, key: ReplicaKey) -> VoterSet:
        """The set without one of its voters; id and directory id must match."""
        voter = self.voters.get(key.id)
        if voter is None or voter.key != key:
            raise ValueError(f"{key.id} is not a voter of this quorum ({self.ids}) with that directory")
        return VoterSet({id: voter for id, voter in self.voters.items() if id != key.id})

    def update_voter(self, voter: Voter) -> VoterSet:
        """The set with other endpoints or versions for one of its voters."""
        if not self.is_voter(voter.key):
            raise ValueError(f"{voter.key.id} is not a voter of this quorum ({self.ids})")
        endpoints = voter.endpoints or self.voters[voter.key.id].endpoints
        return VoterSet({**self.voters, voter.key.id: replace(voter, endpoints=endpoints)})


class VoterSetEntry(NamedTuple):
    offset: int
    voters: VoterSet


class _KRaftVersionEntry(NamedTuple):
    offset: int
    kraft_version: int


class VoterSetHistory:
    """The voter sets and the `kraft.version` at each offset of the log.

    A voter set is in force as soon as its record is in the log, committed or not, and no longer if the record
    is truncated. With `kraft.version` 0 the voters are those of the configuration. Invariant: at most one
    voter set is uncommitted, so any majority of the old voters meets any majority of the new ones.
    """

    __slots__ = ("_entries", "_static", "_versions")

    def __init__(self, static: VoterSet | None = None) -> None:
        self._static = static
        self._entries: list[VoterSetEntry] = []  # by ascending offset
        self._versions: list[_KRaftVersionEntry] = []  # by ascending offset

    @property
    def kraft_version(self) -> int:
        return self._versions[-1].kraft_version if self._versions else 0

    @property
    def voters(self) -> VoterSet | None:
        """The newest voters, committed or not; None if this node knows none yet."""
        entry = self.last_entry
        return self._static if entry is None else entry.voters

    @property
    def last_entry(self) -> VoterSetEntry | None:
        """The newest voters of the log, with the offset of their record."""
        return self._entries[-1] if self._entries and self.kraft_version >= 1 else None

    def at(self, offset: int) -> tuple[int, VoterSet | None]:
        """The version and the voters that a snapshot of everything below `offset` contains."""
        versions = [entry.kraft_version for entry in self._versions if entry.offset < offset]
        version = versions[-1] if versions else 0
        entries = [entry.voters for entry in self._entries if entry.offset < offset]
        return version, entries[-1] if version >= 1 and entries else None

    def is_voter(self, key: ReplicaKey) -> bool:
        voters = self.voters
        return voters is not None and voters.is_voter(key)

    def may_vote(self, key: ReplicaKey, high_watermark: int) -> bool:
        """Whether the replica is a voter of the newest set, or of an older one that may still be in force
        because the newest is not known to be committed.

        A voter that wrote its own removal, which no other replica has, must still be able to lead; otherwise
        no replica could.
        """
        if self.is_voter(key):
            return True
        if self.last_entry is None or self.last_entry.offset < high_watermark:
            return False
        committed = max(bisect_left(self._entries, high_watermark, key=_offset) - 1, 0)
        return any(entry.voters.is_voter(key) for entry in self._entries[committed:])

    def is_only_voter(self, key: ReplicaKey) -> bool:
        voters = self.voters
        return voters is not None and len(voters.voters) == 1 and voters.is_voter(key)

    def load_snapshot(self, offset: int, kraft_version: int, voters: VoterSet | None) -> None:
        """Replace the history by what a snapshot of everything below `offset` says."""
        self._entries.clear()
        self._versions.clear()
        at = offset - 1 if offset else BEFORE_LOG
        if kraft_version:
            self._versions.append(_KRaftVersionEntry(at, kraft_version))
        if voters is not None:
            self._entries.append(VoterSetEntry(at, voters))

    def replay_batches(self, records: bytes, end_offset: int) -> bool:
        """Replay the control records of appended batches below `end_offset`; whether they change anything."""
        changed = False
        for position, header in iter_batches(records):
            if header.is_control and header.last_offset < end_offset:
                for control in parse_control_records(read_records(records, position)):
                    changed |= self._replay(control.offset, control.value)
        return changed

    def replay_records(self, first_offset: int, records: Iterable[QuorumRecord]) -> None:
        """Replay control records that this node appended itself from `first_offset` on."""
        for offset, record in enumerate(records, first_offset):
            self._replay(offset, record)

    def _replay(self, offset: int, record: object) -> bool:
        if isinstance(record, KRaftVersionRecord):
            self._versions.append(_KRaftVersionEntry(offset, record.kraft_version))
            return True
        if isinstance(record, VotersRecord):
            assert not self._entries or self._entries[-1].offset < offset, (
                f"the voter set at offset {offset} comes before the one at {self._entries[-1].offset}"
            )
            self._entries.append(VoterSetEntry(offset, VoterSet.from_record(record)))
            return True
        return False

    def truncate_to(self, offset: int) -> bool:
        """Remove the entries at `offset` and above; whether there were any."""
        entries = bisect_left(self._entries, offset, key=_offset)
        versions = bisect_left(self._versions, offset, key=_offset)
        changed = entries < len(self._entries) or versions < len(self._versions)
        del self._entries[entries:], self._versions[versions:]
        return changed

    def truncate_before(self, offset: int) -> None:
        """Remove the entries that no snapshot needs once the log starts at `offset`."""
        del self._entries[: max(bisect_left(self._entries, offset, key=_offset) - 1, 0)]
        del self._versions[: max(bisect_left(self._versions, offset, key=_offset) - 1, 0)]


def _offset(entry: VoterSetEntry | _KRaftVersionEntry) -> int:
    return entry.offset
