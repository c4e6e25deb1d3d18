"""Replication: followers fetch, the leader answers with records, with the point where the logs part, or with
the snapshot to begin with.

A fetch from an offset says that everything below it is on the fetcher's disk, so a follower fetches again
only once what it appended has been synced. A leader lets a fetch wait until there is something new.
Invariant: a replica never cuts its log below the high watermark.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.effects import Answer, Flush, InstallSnapshot, SnapshotLoaded
from ottla.raft.log import Validity, truncation_point, validate
from ottla.raft.messages import (
    NO_ONE,
    UNKNOWN_HIGH_WATERMARK,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    OffsetAndEpoch,
)
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import FollowerState, LeaderState, ParkedFetch, SnapshotDownload
from ottla.runtime.address import Address

if TYPE_CHECKING:
    from ottla.raft.quorum_state import QuorumState

_log = logging.getLogger(__name__)

_MAX_PARKED: Final = 10_000
_MAX_WAIT_MS: Final = 60_000


class LogContradiction(Exception):
    """What a leader sent contradicts what is committed here: the quorum's promises do not hold any more."""


# The leader's side


def handle_fetch(core: QuorumState, token: object, fetch: Fetch) -> None:
    invalid = (
        fetch.max_wait_ms < 0
        or fetch.end.offset < 0
        or fetch.end.epoch < 0
        or fetch.max_bytes < 0
        or fetch.end.epoch > fetch.epoch
    )
    if invalid:
        core.emit(Answer(token, _fetch_reply(core, ErrorCode.INVALID_REQUEST)))
        return
    reply = _try_fetch(core, fetch)
    state = core.state
    idle = not reply.records and reply.error is ErrorCode.NONE and not reply.diverging and not reply.snapshot
    newer = reply.high_watermark > fetch.high_watermark
    if not isinstance(state, LeaderState) or not idle or newer or fetch.max_wait_ms == 0:
        core.emit(Answer(token, reply))
        return
    for parked in [parked for parked in state.parked if parked.fetch.replica == fetch.replica]:
        # It asks again, so it does not wait for the first answer any more.
        state.parked.remove(parked)
        core.emit(Answer(parked.token, reply))
    if len(state.parked) >= _MAX_PARKED:
        core.emit(Answer(token, reply))
        return
    wait_ms = min(fetch.max_wait_ms, _MAX_WAIT_MS)
    state.parked.append(ParkedFetch(token, fetch, core.now.ms + wait_ms))


def _try_fetch(core: QuorumState, fetch: Fetch) -> FetchReply:
    error = check_for_leader(core, fetch.epoch)
    if error is not ErrorCode.NONE:
        return _fetch_reply(core, error)
    state = core.state
    assert isinstance(state, LeaderState)
    found = validate(core.log, fetch.end)
    if found.kind is Validity.DIVERGING:
        return _fetch_reply(core, diverging=found.end)
    if found.kind is Validity.SNAPSHOT:
        return _fetch_reply(core, snapshot=SnapshotId(*found.end))
    log_end = core.log.end.offset
    records = b""
    if fetch.end.offset < log_end and fetch.max_bytes > 0:
        records = core.log.read(fetch.end.offset, min(fetch.max_bytes, core.config.fetch_max_bytes))
    if state.progress.fetched(fetch.replica, fetch.end.offset, log_end, core.now.ms):
        leader_advanced(core, state)
    return _fetch_reply(core, records=records)


def check_for_leader(core: QuorumState, epoch: int) -> ErrorCode:
    """Whether a request that knows ``epoch`` is at the right place."""
    if epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > core.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if not core.is_leader:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.NONE


def _fetch_reply(
    core: QuorumState,
    error: ErrorCode = ErrorCode.NONE,
    *,
    records: bytes = b"",
    diverging: OffsetAndEpoch | None = None,
    snapshot: SnapshotId | None = None,
) -> FetchReply:
    high_watermark = core.high_watermark if error is ErrorCode.NONE else None
    return FetchReply(
        core.epoch,
        NO_ONE if core.leader_id is None else core.leader_id,
        UNKNOWN_HIGH_WATERMARK if high_watermark is None else high_watermark,
        core.log.start_offset,
        records,
        diverging,
        snapshot,
        error,
        core.leader_endpoint(),
    )


def leader_advanced(core: QuorumState, state: LeaderState) -> None:
    """The leader's high watermark moved."""
    assert state.high_watermark is not None
    core.set_high_watermark(state.high_watermark)


def wake_fetches(core: QuorumState, state: LeaderState) -> None:
    """Answer the fetches for which there is something new, and those that have waited long enough."""
    log_end = core.log.end.offset
    for parked in list(state.parked):
        high_watermark = UNKNOWN_HIGH_WATERMARK if state.high_watermark is None else state.high_watermark
        new = parked.fetch.end.offset < log_end or parked.fetch.high_watermark < high_watermark
        if new or core.now.ms >= parked.deadline_ms:
            state.parked.remove(parked)
            core.emit(Answer(parked.token, _try_fetch(core, parked.fetch)))


def release_fetches(core: QuorumState, state: LeaderState) -> None:
    """Answer those that wait for a leader that is none any more."""
    for parked in state.parked:
        core.emit(Answer(parked.token, _fetch_reply(core, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    state.parked.clear()


def handle_fetch_snapshot(core: QuorumState, request: FetchSnapshot) -> FetchSnapshotReply:
    error = check_for_leader(core, request.epoch)
    size: int | None = None
    if error is ErrorCode.NONE:
        size = core.log.snapshot_size(request.id)
        if size is None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        elif not 0 <= request.position < size or request.max_bytes <= 0:
            error = ErrorCode.POSITION_OUT_OF_RANGE
    data = b""
    state = core.state
    if error is ErrorCode.NONE and size is not None and isinstance(state, LeaderState):
        max_bytes = min(request.max_bytes, core.config.fetch_snapshot_max_bytes)
        data = core.log.read_snapshot(request.id, request.position, max_bytes)
        state.progress.heard_from(request.replica, core.now.ms)
    leader = NO_ONE if core.leader_id is None else core.leader_id
    return FetchSnapshotReply(
        core.epoch,
        leader,
        request.id,
        0 if size is None else size,
        request.position,
        data,
        error,
        core.leader_endpoint(),
    )


# The follower's side


def fetch_from_leader(core: QuorumState, state: FollowerState) -> None:
    """Ask for more, once what is here is on disk; or for the next piece of a snapshot."""
    download = state.download
    if download is not None:
        if not download.complete:
            core.send(
                state.leader_id,
                core.address(state.leader_endpoints),
                FetchSnapshot(
                    core.local.key,
                    state.epoch,
                    download.id,
                    download.position,
                    core.config.fetch_snapshot_max_bytes,
                ),
            )
        return
    if core.durable_end >= core.log.end.offset:
        core.send(state.leader_id, core.address(state.leader_endpoints), _fetch(core))


def _fetch(core: QuorumState) -> Fetch:
    high_watermark = core.high_watermark
    return Fetch(
        core.local.key,
        core.epoch,
        core.log.end,
        core.config.fetch_max_wait_ms,
        core.config.fetch_max_bytes,
        UNKNOWN_HIGH_WATERMARK if high_watermark is None else high_watermark,
    )


def fetch_from_anyone(core: QuorumState, leader_id: int | None = None) -> None:
    """Ask some other voter or a bootstrap server who leads."""
    if core.peers.is_asking():
        return
    choices: list[tuple[int, Address | None]] = list(core.peers.bootstrap.items())
    voters = core.membership.voters
    if voters is not None:
        choices += [(id, core.address(voters.voters[id].endpoints)) for id in voters.ids]
    usable = [
        (id, address)
        for id, address in choices
        if address is not None
        and id not in (core.local.key.id, leader_id)
        and core.peers.is_ready(id, core.now.ms)
    ]
    if usable:
        id, address = usable[core.random.randrange(0, len(usable))]
        core.send(id, address, _fetch(core))


def take_fetched(core: QuorumState, from_id: int, fetch: Fetch, reply: FetchReply) -> bool:
    """Do as the leader says; False if the question should rest before it is asked again."""
    state = core.state
    if not isinstance(state, FollowerState) or state.epoch != fetch.epoch or reply.epoch != state.epoch:
        return True
    if reply.error is not ErrorCode.NONE or from_id != state.leader_id:
        return False
    if state.download is not None or core.log.end != fetch.end:
        return True
    if reply.diverging is not None:
        _cut(core, state, reply.diverging)
    elif reply.snapshot is not None:
        if min(reply.snapshot) < 0 or core.installing is not None:
            return False
        _begin_download(core, state, reply.snapshot)
    else:
        if reply.records and not _append(core, state, reply.records):
            return False
        _follow_high_watermark(core, state, reply.high_watermark)
    leader_answered(core, state)
    return True


def leader_answered(core: QuorumState, state: FollowerState) -> None:
    state.leader_seen = True
    state.deadline_ms = core.now.ms + core.config.fetch_timeout_ms


def _cut(core: QuorumState, state: FollowerState, diverging: OffsetAndEpoch) -> None:
    if min(diverging) < 0:
        raise LogContradiction(f"the leader {state.leader_id} told an impossible end, {diverging}")
    offset = truncation_point(core.log, diverging)
    if offset < core.log.high_watermark:
        raise LogContradiction(
            f"the leader {state.leader_id} of epoch {state.epoch} parts from this log at {offset}, but "
            f"everything below {core.log.high_watermark} is committed"
        )
    core.log.truncate_to(offset)
    end = core.log.end.offset
    core.durable_end = min(core.durable_end, end)
    core.membership.truncate_to(end)


def _append(core: QuorumState, state: FollowerState, records: bytes) -> bool:
    start = core.log.end.offset
    try:
        core.log.append_as_follower(records, state.epoch)
    except KafkaError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        _log.warning("node %d: damaged records from the leader: %s", core.local.key.id, error)
        return False
    if core.log.end.offset > start:
        core.membership.read(records, core.log.end.offset)
        core.emit(Flush())
    return True


def _follow_high_watermark(core: QuorumState, state: FollowerState, told: int) -> None:
    reached = min(told, core.log.end.offset)
    if told >= 0 and (state.high_watermark is None or reached > state.high_watermark):
        state.high_watermark = reached
        core.set_high_watermark(reached)


def _begin_download(core: QuorumState, state: FollowerState, id: SnapshotId) -> None:
    _log.info("node %d: fetches the snapshot %s", core.local.key.id, id.file_name)
    core.log.begin_snapshot(id)
    state.download = SnapshotDownload(id)


def take_snapshot_piece(
    core: QuorumState, from_id: int, request: FetchSnapshot, reply: FetchSnapshotReply
) -> bool:
    """Write a piece down, or give the download up; False if the leader should rest."""
    state = core.state
    if not isinstance(state, FollowerState) or state.epoch != request.epoch or reply.epoch != state.epoch:
        return True
    download = state.download
    if from_id != state.leader_id or download is None or download.id != request.id or download.complete:
        return True
    if reply.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
        _log.info("node %d: gives up the snapshot %s", core.local.key.id, download.id.file_name)
        core.log.abandon_snapshot()
        state.download = None
        leader_answered(core, state)
        return True
    if reply.error is not ErrorCode.NONE:
        return False
    end = reply.position + len(reply.data)
    if reply.id != download.id or reply.position != download.position or end > reply.size or not reply.data:
        return False
    core.log.write_snapshot(download.id, download.position, reply.data)
    download.position = end
    leader_answered(core, state)
    if end == reply.size:
        download.complete = True
        core.installing = download.id
        core.emit(InstallSnapshot(download.id))
    return True


def install_snapshot(core: QuorumState, id: SnapshotId, *, usable: bool) -> None:
    """A snapshot that was fetched is on disk, or turned out to be no good. If another epoch has begun since,
    it lies there for the next start, and is fetched again if it is still needed.
    """
    core.installing = None
    state = core.state
    if not isinstance(state, FollowerState) or state.download is None or state.download.id != id:
        return
    state.download = None
    if not usable or id.offset < core.log.high_watermark:
        return
    content = core.log.start_after_snapshot(id)
    core.durable_end = core.log.end.offset
    core.membership.load(id.offset, content)
    core.emit(SnapshotLoaded(id))
    state.high_watermark = id.offset
    core.set_high_watermark(id.offset)
