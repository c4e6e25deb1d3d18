"""Appending to a log, and rolling it.

Batches are checked first, by themselves and against what is known of their producers; then they are written;
then everything that follows from them is noted. An append that is refused has left nothing behind: what a
failed write has left is cut off, and batches whose aborted transaction cannot be indexed are taken out again.

One error comes after the fact. Where `flush.messages` asks for a flush and the disk has no room, or the
process no handle, for what belongs to it, the records stay in the log, and whoever waited for the flush is
told that it did not happen. They are synced with the next flush, and until then a producer that sends them
again asks for that flush again, so that `flush.messages=1` never acknowledges what is not durable. Any other
failure of a flush takes the directory offline.
"""

from __future__ import annotations

from ottla.log import log_flushes
from ottla.log.append import Incoming, LogAppendInfo, as_given, check_offsets, from_producer
from ottla.log.append_origin import AppendOrigin
from ottla.log.log_core import LogCore
from ottla.log.producers.replay import with_markers
from ottla.log.producers.state_entry import SENTINEL_GUARD, BatchMetadata, VerificationGuard
from ottla.log.producers.state_manager import ProducerAppend
from ottla.log.segment.offset_index import MAX_RELATIVE_OFFSET
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.types import NO_TIMESTAMP
from ottla.runtime.disk import Buffer


def append_as_leader(
    core: LogCore,
    data: Buffer,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin,
    guard: VerificationGuard,
    transaction_version: int | None,
    inline_flush: bool,
) -> LogAppendInfo:
    core.check_usable()
    core.verify_end()
    end_offset = core.log_end_offset
    if origin is AppendOrigin.RAFT_LEADER:
        given = as_given(data, core.partition, end_offset, leader_epoch, origin)
        if given is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "the records hold no complete batch")
        incoming = given
    else:
        incoming = from_producer(data, core.config, end_offset, leader_epoch, now_ms, origin)
        check_offsets(incoming.batches[-1], core.partition)
    return _append(core, incoming, now_ms, origin, guard, transaction_version, inline_flush)


def append_as_follower(
    core: LogCore, data: Buffer, leader_epoch: int, now_ms: int, inline_flush: bool
) -> LogAppendInfo:
    core.check_usable()
    core.verify_end()
    origin = AppendOrigin.REPLICATION
    incoming = as_given(data, core.partition, core.log_end_offset, leader_epoch, origin)
    if incoming is None:
        return LogAppendInfo(-1, -1, NO_TIMESTAMP, NO_TIMESTAMP, core.log_start_offset)
    return _append(core, incoming, now_ms, origin, SENTINEL_GUARD, None, inline_flush)


def _append(
    core: LogCore,
    incoming: Incoming,
    now_ms: int,
    origin: AppendOrigin,
    guard: VerificationGuard,
    transaction_version: int | None,
    inline_flush: bool,
) -> LogAppendInfo:
    data, batches, max_timestamp, append_time = incoming
    first_offset, last_offset = batches[0].base_offset, batches[-1].last_offset
    size = data.nbytes
    local = core.local
    # What a leader has taken its followers take: segment.bytes may have been lowered since.
    if size > local.config.segment_bytes and origin is not AppendOrigin.REPLICATION:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{core.partition}: {size} bytes in one append, but segment.bytes is {core.config.segment_bytes}",
        )
    change = None
    if incoming.has_producers:
        change = core.producer_state().analyze(
            with_markers(data, batches), origin, guard=guard, transaction_version=transaction_version
        )
        if change.duplicate is not None:
            return _known(core, change.duplicate, max_timestamp, inline_flush)
    rolled = False
    try:
        if local.active.should_roll(size, last_offset, max_timestamp, now_ms):
            rolled = _roll_for(core, first_offset, last_offset, now_ms)
        local.append(data, batches)
    except OSError as error:
        raise core.guard("appending").failure(error) from error
    if change is not None:
        _apply(core, change, first_offset)
    epochs = core.epoch_cache()
    for batch in batches:
        epoch = batch.leader_epoch
        if epoch >= 0:
            epochs.assign(epoch, batch.base_offset)
    producers = core.producers.loaded
    if producers is not None:
        producers.map_end_offset = local.log_end_offset
    return LogAppendInfo(
        first_offset,
        last_offset,
        max_timestamp,
        append_time,
        core.log_start_offset,
        epoch,
        size,
        False,
        rolled,
        _flush_due(core, inline_flush),
    )


def _known(core: LogCore, known: BatchMetadata, max_timestamp: int, inline_flush: bool) -> LogAppendInfo:
    """The answer to a batch that is in the log. The flush that was to follow it may have failed."""
    unflushed = known.last_offset >= core.local.recovery_point
    return LogAppendInfo(
        known.first_offset,
        known.last_offset,
        max_timestamp,
        known.timestamp,
        core.log_start_offset,
        duplicate=True,
        flush_due=unflushed and _flush_due(core, inline_flush),
    )


def _flush_due(core: LogCore, inline_flush: bool) -> bool:
    """Do the flush that `flush.messages` demands; True if that is left to the caller."""
    if core.unflushed_messages < core.config.flush_messages:
        return False
    if inline_flush:
        log_flushes.flush(core)
    return not inline_flush


def _apply(core: LogCore, change: ProducerAppend, first_offset: int) -> None:
    """Take over what the batches, which are in the log now, mean for their producers. If the transaction
    index cannot be written, take them out of the log again.
    """
    index = core.active.txn_index
    try:
        for txn in core.producer_state().apply(change):
            index.append(txn)
            core.local.names_changed()  # the first entry makes the file
    except OSError as error:
        core.producers.forget()
        with core.guard("undoing an append", fatal=True):
            index.truncate_to(first_offset)
            core.local.undo_append(first_offset)
        raise core.directory.io_error(f"writing the transaction index of {core.partition}", error) from error


def _roll_for(core: LogCore, first_offset: int, last_offset: int, now_ms: int) -> bool:
    """Begin a segment for batches with these offsets."""
    with core.guard("rolling a segment"):
        # At the log end, so that segments join without a gap; unless the offsets would not fit.
        base_offset = core.log_end_offset
        if last_offset - base_offset > MAX_RELATIVE_OFFSET:
            base_offset = first_offset
            if last_offset - base_offset > MAX_RELATIVE_OFFSET:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"{core.partition}: the offsets {base_offset} to {last_offset} of one append do not fit "
                    "into one segment",
                )
        return _roll_at(core, base_offset, now_ms)


def roll(core: LogCore, now_ms: int) -> bool:
    core.check_usable()
    core.verify_end()
    with core.guard("rolling a segment"):
        return _roll_at(core, core.log_end_offset, now_ms)


def _roll_at(core: LogCore, base_offset: int, now_ms: int) -> bool:
    if core.active.base_offset == base_offset:
        return False
    if base_offset > core.log_end_offset:
        log_flushes.flush(core)
        core.directory.raise_recovery_points({core.partition: core.local.recovery_point})
    producers = core.producer_state()
    core.local.roll(base_offset, now_ms)
    producers.map_end_offset = base_offset
    core.producers.take_snapshot()
    return True
