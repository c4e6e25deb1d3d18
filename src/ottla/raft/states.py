"""The states of a replica of the metadata log. Each belongs to one epoch and has a deadline.

================  =====================================================================================
UnattachedState   knows the epoch but no leader to follow; may have voted
ProspectiveState  asks whether it would win an election before it starts a new epoch (pre-vote)
CandidateState    has voted for itself in a new epoch and asks the other voters for their votes
FollowerState     fetches from the leader of the epoch
LeaderState       was elected by a majority; appends
ResignedState     led this epoch and does not any more; informs the other voters
================  =====================================================================================

An observer, which is not a voter, is unattached or a follower. Invariant: within an epoch the vote, once
given, and the leader, once known, stay the same through all transitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from ottla.raft.messages import Fetch
from ottla.raft.progress import ProgressTracker
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address

NEVER_MS: Final = 2**62


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"
    RESIGNED = "resigned"


@dataclass(frozen=True, slots=True)
class ElectionState:
    """The durable state of a voter: the epoch, its vote and the leader; kept in the file `quorum-state`.

    It is durable before a reply or a request rests on it: a voter that forgot its vote could vote twice in an
    epoch and elect two leaders. Invariant: within an epoch the vote, once given, and the leader, once known,
    never change.
    """

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None
    voters: tuple[int, ...] = ()  # only written, and only in version 0 of the file


class EpochElection:
    """The votes of one election, counted among the voters that were in force when it began."""

    __slots__ = ("_majority", "granting", "unanswered")

    def __init__(self, voters: VoterSet, local: ReplicaKey) -> None:
        self._majority = voters.majority
        # Voters that have not answered yet, by ascending id.
        self.unanswered: list[int] = list(voters.ids)
        self.granting: list[int] = []
        self.record_vote(local.id, True)

    def record_vote(self, id: int, granted: bool) -> None:
        if id in self.unanswered:
            self.unanswered.remove(id)
            if granted:
                self.granting.append(id)

    @property
    def is_vote_granted(self) -> bool:
        """Whether a majority has granted its vote."""
        return len(self.granting) >= self._majority

    @property
    def is_vote_rejected(self) -> bool:
        """Whether the voters that have not answered cannot make a majority any more."""
        return len(self.granting) + len(self.unanswered) < self._majority


@dataclass(slots=True)
class UnattachedState:
    epoch: int
    deadline_ms: int  # the start of an election, unless a leader is found before
    leader_id: int | None = None  # known by id, but not by address
    voted: ReplicaKey | None = None
    high_watermark: int | None = None
    role: Role = field(default=Role.UNATTACHED, init=False)


@dataclass(slots=True)
class ProspectiveState:
    epoch: int
    deadline_ms: int  # the pre-vote is given up then
    election: EpochElection
    leader_id: int | None = None
    leader_endpoints: Mapping[str, Address] = field(default_factory=dict)
    voted: ReplicaKey | None = None
    high_watermark: int | None = None
    role: Role = field(default=Role.PROSPECTIVE, init=False)


@dataclass(slots=True)
class CandidateState:
    epoch: int
    deadline_ms: int  # the next attempt starts then
    election: EpochElection
    voted: ReplicaKey  # itself
    high_watermark: int | None = None
    leader_id: None = field(default=None, init=False)
    role: Role = field(default=Role.CANDIDATE, init=False)


@dataclass(slots=True)
class SnapshotDownload:
    id: SnapshotId
    position: int = 0
    complete: bool = False  # every byte is received, and the file is being made durable


@dataclass(slots=True)
class FollowerState:
    epoch: int
    deadline_ms: int  # the leader is given up unless it answers a fetch before
    leader_id: int
    leader_endpoints: Mapping[str, Address]
    voted: ReplicaKey | None = None
    high_watermark: int | None = None
    # Whether the leader has answered a fetch of this epoch: then a pre-vote is not granted.
    has_fetched_from_leader: bool = False
    download: SnapshotDownload | None = None
    update_voter_ms: int = NEVER_MS  # when to check next that the voters' record describes this voter
    role: Role = field(default=Role.FOLLOWER, init=False)


@dataclass(slots=True)
class DelayedQuorumFetch:
    """A fetch that waits at the leader for new records or a new high watermark."""

    token: object
    fetch: Fetch
    deadline_ms: int


@dataclass(slots=True)
class PendingVoterChange:
    """The one change of the voters that is in progress."""

    token: object | None  # None once it was answered
    voter: ReplicaKey
    deadline_ms: int
    offset: int | None = None  # of its record; None before it is appended
    endpoints: Mapping[str, Address] = field(default_factory=dict)
    ack_when_committed: bool = True


@dataclass(slots=True)
class LeaderState:
    epoch: int
    epoch_start_offset: int
    voted: ReplicaKey
    leader_id: int
    progress: ProgressTracker
    delayed_fetches: list[DelayedQuorumFetch] = field(default_factory=list)
    voter_change: PendingVoterChange | None = None
    # What static voters have sent by UpdateRaftVoter, by id; the upgrade of kraft.version writes it.
    updated_voters: dict[int, Voter] = field(default_factory=dict)
    begin_epoch_ms: int = 0  # when to look next for voters that need BeginQuorumEpoch
    role: Role = field(default=Role.LEADER, init=False)

    @property
    def high_watermark(self) -> int | None:
        return self.progress.high_watermark


@dataclass(slots=True)
class ResignedState:
    epoch: int
    deadline_ms: int  # an election of the next epoch starts then
    leader_id: int
    voted: ReplicaKey | None
    preferred_successors: tuple[ReplicaKey, ...] = ()
    unacknowledged: list[int] = field(default_factory=list)  # voters that have not answered EndQuorumEpoch
    high_watermark: int | None = None
    role: Role = field(default=Role.RESIGNED, init=False)


EpochState: TypeAlias = (
    UnattachedState | ProspectiveState | CandidateState | FollowerState | LeaderState | ResignedState
)


def election_state(state: EpochState, voters: VoterSet | None, kraft_version: int) -> ElectionState:
    """The part of a state that has to survive a restart."""
    voted = state.voted
    if voted is not None and kraft_version == 0:
        voted = ReplicaKey(voted.id)
    return ElectionState(state.epoch, state.leader_id, voted, () if voters is None else voters.ids)
