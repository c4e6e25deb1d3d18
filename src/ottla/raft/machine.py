"""The state machine of the quorum; `KafkaRaftClient` drives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from ottla.protocol.errors import ErrorCode
from ottla.raft import elections, replication, voter_changes
from ottla.raft.effects import Answer, Effect
from ottla.raft.messages import (
    AddVoter,
    AskVersions,
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    EndEpochReply,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    NewsReply,
    RemoveVoter,
    Reply,
    Request,
    UpdateVoter,
    VersionsReply,
    Vote,
    VoteReply,
)
from ottla.raft.progress import ReplicaProgress
from ottla.raft.quorum_state import Now, QuorumState
from ottla.raft.request_manager import InflightRequest
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import (
    NEVER_MS,
    CandidateState,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    Role,
    UnattachedState,
)

__all__ = ["Now", "QuorumInfo", "KafkaRaftMachine"]

# A state may lead at once to the next (a voter alone goes through all of them), but not in circles.
_MAX_STEPS = 8


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """What DescribeQuorum tells: the leader's view of every replica's log. Times are those of the
    machine's clock.
    """

    leader_id: int
    epoch: int
    high_watermark: int
    voters: list[ReplicaProgress]
    observers: list[ReplicaProgress]


class KafkaRaftMachine:
    """``core`` is the replica; begin with :meth:`start`."""

    def __init__(self, core: QuorumState) -> None:
        self.core = core

    # Inputs

    def start(self, now: Now) -> None:
        core = self.core
        core.now = now
        core.persist()
        core.tell_leader()
        alone = core.membership.is_only_voter(core.local.key)
        if alone and core.role in (Role.UNATTACHED, Role.RESIGNED, Role.FOLLOWER):
            core.become_prospective()
        self._do_what_is_due()

    def tick(self, now: Now) -> None:
        self.core.now = now
        self._do_what_is_due()

    def receive(self, token: object, request: Request, now: Now) -> None:
        """A request came; it is answered by an :class:`Answer` with this token, now or later."""
        core = self.core
        core.now = now
        reply = self._handle(token, request)
        if reply is not None:
            core.emit(Answer(token, reply))
        self._do_what_is_due()

    def answered(self, number: int, reply: Reply, now: Now) -> None:
        """A peer answered the exchange."""
        core = self.core
        core.now = now
        exchange = core.peers.end(number, now.ms, failed=not _is_good(reply))
        if exchange is not None:
            self._take(exchange, reply)
        self._do_what_is_due()

    def failed(self, number: int, now: Now, *, refused: bool = False) -> None:
        """A peer cannot be reached, or the connection broke; ``refused`` if nobody listens there any more."""
        core = self.core
        core.now = now
        exchange = core.peers.end(number, now.ms, failed=True)
        if exchange is not None:
            if isinstance(exchange.request, AskVersions):
                voter_changes.versions_failed(core, exchange.node_id)
            state = core.state
            if refused and isinstance(state, FollowerState) and exchange.node_id == state.leader_id:
                self._leader_is_gone(state)
            elif refused and core.stopping and isinstance(state, ResignedState):
                # Nobody is there to be told, and this node will not be there to tell later.
                state.unacknowledged = [id for id in state.unacknowledged if id != exchange.node_id]
        self._do_what_is_due()

    def flushed(self, end_offset: int, now: Now) -> None:
        """The log, as it is now, is on disk below ``end_offset``."""
        core = self.core
        core.now = now
        core.durable_end = min(end_offset, core.log.end.offset)
        self._do_what_is_due()

    def append(self, batch: bytes, now: Now) -> int:
        """Append a batch of the leader's epoch; where the log ends then. It is committed once the high
        watermark is there.
        """
        self.core.now = now
        end = self.core.append_batch(batch)
        self._do_what_is_due()
        return end

    def upgrade(self, kraft_version: int, now: Now, *, validate_only: bool) -> str | None:
        """Raise the version of the quorum; why not, if that cannot be."""
        self.core.now = now
        refusal = voter_changes.upgrade(self.core, kraft_version, validate_only=validate_only)
        self._do_what_is_due()
        return refusal

    def snapshot_ready(self, id: SnapshotId, now: Now, *, usable: bool = True) -> None:
        """A snapshot that was fetched is on disk, or turned out to be damaged."""
        self.core.now = now
        replication.install_snapshot(self.core, id, usable=usable)
        self._do_what_is_due()

    def shut_down(self, now: Now) -> None:
        """The node stops: a leader resigns, and nobody begins an election."""
        core = self.core
        core.now = now
        core.stopping = True
        if core.is_leader:
            core.resign()
        self._do_what_is_due()

    @property
    def is_stopped(self) -> bool:
        """After :meth:`shut_down`: whether there is nobody left to tell."""
        state = self.core.state
        return self.core.stopping and not (isinstance(state, ResignedState) and state.unacknowledged)

    def take_effects(self) -> list[Effect]:
        return self.core.take_effects()

    # Messages

    def _handle(self, token: object, request: Request) -> Reply | None:
        core = self.core
        match request:
            case Vote():
                return elections.handle_vote(core, request)
            case BeginEpoch():
                return elections.handle_begin_epoch(core, request)
            case EndEpoch():
                return elections.handle_end_epoch(core, request)
            case Fetch():
                replication.handle_fetch(core, token, request)
            case FetchSnapshot():
                return replication.handle_fetch_snapshot(core, request)
            case AddVoter():
                voter_changes.handle_add(core, token, request)
            case RemoveVoter():
                voter_changes.handle_remove(core, token, request)
            case UpdateVoter():
                return voter_changes.handle_update(core, request)
            case AskVersions():
                local = core.local
                return VersionsReply(local.min_kraft_version, local.max_kraft_version)
            case _:
                assert_never(request)
        return None

    def _take(self, exchange: InflightRequest, reply: Reply) -> None:
        core = self.core
        if isinstance(reply, NewsReply):
            elections.observe_reply(core, reply)
        request, from_id = exchange.request, exchange.node_id
        match request, reply:
            case Vote(), VoteReply():
                elections.take_vote(core, from_id, request, reply)
            case BeginEpoch(), BeginEpochReply():
                if isinstance(core.state, LeaderState) and reply.error is ErrorCode.NONE:
                    core.state.progress.acknowledge(from_id)
            case EndEpoch(), EndEpochReply():
                if isinstance(core.state, ResignedState) and from_id in core.state.unacknowledged:
                    core.state.unacknowledged.remove(from_id)
            case Fetch(), FetchReply():
                if not replication.take_fetched(core, from_id, request, reply):
                    core.peers.rest(from_id, core.now.ms)
            case FetchSnapshot(), FetchSnapshotReply():
                if not replication.take_snapshot_piece(core, from_id, request, reply):
                    core.peers.rest(from_id, core.now.ms)
            case AskVersions(), VersionsReply():
                voter_changes.take_versions(core, from_id, reply)
            case _:
                pass  # what this node told of itself; if it did not get through, it is told again

    def _leader_is_gone(self, state: FollowerState) -> None:
        """Nobody listens where the leader was: its process has ended. An election need not wait for the fetch
        timeout; the pre-vote sees to it that a mistake disturbs nobody.
        """
        state.leader_seen = False
        delay = self.core.turn_ms(self.core.config.election_timeout_ms // 20, gone=state.leader_id)
        state.deadline_ms = min(state.deadline_ms, self.core.now.ms + delay)

    # What is due

    def _do_what_is_due(self) -> None:
        core = self.core
        for exchange in core.peers.overdue(core.now.ms):
            core.peers.end(exchange.number, core.now.ms, failed=True)
            if isinstance(exchange.request, AskVersions):
                voter_changes.versions_failed(core, exchange.node_id)
        for _ in range(_MAX_STEPS):
            before = core.state
            self._do_one()
            if core.state is before:
                return
        raise AssertionError(f"the state {core.state} does not come to rest")

    def _do_one(self) -> None:
        state = self.core.state
        match state:
            case UnattachedState():
                self._unattached(state)
            case ProspectiveState():
                self._prospective(state)
            case CandidateState():
                self._candidate(state)
            case FollowerState():
                self._follower(state)
            case LeaderState():
                self._leader(state)
            case ResignedState():
                self._resigned(state)
            case _:
                assert_never(state)

    def _unattached(self, state: UnattachedState) -> None:
        core = self.core
        if core.may_vote and not core.stopping:
            if state.deadline_ms == NEVER_MS:
                state.deadline_ms = core.now.ms + core.election_timeout_ms()
            if core.now.ms >= state.deadline_ms:
                core.become_prospective()
                return
        replication.fetch_from_anyone(core)

    def _prospective(self, state: ProspectiveState) -> None:
        core = self.core
        if state.tally.won and core.may_vote:
            core.become_candidate()
        elif state.tally.lost or core.now.ms >= state.deadline_ms or not core.may_vote or core.stopping:
            if state.leader_id is not None and state.leader_endpoints:
                core.become_follower(state.epoch, state.leader_id, state.leader_endpoints)
            else:
                core.become_unattached(state.epoch, state.leader_id)
        else:
            elections.ask_for_votes(core, state)

    def _candidate(self, state: CandidateState) -> None:
        core = self.core
        if state.tally.won and core.may_vote:
            core.become_leader()
        elif core.now.ms >= state.deadline_ms and not core.stopping:
            core.become_prospective()
        elif state.tally.lost:
            # Others were asking at the same time. Whoever tries again first should be alone.
            backoff = core.config.election_backoff_max_ms
            rest = core.now.ms + 1 + core.random.randrange(0, max(backoff, 1))
            if state.deadline_ms > core.now.ms + backoff:
                state.deadline_ms = rest
        else:
            elections.ask_for_votes(core, state)

    def _follower(self, state: FollowerState) -> None:
        core = self.core
        expired = core.now.ms >= state.deadline_ms
        if expired and core.may_vote and not core.stopping:
            core.become_prospective()
        elif expired or core.peers.is_resting(state.leader_id, core.now.ms):
            replication.fetch_from_anyone(core, state.leader_id)
            if expired:
                replication.fetch_from_leader(core, state)
        elif not voter_changes.announce_self(core, state):
            replication.fetch_from_leader(core, state)

    def _leader(self, state: LeaderState) -> None:
        core = self.core
        if state.progress.quorum_lost(core.now.ms):
            core.resign()
            return
        if state.progress.local_flushed(core.durable_end, core.now.ms):
            replication.leader_advanced(core, state)
        voter_changes.follow_change(core, state)
        if core.state is state:
            replication.wake_fetches(core, state)
            elections.remind_voters(core, state)

    def _resigned(self, state: ResignedState) -> None:
        core = self.core
        if core.stopping or core.now.ms < state.deadline_ms:
            elections.tell_resignation(core, state)
        else:
            core.become_unattached(state.epoch + 1)

    def deadline_ms(self) -> int:
        """When to call :meth:`tick` at the latest."""
        core, state = self.core, self.core.state
        times = [core.peers.next_ms(core.now.ms)]
        if isinstance(state, LeaderState):
            if not state.progress.is_alone:
                times.append(state.progress.quorum_deadline_ms)
            times.append(state.remind_ms)
            times += [parked.deadline_ms for parked in state.parked]
            if state.change is not None:
                times.append(state.change.deadline_ms)
        else:
            times.append(state.deadline_ms)
            if isinstance(state, FollowerState):
                times.append(state.update_voter_ms)
        return min((each for each in times if each is not None and each > core.now.ms), default=NEVER_MS)

    # Questions

    def describe(self) -> QuorumInfo | None:
        """The leader's books; None if this node does not lead."""
        state = self.core.state
        if not isinstance(state, LeaderState):
            return None
        return QuorumInfo(
            leader_id=state.leader_id,
            epoch=state.epoch,
            high_watermark=-1 if state.high_watermark is None else state.high_watermark,
            voters=state.progress.voters(),
            observers=state.progress.observers(self.core.now.ms),
        )


def _is_good(reply: Reply) -> bool:
    return reply.error is ErrorCode.NONE
