"""Changes of the voters, one at a time (KIP-853): add a voter, remove one, or update its endpoints.

The leader writes the new voter set into the log, and it is in force from there on. A change starts only when
the one before it is committed and the leader has committed a record of its own epoch; otherwise two
majorities might not meet. A leader that was removed leads until its removal is committed, and then resigns.
"""

from __future__ import annotations

import logging

from ottla.protocol.control_records import KRaftVersionRecord
from ottla.protocol.errors import ErrorCode
from ottla.raft.effects import Answer
from ottla.raft.messages import (
    AddVoter,
    QueryVersions,
    RemoveVoter,
    UpdateVoter,
    UpdateVoterReply,
    VersionsReply,
    VoterChangeReply,
)
from ottla.raft.quorum_state import QuorumState
from ottla.raft.states import FollowerState, LeaderState, PendingVoterChange
from ottla.raft.voters import Voter, VoterSet
from ottla.records.control import QuorumRecord

_log = logging.getLogger(__name__)


def _check_change_allowed(quorum: QuorumState, state: LeaderState, change: str) -> VoterChangeReply | None:
    """Why a change (`adding` or `removing` a voter, ...) cannot start now; None if it can."""
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    if state.voter_change is not None:
        return VoterChangeReply(
            timed_out,
            "Request timed out waiting for leader to handle previous voter change request. Try again later.",
        )
    if state.high_watermark is None:
        return VoterChangeReply(
            timed_out,
            "Request timed out waiting for leader to establish HWM and fence previous voter changes. "
            "Try again later.",
        )
    if quorum.kraft_version < 1:
        return VoterChangeReply(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Cluster doesn't support {change} voter because the kraft.version feature is "
            f"{quorum.kraft_version}: the voters are configured statically. "
            "`ottla cluster features --set kraft.version=1` raises it.",
        )
    entry = quorum.voter_history.last_entry
    if entry is None or entry.offset >= state.high_watermark:
        return VoterChangeReply(
            timed_out,
            "Request timed out waiting for voters to commit the latest voter change at "
            f"{None if entry is None else entry.offset} with HWM {state.high_watermark}. Try again later.",
        )
    return None


def _current_voters(quorum: QuorumState) -> VoterSet:
    voters = quorum.voters
    assert voters is not None, f"{quorum.state} leads without knowing the voters"
    return voters


# Adding


def handle_add_voter_request(quorum: QuorumState, token: object, request: AddVoter, now_ms: int) -> None:
    """Start adding a voter: ask it first which versions it supports."""
    state = quorum.state
    if not isinstance(state, LeaderState):
        quorum.emit(Answer(token, quorum.not_leader_reply()))
        return
    reply = _check_change_allowed(quorum, state, "adding")
    voters = _current_voters(quorum)
    address = request.endpoints.get(quorum.listener)
    if reply is None and request.voter.id in voters.voters:
        reply = VoterChangeReply(
            ErrorCode.DUPLICATE_VOTER,
            f"The voter id for {request.voter.id} is already part of the set of voters {voters.ids}. If the "
            "voter has lost its directory, remove it first.",
        )
    if reply is None and address is None:
        reply = VoterChangeReply(
            ErrorCode.INVALID_REQUEST,
            f"Add voter request didn't include the endpoint ({sorted(request.endpoints)}) for the default "
            f"listener {quorum.listener}.",
        )
    if reply is None and not quorum.send(request.voter.id, address, QueryVersions(), now_ms):
        reply = VoterChangeReply(
            ErrorCode.REQUEST_TIMED_OUT, f"New voter {request.voter.id} is not ready to receive requests."
        )
    if reply is not None:
        quorum.emit(Answer(token, reply))
        return
    state.voter_change = PendingVoterChange(
        token,
        request.voter,
        now_ms + max(min(request.timeout_ms, quorum.config.request_timeout_ms), 0),
        endpoints=request.endpoints,
        ack_when_committed=request.ack_when_committed,
    )


def handle_versions_response(quorum: QuorumState, from_id: int, reply: VersionsReply, now_ms: int) -> None:
    """Append the voter set with the new voter, now that its versions are known."""
    state = quorum.state
    change = state.voter_change if isinstance(state, LeaderState) else None
    if not isinstance(state, LeaderState) or change is None or change.offset is not None:
        return
    if change.voter.id != from_id or not change.endpoints:
        return
    refusal = _check_new_voter(quorum, state, change, reply, now_ms)
    if refusal is not None:
        _complete(quorum, state, refusal)
        return
    voter = Voter(change.voter, change.endpoints, reply.min_kraft_version, reply.max_kraft_version)
    voters = _current_voters(quorum).add_voter(voter)
    change.offset = quorum.append_control_records([voters.to_record()], now_ms)
    _log.info("node %d: voter %d is added at offset %d", quorum.local.key.id, from_id, change.offset)
    if not change.ack_when_committed:
        _answer(quorum, change, VoterChangeReply())


def _check_new_voter(
    quorum: QuorumState, state: LeaderState, change: PendingVoterChange, reply: VersionsReply, now_ms: int
) -> VoterChangeReply | None:
    if reply.error is not ErrorCode.NONE:
        return VoterChangeReply(
            ErrorCode.REQUEST_TIMED_OUT,
            f"Aborted add voter operation for {change.voter.id} since API_VERSIONS returned an error "
            f"{reply.error.name}.",
        )
    if not reply.min_kraft_version <= quorum.kraft_version <= reply.max_kraft_version:
        return VoterChangeReply(
            ErrorCode.INVALID_REQUEST,
            f"Aborted add voter operation for {change.voter.id} since kraft.version range "
            f"{reply.min_kraft_version}-{reply.max_kraft_version} doesn't support the finalized version "
            f"{quorum.kraft_version}.",
        )
    if not state.progress.is_replica_caught_up(change.voter, now_ms):
        return VoterChangeReply(
            ErrorCode.REQUEST_TIMED_OUT,
            f"Aborted add voter operation for {change.voter.id} since it is lagging behind: it has not "
            "caught up with the log. Try again later.",
        )
    return None


def handle_versions_failure(quorum: QuorumState, from_id: int) -> None:
    """Give up adding a voter that did not answer ApiVersions."""
    state = quorum.state
    change = state.voter_change if isinstance(state, LeaderState) else None
    if (
        isinstance(state, LeaderState)
        and change is not None
        and change.offset is None
        and change.voter.id == from_id
    ):
        message = f"Aborted add voter operation for {from_id} since it does not answer."
        _complete(quorum, state, VoterChangeReply(ErrorCode.REQUEST_TIMED_OUT, message))


# Removing


def handle_remove_voter_request(
    quorum: QuorumState, token: object, request: RemoveVoter, now_ms: int
) -> None:
    state = quorum.state
    if not isinstance(state, LeaderState):
        quorum.emit(Answer(token, quorum.not_leader_reply()))
        return
    reply = _check_change_allowed(quorum, state, "removing")
    voters = _current_voters(quorum)
    known = voters.voters.get(request.voter.id)
    if reply is None and (known is None or known.key != request.voter):
        reply = VoterChangeReply(
            ErrorCode.VOTER_NOT_FOUND,
            f"Cannot remove voter {request.voter.id} from the set of voters {voters.ids}: it is not a voter "
            "with that directory id.",
        )
    if reply is None and len(voters.voters) == 1:
        reply = VoterChangeReply(
            ErrorCode.INVALID_REQUEST,
            f"Cannot remove voter {request.voter.id} from the set of voters {voters.ids}: it is the last.",
        )
    if reply is not None:
        quorum.emit(Answer(token, reply))
        return
    offset = quorum.append_control_records([voters.remove_voter(request.voter).to_record()], now_ms)
    deadline_ms = now_ms + quorum.config.request_timeout_ms
    state.voter_change = PendingVoterChange(token, request.voter, deadline_ms, offset)
    _log.info("node %d: voter %d is removed at offset %d", quorum.local.key.id, request.voter.id, offset)


# Updating


def handle_update_voter_request(quorum: QuorumState, request: UpdateVoter, now_ms: int) -> UpdateVoterReply:
    error = _update_voter(quorum, request, now_ms)
    return UpdateVoterReply(quorum.epoch, quorum.leader_id_or_none, error, quorum.leader_endpoints())


def _update_voter(quorum: QuorumState, request: UpdateVoter, now_ms: int) -> ErrorCode:
    state = quorum.state
    if request.epoch < quorum.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.epoch > quorum.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if not isinstance(state, LeaderState):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    kraft_version = quorum.kraft_version
    reply = _check_change_allowed(quorum, state, "updating") if kraft_version else None
    if reply is not None:
        return reply.error
    is_supported = request.min_kraft_version <= kraft_version <= request.max_kraft_version
    if not is_supported or quorum.listener not in request.endpoints:
        return ErrorCode.INVALID_REQUEST
    voters = _current_voters(quorum)
    known = voters.voters.get(request.voter.id)
    if known is None or (kraft_version and known.key != request.voter):
        return ErrorCode.VOTER_NOT_FOUND
    voter = Voter(request.voter, request.endpoints, request.min_kraft_version, request.max_kraft_version)
    if not kraft_version:
        state.updated_voters[voter.key.id] = voter
    elif voter != known:
        quorum.append_control_records([voters.update_voter(voter).to_record()], now_ms)
    return ErrorCode.NONE


def maybe_update_own_voter(quorum: QuorumState, state: FollowerState, now_ms: int) -> bool:
    """Ask the leader to change the voters' record where it does not describe this node as it is; whether a
    request is in flight.
    """
    if now_ms < state.update_voter_ms:
        return False
    local, address = quorum.local, quorum.address(state.leader_endpoints)
    voters = quorum.voters
    known = None if voters is None else voters.voters.get(local.key.id)
    sent = False
    is_static = quorum.kraft_version < 1
    if known is not None and (is_static or known.key == local.key):
        if local.endpoints and known != local:
            request = UpdateVoter(
                local.key, state.epoch, local.endpoints, local.min_kraft_version, local.max_kraft_version
            )
            sent = quorum.send(state.leader_id, address, request, now_ms)
    elif quorum.config.auto_join and quorum.config.can_be_voter and not is_static:
        if known is not None:
            sent = quorum.send(state.leader_id, address, RemoveVoter(known.key), now_ms)
        else:
            timeout_ms = quorum.config.request_timeout_ms
            add = AddVoter(local.key, local.endpoints, timeout_ms, False)
            sent = quorum.send(state.leader_id, address, add, now_ms)
    else:
        sent = True  # there is nothing to change
    if sent:
        state.update_voter_ms = now_ms + quorum.config.update_voter_interval_ms
    return sent and quorum.requests.has_any_inflight_request


# From static voters to those of the log


def upgrade_kraft_version(
    quorum: QuorumState, kraft_version: int, now_ms: int, *, validate_only: bool
) -> str | None:
    """Write the voters, which were configured until now, into the log, each as it described itself by
    UpdateRaftVoter; the reason if that is refused.
    """
    state, current = quorum.state, quorum.kraft_version
    if not isinstance(state, LeaderState) or state.high_watermark is None:
        return "the leader has not committed its epoch yet; try again later"
    if kraft_version == current:
        return None
    if (current, kraft_version) != (0, 1):
        return f"it goes from 0 to 1 only, and is at {current}"
    voters: list[Voter] = []
    for id in _current_voters(quorum).ids:
        voter = quorum.local if id == quorum.local.key.id else state.updated_voters.get(id)
        if voter is None or not voter.endpoints:
            return f"voter {id} has not sent its directory id and endpoints yet; try again later"
        if not voter.min_kraft_version <= kraft_version <= voter.max_kraft_version:
            return f"voter {id} supports {voter.min_kraft_version} to {voter.max_kraft_version}"
        voters.append(voter)
    if not validate_only:
        records: list[QuorumRecord] = [
            KRaftVersionRecord(kraft_version=kraft_version),
            VoterSet.of(*voters).to_record(),
        ]
        quorum.append_control_records(records, now_ms)
    return None


# The end of a change


def _answer(quorum: QuorumState, change: PendingVoterChange, reply: VoterChangeReply) -> None:
    if change.token is not None:
        quorum.emit(Answer(change.token, reply))
        change.token = None


def _complete(quorum: QuorumState, state: LeaderState, reply: VoterChangeReply) -> None:
    change, state.voter_change = state.voter_change, None
    if change is not None:
        _answer(quorum, change, reply)


def maybe_complete_change(quorum: QuorumState, state: LeaderState, now_ms: int) -> None:
    """Answer a change that is committed or takes too long; a leader that is not a voter any more resigns."""
    change, high_watermark = state.voter_change, state.high_watermark
    if change is not None:
        if change.offset is not None and high_watermark is not None and high_watermark > change.offset:
            _complete(quorum, state, VoterChangeReply())
        elif now_ms >= change.deadline_ms:
            late = VoterChangeReply(
                ErrorCode.REQUEST_TIMED_OUT, "Request timed out: the voter change is not committed yet."
            )
            _complete(quorum, state, late)
    entry = quorum.voter_history.last_entry
    committed = entry is not None and high_watermark is not None and entry.offset < high_watermark
    if committed and not quorum.is_voter:
        _log.info("node %d: is not a voter any more and resigns", quorum.local.key.id)
        quorum.transition_to_resigned(now_ms)
