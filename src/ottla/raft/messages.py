"""The requests and replies of voters and observers, without the envelope of the wire.

Each message is about one partition, the metadata log; `ottla.raft.driver.wire` converts it to and from
Kafka's messages. A reply always carries the epoch and the leader that its sender knows, so that every
response spreads the news of elections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import ReplicaKey
from ottla.runtime.address import Address

NO_LEADER_ID: Final = -1
UNKNOWN_HIGH_WATERMARK: Final = -1
# The high watermark of a fetcher that does not send its own: a new one does not complete its delayed fetch.
ANY_HIGH_WATERMARK: Final = 2**63 - 1


class OffsetAndEpoch(NamedTuple):
    """An end of a log: the next offset, and the epoch of the record before it."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A candidate asks for a vote in `epoch`; with `pre_vote`, whether it would get one in the next epoch."""

    candidate: ReplicaKey
    epoch: int
    last: OffsetAndEpoch
    pre_vote: bool
    voter: ReplicaKey | None = None  # the voter that the candidate means; None if it does not say


@dataclass(frozen=True, slots=True)
class VoteReply:
    epoch: int
    leader_id: int
    granted: bool
    error: ErrorCode = ErrorCode.NONE
    endpoints: Mapping[str, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """BeginQuorumEpoch: the leader announces itself to a voter."""

    leader_id: int
    epoch: int
    endpoints: Mapping[str, Address] = field(default_factory=dict)
    voter: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class BeginEpochReply:
    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE
    endpoints: Mapping[str, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndEpoch:
    """EndQuorumEpoch: the leader resigns and names the preferred successors, the best first."""

    leader_id: int
    epoch: int
    preferred: tuple[ReplicaKey, ...]
    endpoints: Mapping[str, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndEpochReply:
    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE
    endpoints: Mapping[str, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A replica asks for the records after `end`; everything below is on its disk."""

    replica: ReplicaKey
    epoch: int
    end: OffsetAndEpoch
    max_wait_ms: int
    max_bytes: int
    high_watermark: int = ANY_HIGH_WATERMARK


@dataclass(frozen=True, slots=True)
class FetchReply:
    """Records, or the point where the logs diverge (`diverging`), or the snapshot to start from."""

    epoch: int
    leader_id: int
    high_watermark: int = UNKNOWN_HIGH_WATERMARK
    log_start_offset: int = -1
    records: bytes = b""
    diverging: OffsetAndEpoch | None = None
    snapshot: SnapshotId | None = None
    error: ErrorCode = ErrorCode.NONE
    endpoints: Mapping[str, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    replica: ReplicaKey
    epoch: int
    id: SnapshotId
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchSnapshotReply:
    epoch: int
    leader_id: int
    id: SnapshotId
    size: int = 0
    position: int = 0
    data: bytes = b""
    error: ErrorCode = ErrorCode.NONE
    endpoints: Mapping[str, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddVoter:
    voter: ReplicaKey
    endpoints: Mapping[str, Address]
    timeout_ms: int = 60_000
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True)
class RemoveVoter:
    voter: ReplicaKey


@dataclass(frozen=True, slots=True)
class VoterChangeReply:
    """The answer to AddVoter and RemoveVoter."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateVoter:
    voter: ReplicaKey
    epoch: int
    endpoints: Mapping[str, Address]
    min_kraft_version: int
    max_kraft_version: int


@dataclass(frozen=True, slots=True)
class UpdateVoterReply:
    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE
    endpoints: Mapping[str, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryVersions:
    """ApiVersions: the leader asks which `kraft.version` a new voter supports."""


@dataclass(frozen=True, slots=True)
class VersionsReply:
    min_kraft_version: int
    max_kraft_version: int
    error: ErrorCode = ErrorCode.NONE


Request: TypeAlias = (
    Vote
    | BeginEpoch
    | EndEpoch
    | Fetch
    | FetchSnapshot
    | AddVoter
    | RemoveVoter
    | UpdateVoter
    | QueryVersions
)
LeaderReply: TypeAlias = (
    VoteReply | BeginEpochReply | EndEpochReply | FetchReply | FetchSnapshotReply | UpdateVoterReply
)
Reply: TypeAlias = LeaderReply | VoterChangeReply | VersionsReply
