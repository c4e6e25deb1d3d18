"""Changes of the voters, one at a time (KIP-853): add one, remove one, or note that one has moved.

The leader writes the new set into the log, and it is in force from there on. A change is begun only when the
one before it is committed and the leader has committed a record of its own epoch; otherwise two majorities
might not meet. A leader that was removed leads until its removal is committed, and then resigns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.protocol.control_records import KRaftVersionRecord
from ottla.protocol.errors import ErrorCode
from ottla.raft.effects import Answer
from ottla.raft.messages import (
    NO_ONE,
    AddVoter,
    AskVersions,
    RemoveVoter,
    UpdateVoter,
    UpdateVoterReply,
    VersionsReply,
    VoterChangeReply,
)
from ottla.raft.states import FollowerState, LeaderState, PendingChange
from ottla.raft.voters import Voter, VoterSet

if TYPE_CHECKING:
    from ottla.raft.quorum_state import QuorumState

_log = logging.getLogger(__name__)


def _obstacle(core: QuorumState, state: LeaderState) -> VoterChangeReply | None:
    """Why no change can be begun now."""
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    if state.change is not None:
        return VoterChangeReply(timed_out, "another change of the voters is under way; try again later")
    if state.high_watermark is None:
        return VoterChangeReply(timed_out, "the leader has not committed its epoch yet; try again later")
    if core.membership.kraft_version < 1:
        return VoterChangeReply(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the voters are configured statically: kraft.version is {core.membership.kraft_version}, and "
            "1 is needed to change them; `ottla cluster features --set kraft.version=1` raises it",
        )
    entry = core.membership.entry
    if entry is None or entry.offset >= state.high_watermark:
        return VoterChangeReply(timed_out, "the last change of the voters is not committed yet")
    return None


def _current_voters(core: QuorumState) -> VoterSet:
    voters = core.membership.voters
    assert voters is not None, "a leader knows its voters"
    return voters


# Adding


def handle_add(core: QuorumState, token: object, request: AddVoter) -> None:
    state = core.state
    if not isinstance(state, LeaderState):
        core.emit(Answer(token, _not_leader(core)))
        return
    reply = _obstacle(core, state)
    voters = _current_voters(core)
    address = request.endpoints.get(core.listener)
    if reply is None and request.voter.id in voters.voters:
        reply = VoterChangeReply(
            ErrorCode.DUPLICATE_VOTER,
            f"{request.voter.id} is a voter already; if it has lost its directory, remove it first",
        )
    if reply is None and address is None:
        reply = VoterChangeReply(
            ErrorCode.INVALID_REQUEST,
            f"the listeners {sorted(request.endpoints)} of the new voter lack {core.listener}",
        )
    if reply is None and not core.send(request.voter.id, address, AskVersions()):
        reply = VoterChangeReply(
            ErrorCode.REQUEST_TIMED_OUT, f"the new voter {request.voter.id} cannot be asked now"
        )
    if reply is not None:
        core.emit(Answer(token, reply))
        return
    state.change = PendingChange(
        token,
        request.voter,
        core.now.ms + max(min(request.timeout_ms, core.config.request_timeout_ms), 0),
        endpoints=request.endpoints,
        ack_when_committed=request.ack_when_committed,
    )


def _not_leader(core: QuorumState) -> VoterChangeReply:
    return VoterChangeReply(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"node {core.local.key.id} does not lead the quorum; the leader is {core.leader_id}",
    )


def take_versions(core: QuorumState, from_id: int, reply: VersionsReply) -> None:
    """The new voter tells what it speaks: go on with adding it."""
    state = core.state
    change = state.change if isinstance(state, LeaderState) else None
    if not isinstance(state, LeaderState) or change is None or change.offset is not None:
        return
    if change.voter.id != from_id or not change.endpoints:
        return
    refusal = _unfit(core, state, change, reply)
    if refusal is not None:
        finish(core, state, refusal)
        return
    voter = Voter(change.voter, change.endpoints, reply.min_kraft_version, reply.max_kraft_version)
    change.offset = core.append_control([_current_voters(core).with_voter(voter).to_record()])
    _log.info("node %d: voter %d is added at offset %d", core.local.key.id, from_id, change.offset)
    if not change.ack_when_committed:
        _answer(core, change, VoterChangeReply())


def _unfit(
    core: QuorumState, state: LeaderState, change: PendingChange, reply: VersionsReply
) -> VoterChangeReply | None:
    if reply.error is not ErrorCode.NONE:
        return VoterChangeReply(
            ErrorCode.REQUEST_TIMED_OUT,
            f"the new voter {change.voter.id} answered ApiVersions with {reply.error.name}",
        )
    if not reply.min_kraft_version <= core.membership.kraft_version <= reply.max_kraft_version:
        return VoterChangeReply(
            ErrorCode.INVALID_REQUEST,
            f"the new voter {change.voter.id} supports kraft.version {reply.min_kraft_version} to "
            f"{reply.max_kraft_version}, not {core.membership.kraft_version}",
        )
    if not state.progress.is_caught_up(change.voter, core.now.ms):
        return VoterChangeReply(
            ErrorCode.REQUEST_TIMED_OUT,
            f"the new voter {change.voter.id} has not caught up with the log; try again later",
        )
    return None


def versions_failed(core: QuorumState, from_id: int) -> None:
    """The new voter could not be asked."""
    state = core.state
    change = state.change if isinstance(state, LeaderState) else None
    if (
        isinstance(state, LeaderState)
        and change is not None
        and change.offset is None
        and change.voter.id == from_id
    ):
        message = f"the new voter {from_id} does not answer"
        finish(core, state, VoterChangeReply(ErrorCode.REQUEST_TIMED_OUT, message))


# Removing


def handle_remove(core: QuorumState, token: object, request: RemoveVoter) -> None:
    state = core.state
    if not isinstance(state, LeaderState):
        core.emit(Answer(token, _not_leader(core)))
        return
    reply = _obstacle(core, state)
    voters = _current_voters(core)
    known = voters.voters.get(request.voter.id)
    if reply is None and (known is None or known.key != request.voter):
        reply = VoterChangeReply(
            ErrorCode.VOTER_NOT_FOUND, f"{request.voter.id} is not a voter with that directory ({voters.ids})"
        )
    if reply is None and len(voters.voters) == 1:
        reply = VoterChangeReply(ErrorCode.INVALID_REQUEST, "the last voter cannot be removed")
    if reply is not None:
        core.emit(Answer(token, reply))
        return
    offset = core.append_control([voters.without(request.voter).to_record()])
    deadline = core.now.ms + core.config.request_timeout_ms
    state.change = PendingChange(token, request.voter, deadline, offset)
    _log.info("node %d: voter %d is removed at offset %d", core.local.key.id, request.voter.id, offset)


# Updating


def handle_update(core: QuorumState, request: UpdateVoter) -> UpdateVoterReply:
    error = _try_update(core, request)
    leader = NO_ONE if core.leader_id is None else core.leader_id
    return UpdateVoterReply(core.epoch, leader, error, core.leader_endpoint())


def _try_update(core: QuorumState, request: UpdateVoter) -> ErrorCode:
    state = core.state
    if request.epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.epoch > core.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if not isinstance(state, LeaderState):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    kraft_version = core.membership.kraft_version
    reply = _obstacle(core, state) if kraft_version else None
    if reply is not None:
        return reply.error
    fits = request.min_kraft_version <= kraft_version <= request.max_kraft_version
    if not fits or core.listener not in request.endpoints:
        return ErrorCode.INVALID_REQUEST
    voters = _current_voters(core)
    known = voters.voters.get(request.voter.id)
    if known is None or (kraft_version and known.key != request.voter):
        return ErrorCode.VOTER_NOT_FOUND
    voter = Voter(request.voter, request.endpoints, request.min_kraft_version, request.max_kraft_version)
    if not kraft_version:
        state.told[voter.key.id] = voter
    elif voter != known:
        core.append_control([voters.updated(voter).to_record()])
    return ErrorCode.NONE


def announce_self(core: QuorumState, state: FollowerState) -> bool:
    """See to it that the voters' record tells of this node what is true; whether the leader was asked to
    change it.
    """
    if core.now.ms < state.update_voter_ms:
        return False
    local, address = core.local, core.address(state.leader_endpoints)
    voters = core.membership.voters
    known = None if voters is None else voters.voters.get(local.key.id)
    asked = False
    static = core.membership.kraft_version < 1
    if known is not None and (static or known.key == local.key):
        if local.endpoints and known != local:
            request = UpdateVoter(
                local.key, state.epoch, local.endpoints, local.min_kraft_version, local.max_kraft_version
            )
            asked = core.send(state.leader_id, address, request)
    elif core.config.auto_join and core.config.can_be_voter and not static:
        if known is not None:
            asked = core.send(state.leader_id, address, RemoveVoter(known.key))
        else:
            timeout_ms = core.config.request_timeout_ms
            asked = core.send(
                state.leader_id, address, AddVoter(local.key, local.endpoints, timeout_ms, False)
            )
    else:
        asked = True  # nothing to tell
    if asked:
        state.update_voter_ms = core.now.ms + core.config.update_voter_interval_ms
    return asked and core.peers.is_asking()


# From static voters to those of the log


def upgrade(core: QuorumState, kraft_version: int, *, validate_only: bool) -> str | None:
    """Write the voters, which were configured until now, into the log, each as it has told of itself; why
    not, if that cannot be.
    """
    state, current = core.state, core.membership.kraft_version
    if not isinstance(state, LeaderState) or state.high_watermark is None:
        return "the leader has not committed its epoch yet; try again later"
    if kraft_version == current:
        return None
    if (current, kraft_version) != (0, 1):
        return f"it goes from 0 to 1 only, and is at {current}"
    told: list[Voter] = []
    for id in _current_voters(core).ids:
        voter = core.local if id == core.local.key.id else state.told.get(id)
        if voter is None or not voter.endpoints:
            return f"voter {id} has not told its directory and addresses yet; try again later"
        if not voter.min_kraft_version <= kraft_version <= voter.max_kraft_version:
            return f"voter {id} supports {voter.min_kraft_version} to {voter.max_kraft_version}"
        told.append(voter)
    if not validate_only:
        core.append_control([KRaftVersionRecord(kraft_version=kraft_version), VoterSet.of(*told).to_record()])
    return None


# The end of a change


def _answer(core: QuorumState, change: PendingChange, reply: VoterChangeReply) -> None:
    if change.token is not None:
        core.emit(Answer(change.token, reply))
        change.token = None


def finish(core: QuorumState, state: LeaderState, reply: VoterChangeReply) -> None:
    change, state.change = state.change, None
    if change is not None:
        _answer(core, change, reply)


def follow_change(core: QuorumState, state: LeaderState) -> None:
    """Answer a change that was committed, or that takes too long; a leader without a vote then goes."""
    change, high_watermark = state.change, state.high_watermark
    if change is not None:
        if change.offset is not None and high_watermark is not None and high_watermark > change.offset:
            finish(core, state, VoterChangeReply())
        elif core.now.ms >= change.deadline_ms:
            finish(core, state, VoterChangeReply(ErrorCode.REQUEST_TIMED_OUT, "the change took too long"))
    entry = core.membership.entry
    committed = entry is not None and high_watermark is not None and entry.offset < high_watermark
    if committed and not core.is_voter:
        _log.info("node %d: it is no voter any more and resigns", core.local.key.id)
        core.resign()


def abandon_change(core: QuorumState, state: LeaderState) -> None:
    """Leadership is lost: whether the change will be made is for the next leader to say."""
    finish(core, state, _not_leader(core))
