"""A replica of the quorum: its state, the changes between states, and its log.

The states themselves are in :mod:`ottla.raft.states`; what messages do is in :mod:`ottla.raft.elections`,
:mod:`ottla.raft.replication` and :mod:`ottla.raft.voter_changes`; :mod:`ottla.raft.machine` puts it
together. Invariant: the epoch never goes down, and nothing that rests on a vote or an epoch leaves before
the :class:`~ottla.raft.effects.Persist` that keeps it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ottla.protocol.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.config import QuorumConfig
from ottla.raft.effects import Committed, Effect, Flush, LeaderChanged, Persist, Send
from ottla.raft.election_state import ElectionState
from ottla.raft.log import RaftLog
from ottla.raft.membership import BEFORE_LOG, VoterSetHistory
from ottla.raft.messages import Request
from ottla.raft.progress import ProgressTracker
from ottla.raft.replication import release_fetches
from ottla.raft.request_manager import RequestManager
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import (
    NEVER_MS,
    CandidateState,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    Role,
    State,
    Tally,
    UnattachedState,
    election_of,
)
from ottla.raft.voter_changes import abandon_change
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.records.control import QuorumRecord, build_quorum_batch
from ottla.runtime.address import Address
from ottla.runtime.random import Random

_log = logging.getLogger(__name__)


class Now(NamedTuple):
    """The time: ``ms`` of a clock that never goes back, and what a record's timestamp says."""

    ms: int
    wall_ms: int


class QuorumState:
    """What a replica knows. ``now`` is the time of the input that is being handled."""

    def __init__(
        self,
        local: Voter,
        log: RaftLog,
        membership: VoterSetHistory,
        *,
        election: ElectionState | None,
        config: QuorumConfig,
        random: Random,
        now: Now,
        listener: str = "CONTROLLER",
        bootstrap: Sequence[Address] = (),
    ) -> None:
        self.local: Final = local
        self.log: Final = log
        self.membership: Final = membership
        self.config: Final = config
        self.random: Final = random
        self.listener: Final = listener
        self.peers: Final = RequestManager(config, bootstrap)
        self.now = now
        self.durable_end = log.end.offset  # the log is on disk below this
        self.installing: SnapshotId | None = None  # the snapshot that is being made durable
        self.stopping = False
        self._effects: list[Effect] = []
        self._told_leader: tuple[int | None, int] | None = None
        self._persisted = election
        self.state: State = self._initial_state(election or ElectionState())

    def _initial_state(self, election: ElectionState) -> State:
        """As it was when the node stopped; only a leader has to be elected anew, in another epoch.

        It may have lost records of its epoch that others have, and must not write others in their place.
        """
        epoch, log_epoch = election.epoch, self.log.end.epoch
        # Nobody has heard of a leader since this process began, so there is nothing to wait for; if there is
        # one, the pre-vote disturbs nobody.
        soon = self.now.ms + self.turn_ms(self.config.election_timeout_ms // 8)
        deadline = soon if self.may_vote else NEVER_MS
        if epoch < log_epoch:
            return UnattachedState(log_epoch, deadline)
        if election.leader_id == self.local.key.id:
            return ResignedState(epoch, soon, self.local.key.id, election.voted)
        voters = self.membership.voters
        mine = election.voted is not None and election.voted.id == self.local.key.id
        if mine and self.may_vote and voters is not None and log_epoch < epoch:
            return CandidateState(epoch, deadline, Tally(voters, self.local.key), self.local.key)
        if election.leader_id is not None:
            endpoints = self.endpoints_of(election.leader_id)
            if endpoints:
                return FollowerState(
                    epoch,
                    self.now.ms + self.config.fetch_timeout_ms,
                    election.leader_id,
                    endpoints,
                    election.voted,
                    update_voter_ms=self.now.ms + self.config.update_voter_interval_ms,
                )
        return UnattachedState(epoch, deadline, election.leader_id, election.voted)

    # What is known

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int | None:
        return self.state.leader_id

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def is_leader(self) -> bool:
        return self.state.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        return self.membership.is_voter(self.local.key)

    @property
    def may_vote(self) -> bool:
        """Whether it may stand for election."""
        return self.membership.may_vote(self.local.key, self.log.high_watermark)

    @property
    def high_watermark(self) -> int | None:
        return self.state.high_watermark

    def endpoints_of(self, node_id: int) -> Mapping[str, Address]:
        """How the voters' own record says that a node is reached; empty if it does not."""
        voters = self.membership.voters
        voter = None if voters is None else voters.voters.get(node_id)
        return {} if voter is None else voter.endpoints

    def address(self, endpoints: Mapping[str, Address]) -> Address | None:
        """The endpoint of the quorum's listener, or the first one."""
        found = endpoints.get(self.listener)
        return found if found is not None else next(iter(endpoints.values()), None)

    def leader_endpoint(self) -> Address | None:
        """Where the leader is reached, to be told in replies."""
        if self.is_leader or self.state.role is Role.RESIGNED:
            return self.address(self.local.endpoints)
        if isinstance(self.state, FollowerState | ProspectiveState):
            return self.address(self.state.leader_endpoints)
        leader = self.state.leader_id
        return None if leader is None else self.address(self.endpoints_of(leader))

    def election_timeout_ms(self) -> int:
        """Between one and two times what is configured, so that not all begin at once."""
        base = self.config.election_timeout_ms
        return base + self.random.randrange(0, base) if base > 0 else 0

    def turn_ms(self, step_ms: int, gone: int | None = None) -> int:
        """How long to wait where several voters see at the same moment that a leader is needed, for all but
        ``gone``: each has its turn, so that the first is likely to be alone.
        """
        voters = self.membership.voters
        ids = [] if voters is None else [id for id in voters.ids if id != gone]
        position = ids.index(self.local.key.id) if self.local.key.id in ids else len(ids)
        return position * step_ms + self.random.randrange(0, step_ms // 2 + 1)

    # Effects

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def send(self, node_id: int, address: Address | None, request: Request) -> bool:
        """Ask a peer, unless it is still asked, or rests; whether it was asked."""
        if address is None or not self.peers.is_ready(node_id, self.now.ms):
            return False
        self.emit(Send(self.peers.begin(node_id, address, request, self.now.ms), node_id, address, request))
        return True

    # Changes of state

    def become(self, state: State) -> None:
        before = self.state
        assert state.epoch >= before.epoch, f"from epoch {before.epoch} back to {state.epoch}"
        if state.epoch == before.epoch:
            assert before.voted in (None, state.voted), f"{state} forgets the vote of {before}"
            assert before.leader_id in (None, state.leader_id), f"{state} forgets the leader of {before}"
        _log.info(
            "node %d: %s of epoch %d, was %s of epoch %d",
            self.local.key.id,
            state.role.value,
            state.epoch,
            before.role.value,
            before.epoch,
        )
        if isinstance(before, FollowerState) and before.download is not None and not before.download.complete:
            self.log.abandon_snapshot()
        self.state = state
        self.peers.reset()
        self.persist()
        if isinstance(before, LeaderState):
            release_fetches(self, before)
            abandon_change(self, before)
        self.tell_leader()

    def persist(self) -> None:
        """Have what must not be forgotten written down, if it is new."""
        election = election_of(self.state, self.membership.voters, self.membership.kraft_version)
        if election != self._persisted:
            self._persisted = election
            self.emit(Persist(election))

    def tell_leader(self) -> None:
        leader = self.leader_id
        if leader == self.local.key.id and not self.is_leader:
            leader = None  # it was this node, in an earlier life or until it resigned
        told = (leader, self.epoch)
        if told != self._told_leader:
            self._told_leader = told
            self.emit(LeaderChanged(*told))

    def become_unattached(self, epoch: int, leader_id: int | None = None) -> None:
        state = self.state
        if not self.may_vote:
            deadline = NEVER_MS
        elif isinstance(
            state, UnattachedState | CandidateState | ResignedState | ProspectiveState
        ) and not _lost(state):
            deadline = min(state.deadline_ms, self.now.ms + 2 * self.config.election_timeout_ms)
        else:
            deadline = self.now.ms + self.election_timeout_ms()
        voted = state.voted if epoch == state.epoch else None
        self.become(UnattachedState(epoch, deadline, leader_id, voted, state.high_watermark))

    def become_follower(self, epoch: int, leader_id: int, endpoints: Mapping[str, Address]) -> None:
        assert leader_id != self.local.key.id, "a node does not follow itself"
        state = self.state
        voted = state.voted if epoch == state.epoch else None
        self.become(
            FollowerState(
                epoch,
                self.now.ms + self.config.fetch_timeout_ms,
                leader_id,
                endpoints,
                voted,
                state.high_watermark,
                update_voter_ms=self.now.ms + self.config.update_voter_interval_ms,
            )
        )

    def become_prospective(self) -> None:
        state, voters = self.state, self.membership.voters
        assert voters is not None
        assert not isinstance(state, LeaderState)
        endpoints = state.leader_endpoints if isinstance(state, FollowerState) else {}
        self.become(
            ProspectiveState(
                state.epoch,
                self.now.ms + self.election_timeout_ms(),
                Tally(voters, self.local.key),
                state.leader_id,
                endpoints,
                state.voted,
                state.high_watermark,
            )
        )

    def become_candidate(self) -> None:
        voters = self.membership.voters
        assert voters is not None
        assert self.state.role is Role.PROSPECTIVE
        self.become(
            CandidateState(
                self.epoch + 1,
                self.now.ms + self.election_timeout_ms(),
                Tally(voters, self.local.key),
                self.local.key,
                self.high_watermark,
            )
        )

    def become_leader(self) -> None:
        """Begin the epoch with a record that says so; nothing before it is committed by counting."""
        state, voters = self.state, self.membership.voters
        assert isinstance(state, CandidateState)
        assert voters is not None
        start = self.log.end.offset
        progress = ProgressTracker(
            self.local.key,
            voters,
            epoch_start=start,
            now_ms=self.now.ms,
            quorum_timeout_ms=self.config.check_quorum_timeout_ms,
        )
        self.become(LeaderState(state.epoch, start, state.voted, self.local.key.id, progress))
        self.append_control(self._start_of_epoch(voters, state.tally.granting))

    def _start_of_epoch(self, voters: VoterSet, granting: Sequence[int]) -> list[QuorumRecord]:
        records: list[QuorumRecord] = [
            LeaderChangeMessage(
                leader_id=self.local.key.id,
                voters=[LeaderChangeMessageVoter(voter_id=id) for id in voters.ids],
                granting_voters=[LeaderChangeMessageVoter(voter_id=id) for id in granting],
            )
        ]
        entry = self.membership.entry
        if entry is not None:
            updated = voters.updated(self.local) if voters.is_voter(self.local.key) else voters
            if entry.offset == BEFORE_LOG or updated != voters:
                records.append(KRaftVersionRecord(kraft_version=self.membership.kraft_version))
                records.append(updated.to_record())
        return records

    def resign(self) -> None:
        """Lead no longer, and tell the others; they need not wait until they notice."""
        state, voters = self.state, self.membership.voters
        assert isinstance(state, LeaderState)
        others = [] if voters is None else [id for id in voters.ids if id != self.local.key.id]
        deadline = self.now.ms + self.election_timeout_ms()
        self.become(
            ResignedState(
                state.epoch,
                deadline,
                state.leader_id,
                state.voted,
                state.progress.successors(),
                others,
                state.high_watermark,
            )
        )

    # The log

    def append_control(self, records: Sequence[QuorumRecord]) -> int:
        """Append records of the quorum itself; the offset of the last one."""
        first = self.log.end.offset
        batch = build_quorum_batch(
            records, timestamp=self.now.wall_ms, leader_epoch=self.epoch, base_offset=first
        )
        self.log.append_as_leader(batch, self.epoch)
        self.membership.take(first, records)
        state, voters = self.state, self.membership.voters
        assert isinstance(state, LeaderState)
        assert voters is not None
        state.progress.set_voters(voters, self.now.ms)
        state.remind_ms = self.now.ms
        self.emit(Flush())
        return self.log.end.offset - 1

    def append_batch(self, batch: bytes) -> int:
        """Append a batch of the leader's epoch whose offsets follow on the log; where the log ends then."""
        if not self.is_leader:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                f"node {self.local.key.id} does not lead the quorum; the leader is {self.leader_id}",
            )
        self.log.append_as_leader(batch, self.epoch)
        self.emit(Flush())
        return self.log.end.offset

    def set_high_watermark(self, offset: int) -> None:
        """Take over a high watermark and tell of it."""
        self.log.set_high_watermark(offset)
        self.emit(Committed(offset))

    def is_for_us(self, voter: ReplicaKey | None) -> bool:
        """Whether a request that names its voter means this one."""
        if voter is None:
            return True
        known = (bytes(16), self.local.key.directory_id)
        return voter.id == self.local.key.id and voter.directory_id in known


def _lost(state: State) -> bool:
    return isinstance(state, ProspectiveState | CandidateState) and state.tally.lost
