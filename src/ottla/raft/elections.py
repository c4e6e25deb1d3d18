"""Elections: who asks for votes and who gives them, how a new leader makes itself known and an old one goes.

Before a voter begins a new epoch it asks whether it would win (pre-vote). Others agree only if its log is at
least as long as theirs and they do not hear from a leader themselves, so a node that was cut off and comes
back disturbs nobody. Invariant: a voter votes for one candidate an epoch, and only for one whose log ends at
or behind its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode
from ottla.raft.messages import (
    NO_ONE,
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    EndEpochReply,
    NewsReply,
    OffsetAndEpoch,
    Vote,
    VoteReply,
)
from ottla.raft.states import (
    NEVER_MS,
    CandidateState,
    FollowerState,
    LeaderState,
    ProspectiveState,
    ResignedState,
    UnattachedState,
)
from ottla.raft.voters import NO_DIRECTORY, ReplicaKey
from ottla.runtime.address import Address

if TYPE_CHECKING:
    from ottla.raft.quorum_state import QuorumState

_log = logging.getLogger(__name__)


# News of epochs and leaders


def observe(core: QuorumState, epoch: int, leader_id: int | None, endpoints: Mapping[str, Address]) -> None:
    """Take note of an epoch, and of its leader if that is known."""
    if epoch < core.epoch:
        return
    if leader_id == core.local.key.id and not (core.is_leader and epoch == core.epoch):
        leader_id = None  # of an earlier life; nothing to follow
    reachable = endpoints or ({} if leader_id is None else core.endpoints_of(leader_id))
    if epoch > core.epoch:
        if leader_id is not None and reachable:
            core.become_follower(epoch, leader_id, reachable)
        else:
            core.become_unattached(epoch, leader_id)
        return
    if leader_id is None or isinstance(
        core.state, LeaderState | FollowerState | ResignedState | ProspectiveState
    ):
        return
    if core.leader_id not in (None, leader_id):
        _log.error(
            "node %d heard of leader %d in epoch %d, but knows %s as its leader",
            core.local.key.id,
            leader_id,
            epoch,
            core.leader_id,
        )
        return
    if reachable:
        core.become_follower(epoch, leader_id, reachable)


def observe_reply(core: QuorumState, reply: NewsReply) -> None:
    endpoints = {} if reply.endpoint is None else {core.listener: reply.endpoint}
    observe(core, reply.epoch, None if reply.leader_id == NO_ONE else reply.leader_id, endpoints)


# Votes


def handle_vote(core: QuorumState, request: Vote) -> VoteReply:
    floor = request.last.epoch if request.pre_vote else request.last.epoch + 1
    if request.last.offset < 0 or request.last.epoch < 0 or request.epoch < floor or request.candidate.id < 0:
        return _vote_reply(core, ErrorCode.INVALID_REQUEST)
    if request.epoch < core.epoch:
        return _vote_reply(core, ErrorCode.FENCED_LEADER_EPOCH)
    if request.epoch > core.epoch:
        core.become_unattached(request.epoch)
    if not core.is_for_us(request.voter):
        return _vote_reply(core, ErrorCode.INVALID_VOTER_KEY)
    granted = _would_grant(core, request)
    if granted and not request.pre_vote:
        _give_vote(core, request.candidate)
    return _vote_reply(core, granted=granted)


def is_up_to_date(candidate: OffsetAndEpoch, ours: OffsetAndEpoch) -> bool:
    """Whether a log that ends so has all that ours may have seen committed."""
    return (candidate.epoch, candidate.offset) >= (ours.epoch, ours.offset)


def _would_grant(core: QuorumState, request: Vote) -> bool:
    state = core.state
    up_to_date = is_up_to_date(request.last, core.log.end)
    if request.pre_vote:
        if isinstance(state, LeaderState):
            return False
        if isinstance(state, FollowerState) and state.leader_seen:
            return False
        return up_to_date
    if not isinstance(state, UnattachedState | ProspectiveState):
        return False
    if state.voted is not None:
        return _same_replica(state.voted, request.candidate)
    return state.leader_id is None and up_to_date


def _same_replica(voted: ReplicaKey, candidate: ReplicaKey) -> bool:
    if voted.id != candidate.id:
        return False
    return NO_DIRECTORY in (voted.directory_id, candidate.directory_id) or voted == candidate


def _give_vote(core: QuorumState, candidate: ReplicaKey) -> None:
    """Write the vote down. The candidate gets a full election's time to win."""
    state = core.state
    assert isinstance(state, UnattachedState | ProspectiveState)
    if state.voted is None:
        state.voted = candidate
        state.deadline_ms = core.now.ms + core.election_timeout_ms()
        core.persist()


def _vote_reply(core: QuorumState, error: ErrorCode = ErrorCode.NONE, *, granted: bool = False) -> VoteReply:
    return VoteReply(core.epoch, _leader(core), granted, error, core.leader_endpoint())


def _leader(core: QuorumState) -> int:
    return NO_ONE if core.leader_id is None else core.leader_id


def ask_for_votes(core: QuorumState, state: ProspectiveState | CandidateState) -> None:
    """Ask every voter that has not answered."""
    if state.tally.lost or state.tally.won:
        return
    pre_vote = isinstance(state, ProspectiveState)
    voters = core.membership.voters
    for id in state.tally.unanswered:
        voter = None if voters is None else voters.voters.get(id)
        if voter is not None:
            request = Vote(core.local.key, state.epoch, core.log.end, pre_vote, voter.key)
            core.send(id, core.address(voter.endpoints), request)


def take_vote(core: QuorumState, voter_id: int, request: Vote, reply: VoteReply) -> None:
    """Count an answer, if the election that it belongs to is still on."""
    state = core.state
    if not isinstance(state, ProspectiveState | CandidateState) or state.epoch != request.epoch:
        return
    if isinstance(state, ProspectiveState) != request.pre_vote:
        return
    if request.pre_vote and reply.error is ErrorCode.UNSUPPORTED_VERSION:
        state.tally.record(voter_id, True)  # it does not know pre-votes; then the vote itself decides
    elif reply.error is ErrorCode.NONE:
        state.tally.record(voter_id, reply.granted)
    elif not reply.error.retriable:
        state.tally.record(voter_id, False)


# The beginning and the end of an epoch


def handle_begin_epoch(core: QuorumState, request: BeginEpoch) -> BeginEpochReply:
    error = _check_leader_request(core, request.leader_id, request.epoch)
    if error is ErrorCode.NONE:
        observe(core, request.epoch, request.leader_id, request.endpoints)
        state = core.state
        if isinstance(state, ProspectiveState) and state.leader_id in (None, request.leader_id):
            # It is there after all.
            reachable = request.endpoints or core.endpoints_of(request.leader_id)
            if reachable and request.leader_id != core.local.key.id:
                core.become_follower(request.epoch, request.leader_id, reachable)
        if not core.is_for_us(request.voter):
            error = ErrorCode.INVALID_VOTER_KEY
    return BeginEpochReply(core.epoch, _leader(core), error, core.leader_endpoint())


def _check_leader_request(core: QuorumState, leader_id: int, epoch: int) -> ErrorCode:
    if leader_id < 0 or epoch < 0:
        return ErrorCode.INVALID_REQUEST
    if epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.NONE


def remind_voters(core: QuorumState, state: LeaderState) -> None:
    """Tell the voters that do not fetch who leads."""
    if core.now.ms < state.remind_ms:
        return
    voters = core.membership.voters
    if voters is None or voters.ids == (core.local.key.id,):
        state.remind_ms = NEVER_MS
        return
    interval = core.config.begin_epoch_interval_ms
    state.remind_ms = core.now.ms + min(interval, 10 * max(core.config.retry_backoff_ms, 1))
    for key in state.progress.to_remind(core.now.ms, interval):
        voter = voters.voters.get(key.id)
        if voter is not None:
            request = BeginEpoch(core.local.key.id, core.epoch, core.local.endpoints, voter.key)
            core.send(key.id, core.address(voter.endpoints), request)


def handle_end_epoch(core: QuorumState, request: EndEpoch) -> EndEpochReply:
    error = _check_leader_request(core, request.leader_id, request.epoch)
    if error is ErrorCode.NONE:
        observe(core, request.epoch, request.leader_id, request.endpoints)
        state = core.state
        if isinstance(state, FollowerState) and state.leader_id == request.leader_id:
            state.leader_seen = False
            state.deadline_ms = core.now.ms + _succession_delay_ms(core, request.preferred)
    return EndEpochReply(core.epoch, _leader(core), error, core.leader_endpoint())


def _succession_delay_ms(core: QuorumState, preferred: tuple[ReplicaKey, ...]) -> int:
    """Nothing for the first in line, then ever longer, so that it is likely to be alone."""
    ids = [key.id for key in preferred]
    position = ids.index(core.local.key.id) if core.local.key.id in ids else 0
    if position == 0:
        return 0
    longest = core.config.election_backoff_max_ms
    return min(longest, (longest >> (len(ids) - 1)) << (position - 1))


def tell_resignation(core: QuorumState, state: ResignedState) -> None:
    for id in state.unacknowledged:
        request = EndEpoch(core.local.key.id, state.epoch, state.preferred, core.local.endpoints)
        core.send(id, core.address(core.endpoints_of(id)), request)
