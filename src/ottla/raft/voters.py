"""The voters of the quorum: configured (``controller.quorum.voters``), or kept in the log itself (KIP-853).

With ``kraft.version`` 0 the voters are what every node's configuration says; from version 1 on they are
records in the log and in snapshots, and a voter is known by its id together with the id of its metadata
directory. Invariant: a voter set is never empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ottla.protocol.control_records import (
    KRaftVersionFeature,
    VotersRecord,
    VotersRecordEndpoint,
    VotersRecordVoter,
)
from ottla.runtime.address import Address

NO_DIRECTORY: Final = bytes(16)


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
        """The value of ``controller.quorum.voters``, ``id@host:port`` separated by commas; ValueError says
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
        """Whether the key is a voter's; a directory that either side does not know does not count against
        it.
        """
        voter = self.voters.get(key.id)
        if voter is None:
            return False
        return NO_DIRECTORY in (key.directory_id, voter.key.directory_id) or voter.key == key

    def with_voter(self, voter: Voter) -> VoterSet:
        """The set with one more voter."""
        if voter.key.id in self.voters:
            raise ValueError(f"{voter.key.id} is a voter of this quorum already ({self.ids})")
        return VoterSet({**self.voters, voter.key.id: voter})

    def without(self, key: ReplicaKey) -> VoterSet:
        """The set without one of its voters, which must be known by its directory too."""
        voter = self.voters.get(key.id)
        if voter is None or voter.key != key:
            raise ValueError(f"{key.id} is not a voter of this quorum ({self.ids}) with that directory")
        return VoterSet({id: voter for id, voter in self.voters.items() if id != key.id})

    def updated(self, voter: Voter) -> VoterSet:
        """The set in which one of the voters has other endpoints or versions."""
        if not self.is_voter(voter.key):
            raise ValueError(f"{voter.key.id} is not a voter of this quorum ({self.ids})")
        endpoints = voter.endpoints or self.voters[voter.key.id].endpoints
        return VoterSet({**self.voters, voter.key.id: replace(voter, endpoints=endpoints)})
