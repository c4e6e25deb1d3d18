"""The states of a replica of the metadata log. Each belongs to one epoch and knows when it has waited enough.

============  ==========================================================================================
UnattachedState    knows the epoch and no leader to follow; may have voted
ProspectiveState   asks whether it would be elected, before it disturbs anyone with a new epoch
CandidateState     has voted for itself in a new epoch and asks for the votes of others
FollowerState      fetches from the leader of the epoch
LeaderState        was elected by a majority; appends
ResignedState      led this epoch and does not any more; tells the others
============  ==========================================================================================

An observer, which is no voter, is unattached or a follower. Invariant: within an epoch the vote, once given,
and the leader, once known, stay the same through all changes of state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from ottla.raft.election_state import ElectionState
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


class Tally:
    """The votes of one election, by the voters that were in force when it began."""

    __slots__ = ("_majority", "granting", "unanswered")

    def __init__(self, voters: VoterSet, local: ReplicaKey) -> None:
        self._majority = voters.majority
        # Voters that have not answered yet, in order.
        self.unanswered: list[int] = list(voters.ids)
        self.granting: list[int] = []
        self.record(local.id, True)

    def record(self, id: int, granted: bool) -> None:
        if id in self.unanswered:
            self.unanswered.remove(id)
            if granted:
                self.granting.append(id)

    @property
    def won(self) -> bool:
        return len(self.granting) >= self._majority

    @property
    def lost(self) -> bool:
        """Whether those that have not answered cannot make a majority any more."""
        return len(self.granting) + len(self.unanswered) < self._majority


@dataclass(slots=True)
class UnattachedState:
    epoch: int
    deadline_ms: int
    leader_id: int | None = None  # known by name, but not by address
    voted: ReplicaKey | None = None
    high_watermark: int | None = None
    role: Role = field(default=Role.UNATTACHED, init=False)


@dataclass(slots=True)
class ProspectiveState:
    epoch: int
    deadline_ms: int
    tally: Tally
    leader_id: int | None = None
    leader_endpoints: Mapping[str, Address] = field(default_factory=dict)
    voted: ReplicaKey | None = None
    high_watermark: int | None = None
    role: Role = field(default=Role.PROSPECTIVE, init=False)


@dataclass(slots=True)
class CandidateState:
    epoch: int
    deadline_ms: int
    tally: Tally
    voted: ReplicaKey
    high_watermark: int | None = None
    leader_id: None = field(default=None, init=False)
    role: Role = field(default=Role.CANDIDATE, init=False)


@dataclass(slots=True)
class SnapshotDownload:
    id: SnapshotId
    position: int = 0
    complete: bool = False  # all is here, and is being made durable


@dataclass(slots=True)
class FollowerState:
    epoch: int
    deadline_ms: int  # without a fetch by then the leader is given up
    leader_id: int
    leader_endpoints: Mapping[str, Address]
    voted: ReplicaKey | None = None
    high_watermark: int | None = None
    # The leader has answered lately, so there is no reason to elect another one.
    leader_seen: bool = False
    download: SnapshotDownload | None = None
    update_voter_ms: int = NEVER_MS  # when to see whether the leader knows this voter as it is
    role: Role = field(default=Role.FOLLOWER, init=False)


@dataclass(slots=True)
class ParkedFetch:
    """A fetch that waits for something new."""

    token: object
    fetch: Fetch
    deadline_ms: int


@dataclass(slots=True)
class PendingChange:
    """The one change of voters that is under way."""

    token: object | None  # None once it was answered
    voter: ReplicaKey
    deadline_ms: int
    offset: int | None = None  # of its record; None before it is appended
    endpoints: Mapping[str, Address] = field(default_factory=dict)
    ack_when_committed: bool = True


@dataclass(slots=True)
class LeaderState:
    epoch: int
    epoch_start: int
    voted: ReplicaKey
    leader_id: int
    progress: ProgressTracker
    parked: list[ParkedFetch] = field(default_factory=list)
    change: PendingChange | None = None
    told: dict[int, Voter] = field(default_factory=dict)  # what static voters have said of themselves
    remind_ms: int = 0  # when to see again who has to be told of this epoch
    role: Role = field(default=Role.LEADER, init=False)

    @property
    def high_watermark(self) -> int | None:
        return self.progress.high_watermark


@dataclass(slots=True)
class ResignedState:
    epoch: int
    deadline_ms: int
    leader_id: int
    voted: ReplicaKey | None
    preferred: tuple[ReplicaKey, ...] = ()
    unacknowledged: list[int] = field(default_factory=list)
    high_watermark: int | None = None
    role: Role = field(default=Role.RESIGNED, init=False)


State: TypeAlias = (
    UnattachedState | ProspectiveState | CandidateState | FollowerState | LeaderState | ResignedState
)


def election_of(state: State, voters: VoterSet | None, kraft_version: int) -> ElectionState:
    """What of a state has to be remembered."""
    voted = state.voted
    if voted is not None and kraft_version == 0:
        voted = ReplicaKey(voted.id)
    return ElectionState(state.epoch, state.leader_id, voted, () if voters is None else voters.ids)
