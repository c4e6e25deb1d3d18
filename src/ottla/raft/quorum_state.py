"""A replica's state in the quorum and the transitions between states (Kafka's QuorumState).

The states themselves are in `ottla.raft.states`; `ottla.raft.machine` and `ottla.raft.voter_changes` decide
what a message changes. Invariants: the epoch never goes back; within an epoch neither the vote nor the
leader changes; no effect that rests on a vote or an epoch is emitted before the `Persist` that keeps it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.protocol.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.config import QuorumConfig
from ottla.raft.effects import Answer, Committed, Effect, Flush, LeaderChanged, Persist, Send
from ottla.raft.log import RaftLog
from ottla.raft.messages import (
    NO_LEADER_ID,
    UNKNOWN_HIGH_WATERMARK,
    FetchReply,
    OffsetAndEpoch,
    Request,
    VoterChangeReply,
)
from ottla.raft.progress import ProgressTracker
from ottla.raft.request_manager import RequestManager
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import (
    NEVER_MS,
    CandidateState,
    ElectionState,
    EpochElection,
    EpochState,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    Role,
    UnattachedState,
    election_state,
)
from ottla.raft.voters import BEFORE_LOG, ReplicaKey, Voter, VoterSet, VoterSetHistory
from ottla.records.control import QuorumRecord
from ottla.runtime.address import Address
from ottla.runtime.random import Random

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """The quorum as one replica knows it at one moment: all that other packages see of the machine."""

    node_id: int
    role: Role
    epoch: int
    leader_id: int | None
    high_watermark: int | None  # None until this replica has heard of one in this process
    log_end: OffsetAndEpoch
    epoch_start_offset: int | None  # of the epoch that this replica leads; None if it leads none
    kraft_version: int
    voters: VoterSet | None

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER


class QuorumState:
    """The state of one replica and everything that it rests on.

    The effects that transitions and sends emit are collected until `take_effects`. Time is passed in as
    `now_ms`, the milliseconds of a monotonic clock.
    """

    def __init__(
        self,
        local: Voter,
        log: RaftLog,
        voter_history: VoterSetHistory,
        *,
        election: ElectionState | None,
        config: QuorumConfig,
        random: Random,
        now_ms: int,
        listener: str = "CONTROLLER",
        bootstrap: Sequence[Address] = (),
    ) -> None:
        self.local: Final = local
        self.log: Final = log
        self.voter_history: Final = voter_history
        self.config: Final = config
        self.random: Final = random
        self.listener: Final = listener
        self.requests: Final = RequestManager(config, bootstrap)
        self.durable_end = log.end.offset  # the log is on disk below this
        self.installing: SnapshotId | None = None  # the snapshot that is being made durable
        self.is_shutting_down = False
        # When a write last found no room; NEVER_MS if none has.
        self._lacked_room_ms = NEVER_MS
        self._effects: list[Effect] = []
        self._announced_leader: tuple[int | None, int] | None = None  # of the last LeaderChanged
        self._persisted = election
        self.state: EpochState = self._initial_state(election or ElectionState(), now_ms)

    def _initial_state(self, election: ElectionState, now_ms: int) -> EpochState:
        """Resume the state in which the node stopped. A former leader does not lead its epoch again.

        It may have lost records of its epoch that others have, and must not write others in their place.
        """
        epoch, log_epoch = election.epoch, self.log.end.epoch
        # This process has not heard of a leader yet, so there is nothing to wait for; if there is a leader,
        # the pre-vote does not disturb it.
        soon = now_ms + self.staggered_delay_ms(self.config.election_timeout_ms // 8)
        deadline = soon if self.may_vote else NEVER_MS
        if epoch < log_epoch:
            return UnattachedState(log_epoch, deadline)
        if election.leader_id == self.local.key.id:
            return ResignedState(epoch, soon, self.local.key.id, election.voted)
        voters = self.voters
        voted_for_itself = election.voted is not None and election.voted.id == self.local.key.id
        if voted_for_itself and self.may_vote and voters is not None and log_epoch < epoch:
            return CandidateState(epoch, deadline, EpochElection(voters, self.local.key), self.local.key)
        if election.leader_id is not None:
            endpoints = self.endpoints_of(election.leader_id)
            if endpoints:
                return FollowerState(
                    epoch,
                    now_ms + self.config.fetch_timeout_ms,
                    election.leader_id,
                    endpoints,
                    election.voted,
                    update_voter_ms=now_ms + self.config.update_voter_interval_ms,
                )
        return UnattachedState(epoch, deadline, election.leader_id, election.voted)

    # Queries

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int | None:
        return self.state.leader_id

    @property
    def leader_id_or_none(self) -> int:
        """The leader's id as replies carry it, -1 for an unknown one."""
        leader_id = self.state.leader_id
        return NO_LEADER_ID if leader_id is None else leader_id

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def is_leader(self) -> bool:
        return self.state.role is Role.LEADER

    @property
    def voters(self) -> VoterSet | None:
        """The newest voters, committed or not; None if this node knows none yet."""
        return self.voter_history.voters

    @property
    def kraft_version(self) -> int:
        return self.voter_history.kraft_version

    @property
    def is_voter(self) -> bool:
        return self.voter_history.is_voter(self.local.key)

    @property
    def may_vote(self) -> bool:
        """Whether this replica may stand for election."""
        return self.voter_history.may_vote(self.local.key, self.log.high_watermark)

    @property
    def fetch_resumes_ms(self) -> int:
        """When a replica that found no room for records fetches them again."""
        lacked_ms = self._lacked_room_ms
        return -1 if lacked_ms == NEVER_MS else lacked_ms + self.config.room_retry_ms

    @property
    def election_resumes_ms(self) -> int:
        """When a voter that found no room stands for election again."""
        lacked_ms = self._lacked_room_ms
        return -1 if lacked_ms == NEVER_MS else lacked_ms + self.config.room_election_backoff_ms

    def may_stand(self, now_ms: int) -> bool:
        """Whether this voter may ask for votes now."""
        return self.may_vote and not self.is_shutting_down and now_ms >= self.election_resumes_ms

    @property
    def high_watermark(self) -> int | None:
        return self.state.high_watermark

    def status(self) -> RaftStatus:
        state = self.state
        return RaftStatus(
            node_id=self.local.key.id,
            role=state.role,
            epoch=state.epoch,
            leader_id=state.leader_id,
            high_watermark=state.high_watermark,
            log_end=self.log.end,
            epoch_start_offset=state.epoch_start_offset if isinstance(state, LeaderState) else None,
            kraft_version=self.kraft_version,
            voters=self.voters,
        )

    def is_followed_since(self, since_ms: int) -> bool:
        """Whether this replica leads, and a majority of the voters has followed it since then: it was not cut
        off from the quorum at that time.
        """
        state = self.state
        return isinstance(state, LeaderState) and state.progress.has_majority_fetched_since(since_ms)

    def endpoints_of(self, node_id: int) -> Mapping[str, Address]:
        """The endpoints of a voter by the voters' record; empty if it has none."""
        voters = self.voters
        voter = None if voters is None else voters.voters.get(node_id)
        return {} if voter is None else voter.endpoints

    def address(self, endpoints: Mapping[str, Address]) -> Address | None:
        """The endpoint of the quorum's listener, or the first one."""
        found = endpoints.get(self.listener)
        return found if found is not None else next(iter(endpoints.values()), None)

    def leader_endpoints(self) -> Mapping[str, Address]:
        """Where the leader is reached, by listener, as far as this replica knows."""
        if self.is_leader or self.state.role is Role.RESIGNED:
            return self.local.endpoints
        if isinstance(self.state, FollowerState | ProspectiveState):
            return self.state.leader_endpoints
        leader = self.state.leader_id
        return {} if leader is None else self.endpoints_of(leader)

    def is_local_voter(self, voter: ReplicaKey | None) -> bool:
        """Whether a request that names its voter, or None, is for this replica."""
        if voter is None:
            return True
        known = (bytes(16), self.local.key.directory_id)
        return voter.id == self.local.key.id and voter.directory_id in known

    def random_election_timeout_ms(self) -> int:
        """Between one and two times the configured timeout, so that voters do not start at once."""
        base = self.config.election_timeout_ms
        return base + self.random.randrange(0, base) if base > 0 else 0

    def staggered_delay_ms(self, step_ms: int, gone: int | None = None) -> int:
        """How long this voter waits when all voters but `gone` notice at the same moment that a leader is
        needed: each has its own turn, so that the first one is likely to be alone.
        """
        voters = self.voters
        ids = [] if voters is None else [id for id in voters.ids if id != gone]
        position = ids.index(self.local.key.id) if self.local.key.id in ids else len(ids)
        return position * step_ms + self.random.randrange(0, step_ms // 2 + 1)

    # Effects

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def send(self, node_id: int, address: Address | None, request: Request, now_ms: int) -> bool:
        """Send a request, unless one is in flight to the node or the node is backing off; whether it was
        sent.
        """
        if address is None or not self.requests.is_ready(node_id, now_ms):
            return False
        correlation_id = self.requests.on_request_sent(node_id, address, request, now_ms)
        self.emit(Send(correlation_id, node_id, address, request))
        return True

    def fetch_reply(
        self,
        error: ErrorCode = ErrorCode.NONE,
        *,
        records: bytes = b"",
        diverging: OffsetAndEpoch | None = None,
        snapshot: SnapshotId | None = None,
    ) -> FetchReply:
        high_watermark = self.high_watermark if error is ErrorCode.NONE else None
        return FetchReply(
            self.epoch,
            self.leader_id_or_none,
            UNKNOWN_HIGH_WATERMARK if high_watermark is None else high_watermark,
            self.log.start_offset,
            records,
            diverging,
            snapshot,
            error,
            self.leader_endpoints(),
        )

    def not_leader_reply(self) -> VoterChangeReply:
        return VoterChangeReply(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"Node {self.local.key.id} is not the leader of the quorum; the leader is {self.leader_id}.",
        )

    # Transitions

    def _transition_to(self, state: EpochState) -> None:
        before = self.state
        assert state.epoch >= before.epoch, f"from epoch {before.epoch} back to {state.epoch}"
        if state.epoch == before.epoch:
            assert before.voted in (None, state.voted), f"{state} forgets the vote of {before}"
            assert before.leader_id in (None, state.leader_id), f"{state} forgets the leader of {before}"
        _log.info(
            "node %d: transition to %s of epoch %d from %s of epoch %d",
            self.local.key.id,
            state.role.value,
            state.epoch,
            before.role.value,
            before.epoch,
        )
        if isinstance(before, FollowerState) and before.download is not None and not before.download.complete:
            self.log.abandon_snapshot()
        self.state = state
        self.requests.reset_all()
        self.persist()
        if isinstance(before, LeaderState):
            self._answer_waiting_requests(before)
        self.announce_leader()

    def _answer_waiting_requests(self, before: LeaderState) -> None:
        """Answer what waits for a leader that does not lead any more. Whether a voter change that is in
        progress takes effect is up to the next leader.
        """
        for delayed in before.delayed_fetches:
            self.emit(Answer(delayed.token, self.fetch_reply(ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        before.delayed_fetches.clear()
        change, before.voter_change = before.voter_change, None
        if change is not None and change.token is not None:
            self.emit(Answer(change.token, self.not_leader_reply()))

    def persist(self) -> None:
        """Write the part of the state that must not be forgotten, if it changed."""
        election = election_state(self.state, self.voters, self.kraft_version)
        if election != self._persisted:
            self._persisted = election
            self.emit(Persist(election))

    def announce_leader(self) -> None:
        leader = self.leader_id
        if leader == self.local.key.id and not self.is_leader:
            leader = None  # this node led the epoch before it restarted or resigned
        news = (leader, self.epoch)
        if news != self._announced_leader:
            self._announced_leader = news
            self.emit(LeaderChanged(*news))

    def transition_to_unattached(self, epoch: int, now_ms: int, leader_id: int | None = None) -> None:
        state = self.state
        if not self.may_vote:
            deadline = NEVER_MS
        elif isinstance(state, UnattachedState | ResignedState) or (
            isinstance(state, ProspectiveState | CandidateState) and not state.election.is_vote_rejected
        ):
            deadline = min(state.deadline_ms, now_ms + 2 * self.config.election_timeout_ms)
        else:
            deadline = now_ms + self.random_election_timeout_ms()
        voted = state.voted if epoch == state.epoch else None
        self._transition_to(UnattachedState(epoch, deadline, leader_id, voted, state.high_watermark))

    def transition_to_follower(
        self, epoch: int, leader_id: int, endpoints: Mapping[str, Address], now_ms: int
    ) -> None:
        assert leader_id != self.local.key.id, f"node {leader_id} would follow itself in epoch {epoch}"
        state = self.state
        voted = state.voted if epoch == state.epoch else None
        self._transition_to(
            FollowerState(
                epoch,
                now_ms + self.config.fetch_timeout_ms,
                leader_id,
                endpoints,
                voted,
                state.high_watermark,
                update_voter_ms=now_ms + self.config.update_voter_interval_ms,
            )
        )

    def transition_to_prospective(self, now_ms: int) -> None:
        state, voters = self.state, self.voters
        assert voters is not None, f"{state} stands for election without knowing the voters"
        assert not isinstance(state, LeaderState), f"{state} stands for election"
        endpoints = state.leader_endpoints if isinstance(state, FollowerState) else {}
        self._transition_to(
            ProspectiveState(
                state.epoch,
                now_ms + self.random_election_timeout_ms(),
                EpochElection(voters, self.local.key),
                state.leader_id,
                endpoints,
                state.voted,
                state.high_watermark,
            )
        )

    def transition_to_candidate(self, now_ms: int) -> None:
        voters = self.voters
        assert voters is not None, f"{self.state} stands for election without knowing the voters"
        assert self.state.role is Role.PROSPECTIVE, f"{self.state} skips the pre-vote"
        self._transition_to(
            CandidateState(
                self.epoch + 1,
                now_ms + self.random_election_timeout_ms(),
                EpochElection(voters, self.local.key),
                self.local.key,
                self.high_watermark,
            )
        )

    def transition_to_leader(self, now_ms: int) -> None:
        """Start the epoch with a LeaderChangeMessage; nothing before it is committed by counting."""
        state, voters = self.state, self.voters
        assert isinstance(state, CandidateState), f"{state} would lead without an election"
        assert state.election.is_vote_granted, f"{state} would lead without a majority"
        assert voters is not None, f"{state} would lead without knowing the voters"
        start = self.log.end.offset
        progress = ProgressTracker(
            self.local.key,
            voters,
            epoch_start_offset=start,
            now_ms=now_ms,
            check_quorum_timeout_ms=self.config.check_quorum_timeout_ms,
        )
        self._transition_to(LeaderState(state.epoch, start, state.voted, self.local.key.id, progress))
        self.append_control_records(self._epoch_start_records(voters, state.election.granting), now_ms)

    def _epoch_start_records(self, voters: VoterSet, granting: Sequence[int]) -> list[QuorumRecord]:
        records: list[QuorumRecord] = [
            LeaderChangeMessage(
                leader_id=self.local.key.id,
                voters=[LeaderChangeMessageVoter(voter_id=id) for id in voters.ids],
                granting_voters=[LeaderChangeMessageVoter(voter_id=id) for id in granting],
            )
        ]
        entry = self.voter_history.last_entry
        if entry is not None:
            updated = voters.update_voter(self.local) if voters.is_voter(self.local.key) else voters
            if entry.offset == BEFORE_LOG or updated != voters:
                records.append(KRaftVersionRecord(kraft_version=self.kraft_version))
                records.append(updated.to_record())
        return records

    def transition_to_resigned(self, now_ms: int) -> None:
        """Stop leading, and inform the other voters, so that they do not wait for their fetch timeout."""
        state, voters = self.state, self.voters
        assert isinstance(state, LeaderState), f"{state} resigns"
        others = [] if voters is None else [id for id in voters.ids if id != self.local.key.id]
        deadline = now_ms + self.random_election_timeout_ms()
        self._transition_to(
            ResignedState(
                state.epoch,
                deadline,
                state.leader_id,
                state.voted,
                state.progress.preferred_successors(),
                others,
                state.high_watermark,
            )
        )

    # The log

    def on_no_room(self, now_ms: int) -> None:
        """Note that a write found no room. A leader hands over to a voter that may have some. A voter alone
        stays, unless not even the beginning of its epoch is in the log.
        """
        self._lacked_room_ms = now_ms
        state = self.state
        if isinstance(state, LeaderState):
            has_begun = self.log.end.offset > state.epoch_start_offset
            if not has_begun or not self.voter_history.is_only_voter(self.local.key):
                _log.warning(
                    "node %d: resigns as leader of epoch %d, as there is no room for the metadata log",
                    self.local.key.id,
                    state.epoch,
                )
                self.transition_to_resigned(now_ms)

    def append_control_records(self, records: Sequence[QuorumRecord], now_ms: int) -> int:
        """Append records of the quorum itself as leader; the offset of the last one."""
        first = self.log.end.offset
        self.log.append_control_as_leader(records, self.epoch)
        self.voter_history.replay_records(first, records)
        state, voters = self.state, self.voters
        assert isinstance(state, LeaderState), f"{state} appends control records"
        assert voters is not None, f"{state} leads without knowing the voters"
        state.progress.update_voters(voters, now_ms)
        state.begin_epoch_ms = now_ms
        self.emit(Flush())
        return self.log.end.offset - 1

    def append_batch(self, batch: bytes) -> int:
        """Append a batch of the leader's epoch whose offsets follow on the log; the end of the log then."""
        if not self.is_leader:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                f"node {self.local.key.id} does not lead the quorum; the leader is {self.leader_id}",
            )
        self.log.append_as_leader(batch, self.epoch)
        self.emit(Flush())
        return self.log.end.offset

    def update_high_watermark(self, offset: int) -> None:
        """Pass a new high watermark on to the log and to the listener."""
        assert offset >= self.log.high_watermark, (
            f"the high watermark would go back from {self.log.high_watermark} to {offset}"
        )
        self.log.update_high_watermark(offset)
        self.emit(Committed(offset))
