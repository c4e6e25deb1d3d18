"""What the voters and observers of a quorum say to each other, without the envelope of the wire.

Each message is about one partition, the metadata log; `raft.driver.wire` puts it into Kafka's messages
and takes it out of them. A reply always tells the epoch and the leader that its sender knows, so that
every exchange spreads the news of elections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import ReplicaKey
from ottla.runtime.address import Address

NO_ONE: Final = -1
UNKNOWN_HIGH_WATERMARK: Final = -1
# A fetcher that does not tell its high watermark is not woken when it moves.
ANY_HIGH_WATERMARK: Final = 2**63 - 1


class OffsetAndEpoch(NamedTuple):
    """An end of a log: the next offset, and the epoch of the record before it."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Vote:
    """A candidate asks for a vote in ``epoch``; with ``pre_vote``, whether it would get one in the next."""

    candidate: ReplicaKey
    epoch: int
    last: OffsetAndEpoch
    pre_vote: bool
    voter: ReplicaKey | None = None  # whom the candidate believes to ask; None if it does not say


@dataclass(frozen=True, slots=True)
class VoteReply:
    epoch: int
    leader_id: int
    granted: bool
    error: ErrorCode = ErrorCode.NONE
    endpoint: Address | None = None


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """The leader tells a voter that it leads."""

    leader_id: int
    epoch: int
    endpoints: Mapping[str, Address] = field(default_factory=dict)
    voter: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class BeginEpochReply:
    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE
    endpoint: Address | None = None


@dataclass(frozen=True, slots=True)
class EndEpoch:
    """The leader resigns, and says who should follow it, the best first."""

    leader_id: int
    epoch: int
    preferred: tuple[ReplicaKey, ...]
    endpoints: Mapping[str, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndEpochReply:
    epoch: int
    leader_id: int
    error: ErrorCode = ErrorCode.NONE
    endpoint: Address | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """A replica asks for what follows ``end``; everything below that is on its disk."""

    replica: ReplicaKey
    epoch: int
    end: OffsetAndEpoch
    max_wait_ms: int
    max_bytes: int
    high_watermark: int = ANY_HIGH_WATERMARK


@dataclass(frozen=True, slots=True)
class FetchReply:
    """Records; or the point at which the logs part (``diverging``); or the snapshot to begin with."""

    epoch: int
    leader_id: int
    high_watermark: int = UNKNOWN_HIGH_WATERMARK
    log_start_offset: int = -1
    records: bytes = b""
    diverging: OffsetAndEpoch | None = None
    snapshot: SnapshotId | None = None
    error: ErrorCode = ErrorCode.NONE
    endpoint: Address | None = None


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
    endpoint: Address | None = None


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
    endpoint: Address | None = None


@dataclass(frozen=True, slots=True)
class AskVersions:
    """Which versions of the quorum's protocol a would-be voter speaks (ApiVersions)."""


@dataclass(frozen=True, slots=True)
class VersionsReply:
    min_kraft_version: int
    max_kraft_version: int
    error: ErrorCode = ErrorCode.NONE


Request: TypeAlias = (
    Vote | BeginEpoch | EndEpoch | Fetch | FetchSnapshot | AddVoter | RemoveVoter | UpdateVoter | AskVersions
)
NewsReply: TypeAlias = (
    VoteReply | BeginEpochReply | EndEpochReply | FetchReply | FetchSnapshotReply | UpdateVoterReply
)
Reply: TypeAlias = NewsReply | VoterChangeReply | VersionsReply
