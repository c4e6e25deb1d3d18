"""The state machine of the quorum, in Kafka's dialect of Raft: messages and time go in, effects come out.

The driver (`ottla.raft.driver`) calls an input (a request came, a response came, the log is on disk, time
passed), carries out what `KafkaRaftMachine.take_effects` returns, in order, and calls `poll` at
`next_deadline_ms` at the latest. After each input the machine does what is due in its state, so nothing
depends on when exactly it is called. It never waits and never reads a clock: every input carries `now_ms`,
the milliseconds of a monotonic clock.

Elections: before a voter starts a new epoch it asks whether it would win (pre-vote). The others grant that
only if its log is at least as up to date as theirs (by its last epoch, then by its end offset) and they do
not hear from a leader themselves, so a node that was cut off and comes back disturbs no one. Invariant: a
voter votes for one candidate in an epoch, and only for one whose log is at least as up to date as its own.

Replication: followers fetch; the leader answers with records, with the point where the logs diverge, or with
the snapshot to start from. A fetch offset says that everything below it is on the fetcher's disk, so a
follower fetches again only once what it appended has been synced. A fetch that finds nothing new waits at the
leader. Invariant: a replica never truncates its log below the high watermark.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft import voter_changes
from ottla.raft.effects import Answer, Effect, Flush, InstallSnapshot, SnapshotLoaded
from ottla.raft.log import NoRoom, Validity, truncation_offset, validate_offset_and_epoch
from ottla.raft.messages import (
    NO_LEADER_ID,
    UNKNOWN_HIGH_WATERMARK,
    AddVoter,
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    EndEpochReply,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    LeaderReply,
    OffsetAndEpoch,
    QueryVersions,
    RemoveVoter,
    Reply,
    Request,
    UpdateVoter,
    VersionsReply,
    Vote,
    VoteReply,
)
from ottla.raft.progress import ReplicaProgress
from ottla.raft.quorum_state import QuorumState
from ottla.raft.request_manager import InflightRequest
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import (
    NEVER_MS,
    CandidateState,
    DelayedQuorumFetch,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    Role,
    SnapshotDownload,
    UnattachedState,
)
from ottla.raft.voters import NO_DIRECTORY, ReplicaKey
from ottla.runtime.address import Address

_log = logging.getLogger(__name__)

# A state may lead at once to the next (a single voter goes through all of them), but not in circles.
_MAX_TRANSITIONS: Final = 8
_MAX_DELAYED_FETCHES: Final = 10_000
_MAX_FETCH_WAIT_MS: Final = 60_000


class LogContradiction(Exception):
    """A leader contradicts what is committed here: the guarantees of the quorum do not hold any more."""


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The leader's view of every replica's log, for DescribeQuorum. Times are those of `now_ms`."""

    leader_id: int
    epoch: int
    high_watermark: int
    voters: list[ReplicaProgress]
    observers: list[ReplicaProgress]


class KafkaRaftMachine:
    """Call `start` first."""

    def __init__(self, quorum: QuorumState) -> None:
        self.quorum: Final = quorum

    # Inputs

    def start(self, now_ms: int) -> None:
        quorum = self.quorum
        quorum.persist()
        quorum.announce_leader()
        alone = quorum.voter_history.is_only_voter(quorum.local.key)
        if alone and quorum.role in (Role.UNATTACHED, Role.RESIGNED, Role.FOLLOWER):
            quorum.transition_to_prospective(now_ms)
        self.poll(now_ms)

    def poll(self, now_ms: int) -> None:
        """Do what is due."""
        quorum = self.quorum
        for inflight in quorum.requests.timed_out_requests(now_ms):
            quorum.requests.on_response(inflight.correlation_id, now_ms, failed=True)
            if isinstance(inflight.request, QueryVersions):
                voter_changes.handle_versions_failure(quorum, inflight.node_id)
        for _ in range(_MAX_TRANSITIONS):
            before = quorum.state
            self._poll_state(now_ms)
            if quorum.state is before:
                return
        raise AssertionError(f"the state {quorum.state} does not come to rest")

    def handle_request(self, token: object, request: Request, now_ms: int) -> None:
        """Handle a request; it is answered by an `Answer` with this token, now or later."""
        reply = self._handle_request(token, request, now_ms)
        if reply is not None:
            self.quorum.emit(Answer(token, reply))
        self.poll(now_ms)

    def handle_response(self, correlation_id: int, reply: Reply, now_ms: int) -> None:
        """Handle a peer's response to a `Send`."""
        failed = reply.error is not ErrorCode.NONE
        inflight = self.quorum.requests.on_response(correlation_id, now_ms, failed=failed)
        if inflight is not None:
            self._handle_response(inflight, reply, now_ms)
        self.poll(now_ms)

    def handle_failure(self, correlation_id: int, now_ms: int, *, refused: bool = False) -> None:
        """Handle a `Send` that got no response: the peer cannot be reached, or the connection broke;
        `refused` if no process listens at the address.
        """
        quorum = self.quorum
        inflight = quorum.requests.on_response(correlation_id, now_ms, failed=True)
        if inflight is not None:
            if isinstance(inflight.request, QueryVersions):
                voter_changes.handle_versions_failure(quorum, inflight.node_id)
            state = quorum.state
            if refused and isinstance(state, FollowerState) and inflight.node_id == state.leader_id:
                self._on_leader_process_gone(state, now_ms)
            elif refused and quorum.is_shutting_down and isinstance(state, ResignedState):
                # That voter's process has ended, and this one ends too: there is nothing to wait for.
                state.unacknowledged = [id for id in state.unacknowledged if id != inflight.node_id]
        self.poll(now_ms)

    def on_log_flushed(self, end_offset: int, now_ms: int) -> None:
        """Note that the log, as it is now, is on disk below `end_offset`."""
        self.quorum.durable_end = min(end_offset, self.quorum.log.end.offset)
        self.poll(now_ms)

    def on_snapshot_ready(self, id: SnapshotId, now_ms: int, *, usable: bool = True) -> None:
        """Take over a fetched snapshot that is on disk now; `usable` is False if it turned out to be damaged.

        If another epoch has started since, the file is kept for the next start, and fetched again if it is
        still needed.
        """
        self._install_snapshot(id, usable=usable)
        self.poll(now_ms)

    def append(self, batch: bytes, now_ms: int) -> int:
        """Append a batch of the leader's epoch; the end of the log then. The batch is committed once the high
        watermark reaches it.
        """
        end = self.quorum.append_batch(batch)
        self.poll(now_ms)
        return end

    def upgrade_kraft_version(self, kraft_version: int, now_ms: int, *, validate_only: bool) -> str | None:
        """Raise the `kraft.version` of the quorum; the reason if that is refused."""
        refusal = voter_changes.upgrade_kraft_version(
            self.quorum, kraft_version, now_ms, validate_only=validate_only
        )
        self.poll(now_ms)
        return refusal

    def on_no_room(self, now_ms: int) -> None:
        """Note that an input raised `NoRoom`: what this replica would have written is not in its log. A
        leader resigns, if there is another voter.
        """
        self.quorum.on_no_room(now_ms)
        self.poll(now_ms)

    def shut_down(self, now_ms: int) -> None:
        """Prepare for the end of the node: a leader resigns, and this replica starts no election."""
        quorum = self.quorum
        quorum.is_shutting_down = True
        if quorum.is_leader:
            quorum.transition_to_resigned(now_ms)
        self.poll(now_ms)

    # Queries

    @property
    def is_shut_down(self) -> bool:
        """Whether, after `shut_down`, all voters have acknowledged the resignation, if one was sent."""
        state = self.quorum.state
        return self.quorum.is_shutting_down and not (
            isinstance(state, ResignedState) and state.unacknowledged
        )

    def take_effects(self) -> list[Effect]:
        return self.quorum.take_effects()

    def describe(self, now_ms: int) -> QuorumInfo | None:
        """The leader's view of all replicas; None if this node does not lead."""
        state = self.quorum.state
        if not isinstance(state, LeaderState):
            return None
        return QuorumInfo(
            leader_id=state.leader_id,
            epoch=state.epoch,
            high_watermark=-1 if state.high_watermark is None else state.high_watermark,
            voters=state.progress.voters(),
            observers=state.progress.observers(now_ms),
        )

    def next_deadline_ms(self, now_ms: int) -> int:
        """When to call `poll` at the latest; `now_ms` is the time of the last input."""
        quorum, state = self.quorum, self.quorum.state
        times = [quorum.requests.next_deadline_ms(now_ms)]
        if isinstance(state, LeaderState):
            if not state.progress.is_majority_alone:
                times.append(state.progress.check_quorum_deadline_ms)
            times.append(state.begin_epoch_ms)
            times += [delayed.deadline_ms for delayed in state.delayed_fetches]
            if state.voter_change is not None:
                times.append(state.voter_change.deadline_ms)
        else:
            times.append(state.deadline_ms)
            times += [quorum.fetch_resumes_ms, quorum.election_resumes_ms]
            if isinstance(state, FollowerState):
                times.append(state.update_voter_ms)
        return min((each for each in times if each is not None and each > now_ms), default=NEVER_MS)

    # What is due in each state

    def _poll_state(self, now_ms: int) -> None:
        state = self.quorum.state
        match state:
            case UnattachedState():
                self._poll_unattached(state, now_ms)
            case ProspectiveState():
                self._poll_prospective(state, now_ms)
            case CandidateState():
                self._poll_candidate(state, now_ms)
            case FollowerState():
                self._poll_follower(state, now_ms)
            case LeaderState():
                self._poll_leader(state, now_ms)
            case ResignedState():
                self._poll_resigned(state, now_ms)
            case _:
                assert_never(state)

    def _poll_unattached(self, state: UnattachedState, now_ms: int) -> None:
        quorum = self.quorum
        if quorum.may_stand(now_ms):
            if state.deadline_ms == NEVER_MS:
                state.deadline_ms = now_ms + quorum.random_election_timeout_ms()
            if now_ms >= state.deadline_ms:
                quorum.transition_to_prospective(now_ms)
                return
        self._find_leader(now_ms)

    def _poll_prospective(self, state: ProspectiveState, now_ms: int) -> None:
        quorum = self.quorum
        election = state.election
        if election.is_vote_granted and quorum.may_vote:
            quorum.transition_to_candidate(now_ms)
        elif (
            election.is_vote_rejected
            or now_ms >= state.deadline_ms
            or not quorum.may_vote
            or quorum.is_shutting_down
        ):
            if state.leader_id is not None and state.leader_endpoints:
                quorum.transition_to_follower(state.epoch, state.leader_id, state.leader_endpoints, now_ms)
            else:
                quorum.transition_to_unattached(state.epoch, now_ms, state.leader_id)
        else:
            self._maybe_send_vote_requests(state, now_ms)

    def _poll_candidate(self, state: CandidateState, now_ms: int) -> None:
        quorum = self.quorum
        if state.election.is_vote_granted and quorum.may_vote:
            quorum.transition_to_leader(now_ms)
        elif now_ms >= state.deadline_ms and not quorum.is_shutting_down:
            quorum.transition_to_prospective(now_ms)
        elif state.election.is_vote_rejected:
            # Other candidates asked at the same time. The first one to try again should be alone.
            backoff_ms = quorum.config.election_backoff_max_ms
            retry_ms = now_ms + 1 + quorum.random.randrange(0, max(backoff_ms, 1))
            if state.deadline_ms > now_ms + backoff_ms:
                state.deadline_ms = retry_ms
        else:
            self._maybe_send_vote_requests(state, now_ms)

    def _poll_follower(self, state: FollowerState, now_ms: int) -> None:
        quorum = self.quorum
        expired = now_ms >= state.deadline_ms
        if expired and quorum.may_stand(now_ms):
            quorum.transition_to_prospective(now_ms)
        elif expired or quorum.requests.is_backing_off(state.leader_id, now_ms):
            self._find_leader(now_ms, state.leader_id)
            if expired:
                self._maybe_send_fetch(state, now_ms)
        elif not voter_changes.maybe_update_own_voter(quorum, state, now_ms):
            self._maybe_send_fetch(state, now_ms)

    def _poll_leader(self, state: LeaderState, now_ms: int) -> None:
        quorum = self.quorum
        if state.progress.has_lost_quorum(now_ms):
            quorum.transition_to_resigned(now_ms)
            return
        if state.progress.update_local_state(quorum.durable_end, now_ms):
            self._on_leader_high_watermark(state)
        voter_changes.maybe_complete_change(quorum, state, now_ms)
        if quorum.state is state:
            self._complete_delayed_fetches(state, now_ms)
            self._maybe_send_begin_epoch(state, now_ms)

    def _poll_resigned(self, state: ResignedState, now_ms: int) -> None:
        if self.quorum.is_shutting_down or now_ms < state.deadline_ms:
            self._send_end_epoch(state, now_ms)
        else:
            self.quorum.transition_to_unattached(state.epoch + 1, now_ms)

    # Dispatch of requests and responses

    def _handle_request(self, token: object, request: Request, now_ms: int) -> Reply | None:
        quorum = self.quorum
        match request:
            case Vote():
                return self._handle_vote_request(request, now_ms)
            case BeginEpoch():
                return self._handle_begin_epoch_request(request, now_ms)
            case EndEpoch():
                return self._handle_end_epoch_request(request, now_ms)
            case Fetch():
                self._handle_fetch_request(token, request, now_ms)
            case FetchSnapshot():
                return self._handle_fetch_snapshot_request(request, now_ms)
            case AddVoter():
                voter_changes.handle_add_voter_request(quorum, token, request, now_ms)
            case RemoveVoter():
                voter_changes.handle_remove_voter_request(quorum, token, request, now_ms)
            case UpdateVoter():
                return voter_changes.handle_update_voter_request(quorum, request, now_ms)
            case QueryVersions():
                local = quorum.local
                return VersionsReply(local.min_kraft_version, local.max_kraft_version)
            case _:
                assert_never(request)
        return None

    def _handle_response(self, inflight: InflightRequest, reply: Reply, now_ms: int) -> None:
        quorum = self.quorum
        if isinstance(reply, LeaderReply):
            leader_id = None if reply.leader_id == NO_LEADER_ID else reply.leader_id
            self._maybe_transition(reply.epoch, leader_id, reply.endpoints, now_ms)
        request, from_id = inflight.request, inflight.node_id
        match request, reply:
            case Vote(), VoteReply():
                self._handle_vote_response(from_id, request, reply)
            case BeginEpoch(), BeginEpochReply():
                if isinstance(quorum.state, LeaderState) and reply.error is ErrorCode.NONE:
                    quorum.state.progress.add_acknowledgement(from_id)
            case EndEpoch(), EndEpochReply():
                if isinstance(quorum.state, ResignedState) and from_id in quorum.state.unacknowledged:
                    quorum.state.unacknowledged.remove(from_id)
            case Fetch(), FetchReply():
                try:
                    if not self._handle_fetch_response(from_id, request, reply, now_ms):
                        quorum.requests.back_off(from_id, now_ms)
                except NoRoom:
                    self._wait_for_room(now_ms)
            case FetchSnapshot(), FetchSnapshotReply():
                try:
                    if not self._handle_fetch_snapshot_response(from_id, request, reply, now_ms):
                        quorum.requests.back_off(from_id, now_ms)
                except NoRoom:
                    self._wait_for_room(now_ms)
            case QueryVersions(), VersionsReply():
                voter_changes.handle_versions_response(quorum, from_id, reply, now_ms)
            case _:
                pass  # this node's own AddVoter, RemoveVoter or UpdateVoter: sent again if it had no effect

    def _maybe_transition(
        self, epoch: int, leader_id: int | None, endpoints: Mapping[str, Address], now_ms: int
    ) -> None:
        """Move to an epoch seen in a message, and follow its leader if that is known."""
        quorum = self.quorum
        if epoch < quorum.epoch:
            return
        if leader_id == quorum.local.key.id and not (quorum.is_leader and epoch == quorum.epoch):
            leader_id = None  # this node led that epoch before it restarted; there is no leader to follow
        reachable = endpoints or ({} if leader_id is None else quorum.endpoints_of(leader_id))
        if epoch > quorum.epoch:
            if leader_id is not None and reachable:
                quorum.transition_to_follower(epoch, leader_id, reachable, now_ms)
            else:
                quorum.transition_to_unattached(epoch, now_ms, leader_id)
            return
        if leader_id is None or not isinstance(quorum.state, UnattachedState | CandidateState):
            return
        if quorum.leader_id not in (None, leader_id):
            # One of the two messages lies; the first is believed until the epoch ends.
            _log.warning(
                "node %d heard of leader %d in epoch %d, but knows %s as its leader",
                quorum.local.key.id,
                leader_id,
                epoch,
                quorum.leader_id,
            )
            return
        if reachable:
            quorum.transition_to_follower(epoch, leader_id, reachable, now_ms)

    def _on_leader_process_gone(self, state: FollowerState, now_ms: int) -> None:
        """Shorten the wait for the leader: its address refuses connections, so its process has ended. The
        pre-vote makes sure that a mistake does not disturb a leader.
        """
        quorum = self.quorum
        state.has_fetched_from_leader = False
        delay_ms = quorum.staggered_delay_ms(quorum.config.election_timeout_ms // 20, gone=state.leader_id)
        state.deadline_ms = min(state.deadline_ms, now_ms + delay_ms)

    # Elections: votes

    def _handle_vote_request(self, request: Vote, now_ms: int) -> VoteReply:
        quorum = self.quorum
        lowest = request.last.epoch if request.pre_vote else request.last.epoch + 1
        if (
            request.last.offset < 0
            or request.last.epoch < 0
            or request.epoch < lowest
            or request.candidate.id < 0
        ):
            return self._vote_reply(ErrorCode.INVALID_REQUEST)
        if request.epoch < quorum.epoch:
            return self._vote_reply(ErrorCode.FENCED_LEADER_EPOCH)
        if request.epoch > quorum.epoch:
            quorum.transition_to_unattached(request.epoch, now_ms)
        if not quorum.is_local_voter(request.voter):
            return self._vote_reply(ErrorCode.INVALID_VOTER_KEY)
        granted = self._can_grant_vote(request)
        if granted and not request.pre_vote:
            self._add_voted_state(request.candidate, now_ms)
        return self._vote_reply(granted=granted)

    def _can_grant_vote(self, request: Vote) -> bool:
        """Decide on a vote or pre-vote in the present state, as Kafka's `canGrantVote` of each state does."""
        state = self.quorum.state
        up_to_date = is_up_to_date(request.last, self.quorum.log.end)
        if request.pre_vote:
            if isinstance(state, LeaderState):
                return False
            if isinstance(state, FollowerState) and state.has_fetched_from_leader:
                return False
            return up_to_date
        if not isinstance(state, UnattachedState | ProspectiveState):
            return False
        if state.voted is not None:
            return _is_same_replica(state.voted, request.candidate)
        return state.leader_id is None and up_to_date

    def _add_voted_state(self, candidate: ReplicaKey, now_ms: int) -> None:
        """Persist the vote. The candidate gets a full election timeout to win."""
        state = self.quorum.state
        assert isinstance(state, UnattachedState | ProspectiveState), f"{state} votes for {candidate}"
        if state.voted is None:
            state.voted = candidate
            state.deadline_ms = now_ms + self.quorum.random_election_timeout_ms()
            self.quorum.persist()

    def _vote_reply(self, error: ErrorCode = ErrorCode.NONE, *, granted: bool = False) -> VoteReply:
        quorum = self.quorum
        return VoteReply(quorum.epoch, quorum.leader_id_or_none, granted, error, quorum.leader_endpoints())

    def _maybe_send_vote_requests(self, state: ProspectiveState | CandidateState, now_ms: int) -> None:
        """Ask every voter that has not answered, unless the election is decided."""
        quorum = self.quorum
        if state.election.is_vote_rejected or state.election.is_vote_granted:
            return
        pre_vote = isinstance(state, ProspectiveState)
        voters = quorum.voters
        for id in state.election.unanswered:
            voter = None if voters is None else voters.voters.get(id)
            if voter is not None:
                request = Vote(quorum.local.key, state.epoch, quorum.log.end, pre_vote, voter.key)
                quorum.send(id, quorum.address(voter.endpoints), request, now_ms)

    def _handle_vote_response(self, voter_id: int, request: Vote, reply: VoteReply) -> None:
        """Count a vote, if the election that it belongs to is still in progress."""
        state = self.quorum.state
        if not isinstance(state, ProspectiveState | CandidateState) or state.epoch != request.epoch:
            return
        if isinstance(state, ProspectiveState) != request.pre_vote:
            return
        if request.pre_vote and reply.error is ErrorCode.UNSUPPORTED_VERSION:
            state.election.record_vote(voter_id, True)  # it does not know pre-votes: its vote decides
        elif reply.error is ErrorCode.NONE:
            state.election.record_vote(voter_id, reply.granted)
        elif not reply.error.retriable:
            state.election.record_vote(voter_id, False)

    # Elections: the beginning and the end of an epoch

    def _handle_begin_epoch_request(self, request: BeginEpoch, now_ms: int) -> BeginEpochReply:
        quorum = self.quorum
        error = self._validate_leader_request(request.leader_id, request.epoch)
        if error is ErrorCode.NONE:
            self._maybe_transition(request.epoch, request.leader_id, request.endpoints, now_ms)
            state = quorum.state
            if isinstance(state, ProspectiveState) and state.leader_id in (None, request.leader_id):
                # The leader is alive after all.
                reachable = request.endpoints or quorum.endpoints_of(request.leader_id)
                if reachable and request.leader_id != quorum.local.key.id:
                    quorum.transition_to_follower(request.epoch, request.leader_id, reachable, now_ms)
            if not quorum.is_local_voter(request.voter):
                error = ErrorCode.INVALID_VOTER_KEY
        return BeginEpochReply(quorum.epoch, quorum.leader_id_or_none, error, quorum.leader_endpoints())

    def _validate_leader_request(self, leader_id: int, epoch: int) -> ErrorCode:
        if leader_id < 0 or epoch < 0:
            return ErrorCode.INVALID_REQUEST
        if epoch < self.quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def _maybe_send_begin_epoch(self, state: LeaderState, now_ms: int) -> None:
        """Tell the voters that do not fetch that this node leads."""
        quorum = self.quorum
        if now_ms < state.begin_epoch_ms:
            return
        voters = quorum.voters
        if voters is None or voters.ids == (quorum.local.key.id,):
            state.begin_epoch_ms = NEVER_MS
            return
        interval_ms = quorum.config.begin_epoch_interval_ms
        state.begin_epoch_ms = now_ms + min(interval_ms, 10 * max(quorum.config.retry_backoff_ms, 1))
        for key in state.progress.voters_needing_begin_epoch(now_ms, interval_ms):
            voter = voters.voters.get(key.id)
            if voter is not None:
                request = BeginEpoch(quorum.local.key.id, quorum.epoch, quorum.local.endpoints, voter.key)
                quorum.send(key.id, quorum.address(voter.endpoints), request, now_ms)

    def _handle_end_epoch_request(self, request: EndEpoch, now_ms: int) -> EndEpochReply:
        quorum = self.quorum
        error = self._validate_leader_request(request.leader_id, request.epoch)
        if error is ErrorCode.NONE:
            self._maybe_transition(request.epoch, request.leader_id, request.endpoints, now_ms)
            state = quorum.state
            if isinstance(state, FollowerState) and state.leader_id == request.leader_id:
                state.has_fetched_from_leader = False
                state.deadline_ms = now_ms + self._end_epoch_election_backoff_ms(request.preferred)
        return EndEpochReply(quorum.epoch, quorum.leader_id_or_none, error, quorum.leader_endpoints())

    def _end_epoch_election_backoff_ms(self, preferred: tuple[ReplicaKey, ...]) -> int:
        """Zero for the first preferred successor, then growing, so that the first is likely to be alone."""
        ids = [key.id for key in preferred]
        local_id = self.quorum.local.key.id
        position = ids.index(local_id) if local_id in ids else 0
        if position == 0:
            return 0
        longest = self.quorum.config.election_backoff_max_ms
        return min(longest, (longest >> (len(ids) - 1)) << (position - 1))

    def _send_end_epoch(self, state: ResignedState, now_ms: int) -> None:
        quorum = self.quorum
        for id in state.unacknowledged:
            request = EndEpoch(
                quorum.local.key.id, state.epoch, state.preferred_successors, quorum.local.endpoints
            )
            quorum.send(id, quorum.address(quorum.endpoints_of(id)), request, now_ms)

    # Replication: the leader

    def _handle_fetch_request(self, token: object, fetch: Fetch, now_ms: int) -> None:
        quorum = self.quorum
        invalid = (
            fetch.max_wait_ms < 0
            or fetch.end.offset < 0
            or fetch.end.epoch < 0
            or fetch.max_bytes < 0
            or fetch.end.epoch > fetch.epoch
        )
        if invalid:
            quorum.emit(Answer(token, quorum.fetch_reply(ErrorCode.INVALID_REQUEST)))
            return
        reply = self._try_complete_fetch(fetch, now_ms)
        state = quorum.state
        idle = (
            not reply.records and reply.error is ErrorCode.NONE and not reply.diverging and not reply.snapshot
        )
        newer = reply.high_watermark > fetch.high_watermark
        if not isinstance(state, LeaderState) or not idle or newer or fetch.max_wait_ms == 0:
            quorum.emit(Answer(token, reply))
            return
        for delayed in [each for each in state.delayed_fetches if each.fetch.replica == fetch.replica]:
            # The replica fetches again, so it does not wait for the first answer any more.
            state.delayed_fetches.remove(delayed)
            quorum.emit(Answer(delayed.token, reply))
        if len(state.delayed_fetches) >= _MAX_DELAYED_FETCHES:
            quorum.emit(Answer(token, reply))
            return
        wait_ms = min(fetch.max_wait_ms, _MAX_FETCH_WAIT_MS)
        state.delayed_fetches.append(DelayedQuorumFetch(token, fetch, now_ms + wait_ms))

    def _try_complete_fetch(self, fetch: Fetch, now_ms: int) -> FetchReply:
        quorum = self.quorum
        error = self._validate_leader_epoch(fetch.epoch)
        if error is not ErrorCode.NONE:
            return quorum.fetch_reply(error)
        state = quorum.state
        assert isinstance(state, LeaderState), f"{state} completes a fetch"
        valid = validate_offset_and_epoch(quorum.log, fetch.end)
        if valid.kind is Validity.DIVERGING:
            return quorum.fetch_reply(diverging=valid.end)
        if valid.kind is Validity.SNAPSHOT:
            return quorum.fetch_reply(snapshot=SnapshotId(*valid.end))
        log_end = quorum.log.end.offset
        records = b""
        if fetch.end.offset < log_end and fetch.max_bytes > 0:
            records = quorum.log.read(fetch.end.offset, min(fetch.max_bytes, quorum.config.fetch_max_bytes))
        if state.progress.update_replica_state(fetch.replica, fetch.end.offset, log_end, now_ms):
            self._on_leader_high_watermark(state)
        return quorum.fetch_reply(records=records)

    def _validate_leader_epoch(self, epoch: int) -> ErrorCode:
        """Whether a request that carries `epoch` is at the leader of that epoch."""
        if epoch < self.quorum.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.quorum.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not self.quorum.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def _on_leader_high_watermark(self, state: LeaderState) -> None:
        assert state.high_watermark is not None, f"{state} has no high watermark"
        self.quorum.update_high_watermark(state.high_watermark)

    def _complete_delayed_fetches(self, state: LeaderState, now_ms: int) -> None:
        """Answer the fetches for which there is something new, and those that have waited long enough."""
        quorum = self.quorum
        log_end = quorum.log.end.offset
        for delayed in list(state.delayed_fetches):
            high_watermark = UNKNOWN_HIGH_WATERMARK if state.high_watermark is None else state.high_watermark
            new = delayed.fetch.end.offset < log_end or delayed.fetch.high_watermark < high_watermark
            if new or now_ms >= delayed.deadline_ms:
                state.delayed_fetches.remove(delayed)
                quorum.emit(Answer(delayed.token, self._try_complete_fetch(delayed.fetch, now_ms)))

    def _handle_fetch_snapshot_request(self, request: FetchSnapshot, now_ms: int) -> FetchSnapshotReply:
        quorum = self.quorum
        error = self._validate_leader_epoch(request.epoch)
        size: int | None = None
        if error is ErrorCode.NONE:
            size = quorum.log.snapshot_size(request.id)
            if size is None:
                error = ErrorCode.SNAPSHOT_NOT_FOUND
            elif not 0 <= request.position < size or request.max_bytes <= 0:
                error = ErrorCode.POSITION_OUT_OF_RANGE
        data = b""
        state = quorum.state
        if error is ErrorCode.NONE and size is not None and isinstance(state, LeaderState):
            max_bytes = min(request.max_bytes, quorum.config.fetch_snapshot_max_bytes)
            data = quorum.log.read_snapshot(request.id, request.position, max_bytes)
            state.progress.update_check_quorum(request.replica, now_ms)
        return FetchSnapshotReply(
            quorum.epoch,
            quorum.leader_id_or_none,
            request.id,
            0 if size is None else size,
            request.position,
            data,
            error,
            quorum.leader_endpoints(),
        )

    # Replication: the follower

    def _maybe_send_fetch(self, state: FollowerState, now_ms: int) -> None:
        """Fetch records once all records here are on disk, or the next piece of a snapshot."""
        quorum = self.quorum
        if now_ms < quorum.fetch_resumes_ms:
            return
        leader = quorum.address(state.leader_endpoints)
        download = state.download
        if download is not None:
            if not download.complete:
                max_bytes = quorum.config.fetch_snapshot_max_bytes
                request = FetchSnapshot(
                    quorum.local.key, state.epoch, download.id, download.position, max_bytes
                )
                quorum.send(state.leader_id, leader, request, now_ms)
            return
        if quorum.durable_end >= quorum.log.end.offset:
            quorum.send(state.leader_id, leader, self._fetch(), now_ms)

    def _fetch(self) -> Fetch:
        quorum = self.quorum
        high_watermark = quorum.high_watermark
        return Fetch(
            quorum.local.key,
            quorum.epoch,
            quorum.log.end,
            quorum.config.fetch_max_wait_ms,
            quorum.config.fetch_max_bytes,
            UNKNOWN_HIGH_WATERMARK if high_watermark is None else high_watermark,
        )

    def _find_leader(self, now_ms: int, leader_id: int | None = None) -> None:
        """Fetch from a random voter or bootstrap server, not `leader_id`: its reply names the leader."""
        quorum = self.quorum
        if quorum.requests.has_any_inflight_request:
            return
        choices: list[tuple[int, Address | None]] = list(quorum.requests.bootstrap.items())
        voters = quorum.voters
        if voters is not None:
            choices += [(id, quorum.address(voters.voters[id].endpoints)) for id in voters.ids]
        usable = [
            (id, address)
            for id, address in choices
            if address is not None
            and id not in (quorum.local.key.id, leader_id)
            and quorum.requests.is_ready(id, now_ms)
        ]
        if usable:
            id, address = usable[quorum.random.randrange(0, len(usable))]
            quorum.send(id, address, self._fetch(), now_ms)

    def _handle_fetch_response(self, from_id: int, fetch: Fetch, reply: FetchReply, now_ms: int) -> bool:
        """Append, truncate or start a download as the leader says; False if the leader should be left alone
        for a moment.
        """
        quorum = self.quorum
        state = quorum.state
        if not isinstance(state, FollowerState) or state.epoch != fetch.epoch or reply.epoch != state.epoch:
            return True
        if reply.error is not ErrorCode.NONE or from_id != state.leader_id:
            return False
        if state.download is not None or quorum.log.end != fetch.end:
            return True
        if reply.diverging is not None:
            self._truncate_diverging(state, reply.diverging)
        elif reply.snapshot is not None:
            if min(reply.snapshot) < 0 or quorum.installing is not None:
                return False
            _log.info("node %d: fetches the snapshot %s", quorum.local.key.id, reply.snapshot.file_name)
            quorum.log.begin_snapshot(reply.snapshot)
            state.download = SnapshotDownload(reply.snapshot)
        else:
            if reply.records and not self._append_as_follower(state, reply.records):
                return False
            self._update_follower_high_watermark(state, reply.high_watermark)
        self._reset_fetch_timeout(state, now_ms)
        return True

    def _wait_for_room(self, now_ms: int) -> None:
        """Fetch once more, after a moment, what there was no room for. The leader is alive, so that there is
        no reason for an election; an unfinished snapshot makes room.
        """
        quorum, state = self.quorum, self.quorum.state
        assert isinstance(state, FollowerState), f"{state} writes what it fetched"
        if state.download is not None:
            quorum.log.abandon_snapshot()
            state.download = None
        self._reset_fetch_timeout(state, now_ms)
        quorum.on_no_room(now_ms)

    def _reset_fetch_timeout(self, state: FollowerState, now_ms: int) -> None:
        state.has_fetched_from_leader = True
        state.deadline_ms = now_ms + self.quorum.config.fetch_timeout_ms

    def _truncate_diverging(self, state: FollowerState, diverging: OffsetAndEpoch) -> None:
        quorum = self.quorum
        if min(diverging) < 0:
            raise LogContradiction(f"the leader {state.leader_id} sent an impossible end offset, {diverging}")
        offset = truncation_offset(quorum.log, diverging)
        if offset < quorum.log.high_watermark:
            raise LogContradiction(
                f"the log of the leader {state.leader_id} of epoch {state.epoch} diverges from this one at "
                f"{offset}, but everything below {quorum.log.high_watermark} is committed"
            )
        quorum.log.truncate_to(offset)
        end = quorum.log.end.offset
        quorum.durable_end = min(quorum.durable_end, end)
        quorum.voter_history.truncate_to(end)

    def _append_as_follower(self, state: FollowerState, records: bytes) -> bool:
        quorum = self.quorum
        start = quorum.log.end.offset
        try:
            quorum.log.append_as_follower(records, state.epoch)
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            _log.warning("node %d: damaged records from the leader: %s", quorum.local.key.id, error)
            return False
        if quorum.log.end.offset > start:
            quorum.voter_history.replay_batches(records, quorum.log.end.offset)
            quorum.emit(Flush())
        return True

    def _update_follower_high_watermark(self, state: FollowerState, leader_high_watermark: int) -> None:
        reached = min(leader_high_watermark, self.quorum.log.end.offset)
        if leader_high_watermark >= 0 and (state.high_watermark is None or reached > state.high_watermark):
            state.high_watermark = reached
            self.quorum.update_high_watermark(reached)

    def _handle_fetch_snapshot_response(
        self, from_id: int, request: FetchSnapshot, reply: FetchSnapshotReply, now_ms: int
    ) -> bool:
        """Write a piece of the snapshot, or give the download up; False if the leader should be left alone
        for a moment.
        """
        quorum = self.quorum
        state = quorum.state
        if not isinstance(state, FollowerState) or state.epoch != request.epoch or reply.epoch != state.epoch:
            return True
        download = state.download
        if from_id != state.leader_id or download is None or download.id != request.id or download.complete:
            return True
        if reply.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
            _log.info("node %d: gives up the snapshot %s", quorum.local.key.id, download.id.file_name)
            quorum.log.abandon_snapshot()
            state.download = None
            self._reset_fetch_timeout(state, now_ms)
            return True
        if reply.error is not ErrorCode.NONE:
            return False
        end = reply.position + len(reply.data)
        if (
            reply.id != download.id
            or reply.position != download.position
            or end > reply.size
            or not reply.data
        ):
            return False
        quorum.log.write_snapshot(download.id, download.position, reply.data)
        download.position = end
        self._reset_fetch_timeout(state, now_ms)
        if end == reply.size:
            download.complete = True
            quorum.installing = download.id
            quorum.emit(InstallSnapshot(download.id))
        return True

    def _install_snapshot(self, id: SnapshotId, *, usable: bool) -> None:
        quorum = self.quorum
        state = quorum.state
        if not isinstance(state, FollowerState) or state.download is None or state.download.id != id:
            quorum.installing = None
            return
        if not usable or id.offset < quorum.log.high_watermark:
            state.download = quorum.installing = None
            return
        content = quorum.log.start_after_snapshot(id)  # without room for that it is called again
        state.download = quorum.installing = None
        quorum.durable_end = quorum.log.end.offset
        quorum.voter_history.load_snapshot(id.offset, content.kraft_version, content.voters)
        quorum.emit(SnapshotLoaded(id))
        state.high_watermark = id.offset
        quorum.update_high_watermark(id.offset)


def is_up_to_date(candidate: OffsetAndEpoch, ours: OffsetAndEpoch) -> bool:
    """Whether a log that ends at `candidate` has everything that may be committed in ours."""
    return (candidate.epoch, candidate.offset) >= (ours.epoch, ours.offset)


def _is_same_replica(voted: ReplicaKey, candidate: ReplicaKey) -> bool:
    if voted.id != candidate.id:
        return False
    return NO_DIRECTORY in (voted.directory_id, candidate.directory_id) or voted == candidate
