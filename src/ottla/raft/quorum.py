"""The state machine of a voter: elections, the epoch it leads, the high watermark.

A voter that is alone campaigns when it starts and wins by its own vote. What it wins is an epoch: it
appends a record that says so, and from then on the log grows in that epoch. The high watermark is the
offset below which a majority of voters has the log on disk; it moves only once a record of the leader's own
epoch is below it, as only then nothing before can be taken back by a later leader. Invariant: ``epoch``
only grows, and ``high_watermark`` never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ottla.protocol.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
    VotersRecord,
)
from ottla.raft.election_state import ElectionState
from ottla.raft.voters import ReplicaKey, Voter, VoterSet

EpochRecord = LeaderChangeMessage | KRaftVersionRecord | VotersRecord


class Role(Enum):
    UNATTACHED = "unattached"  # knows the epoch, not its leader
    CANDIDATE = "candidate"  # asked for votes in a new epoch
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """What DescribeQuorum tells: the leader's view of every voter's log."""

    leader_id: int
    epoch: int
    high_watermark: int
    end_offsets: dict[ReplicaKey, int]


class Quorum:
    def __init__(
        self,
        local: ReplicaKey,
        voters: VoterSet,
        *,
        kraft_version: int = 0,
        election: ElectionState | None = None,
        log_epoch: int = 0,
    ) -> None:
        """``election`` is what ``quorum-state`` says, ``log_epoch`` the epoch of the last record in log or
        snapshot.
        """
        if not voters.is_voter(local):
            raise ValueError(
                f"node {local.id} is not among the voters {voters.ids}; "
                "check node.id and controller.quorum.voters"
            )
        if len(voters.voters) > 1:
            raise ValueError(
                f"the voters {voters.ids} are more than one; this node can only form a quorum alone"
            )
        self.local = local
        self.voters = voters
        self.kraft_version = kraft_version
        self.role = Role.UNATTACHED
        state = election or ElectionState()
        self.epoch = max(state.epoch, log_epoch)
        self.leader_id: int | None = None
        self.high_watermark: int | None = None  # None until a record of this leader's epoch is committed
        self._epoch_start = -1  # where the epoch of this leader begins
        self._end_offsets: dict[
            ReplicaKey, int
        ] = {}  # how far each voter has the log on disk, by a leader's books

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    def campaign(self) -> ElectionState:
        """Begin a new epoch by voting for oneself. The result must be durable before :meth:`elected`."""
        self.role = Role.CANDIDATE
        self.epoch += 1
        self.leader_id = None
        return ElectionState(self.epoch, None, self._persisted_key, self.voters.ids)

    def elected(self, end_offset: int) -> ElectionState:
        """Become leader of the epoch with a log that ends at ``end_offset``; the result is to be made
        durable.
        """
        assert self.role is Role.CANDIDATE, f"a {self.role.value} cannot be elected"
        self.role = Role.LEADER
        self.leader_id = self.local.id
        self._epoch_start = end_offset
        self._end_offsets = {voter.key: -1 for voter in self.voters.voters.values()}
        return ElectionState(self.epoch, self.local.id, self._persisted_key, self.voters.ids)

    @property
    def _persisted_key(self) -> ReplicaKey:
        return self.local if self.kraft_version >= 1 else ReplicaKey(self.local.id)

    def start_of_epoch_records(self, local: Voter, voters_offset: int | None) -> list[EpochRecord]:
        """The control records that begin the epoch.

        With dynamic voters the set is written again if the log has none of its own (``voters_offset`` is
        None or before the log) or if this node's endpoints or versions are new.
        """
        me = LeaderChangeMessageVoter(voter_id=self.local.id)
        records: list[EpochRecord] = [
            LeaderChangeMessage(
                leader_id=self.local.id,
                voters=[LeaderChangeMessageVoter(voter_id=id) for id in self.voters.ids],
                granting_voters=[me],
            )
        ]
        if self.kraft_version >= 1:
            updated = self.voters.updated(local)
            if voters_offset is None or voters_offset < 0 or updated != self.voters:
                records.append(KRaftVersionRecord(kraft_version=self.kraft_version))
                records.append(updated.to_record())
                self.voters = updated
        return records

    def flushed(self, end_offset: int) -> int | None:
        """The leader's own log is durable below ``end_offset``: the new high watermark, or None if it
        stays.
        """
        assert self.is_leader, f"a {self.role.value} keeps no high watermark"
        own = self.voters.voters[self.local.id].key
        self._end_offsets[own] = max(self._end_offsets.get(own, -1), end_offset)
        ends = sorted(self._end_offsets.values(), reverse=True)
        agreed = ends[self.voters.majority - 1]
        if agreed <= self._epoch_start or (self.high_watermark is not None and agreed <= self.high_watermark):
            return None
        self.high_watermark = agreed
        return agreed

    def describe(self) -> QuorumInfo:
        return QuorumInfo(
            leader_id=-1 if self.leader_id is None else self.leader_id,
            epoch=self.epoch,
            high_watermark=-1 if self.high_watermark is None else self.high_watermark,
            end_offsets=dict(self._end_offsets),
        )
