"""Taking records away from a log: at its end (truncation), at its start (DeleteRecords, retention), and in
its middle (compaction's swap of segments).

What makes these safe is what is durable before the first file is touched: a recovery point that is not above
the new end, a log start that is above what goes. Up to there an error changes nothing; from there on the work
must not stop half-way, and any error takes the directory offline.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise

from ottla.log import log_appends, log_flushes
from ottla.log.log_core import LogCore
from ottla.log.retention import Deletion, segments_to_delete
from ottla.log.segment.segment import LogSegment
from ottla.protocol.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)


# The end


def end_below(core: LogCore, offset: int) -> int:
    with core.guard("finding a batch"):
        return core.local.end_below(offset) if offset > core.segments[0].base_offset else offset


def truncate_to(core: LogCore, offset: int) -> bool:
    core.check_usable()
    core.verify_end()
    if offset < 0:
        raise ValueError(f"{core.partition} cannot be truncated to {offset}")
    epochs = core.epoch_cache()
    if offset >= core.log_end_offset:
        # An epoch may begin at the end of the log without a record.
        epochs.truncate_from_end(core.log_end_offset)
        return False
    if offset < core.high_watermark:
        _log.warning(
            "%s is cut at %d, below its high watermark %d", core.partition, offset, core.high_watermark
        )
    if offset < core.segments[0].base_offset:
        truncate_fully_and_start_at(core, offset, None)
        return True
    with core.guard("lowering the recovery point before a truncation"):
        end_offset = end_below(core, offset)
        for segment in core.local.segments_from(offset):
            core.producers.mend_txn_index(segment)
        core.directory.lower_recovery_points({core.partition: end_offset})
        if end_offset < core.log_start_offset:
            _set_log_start(core, end_offset)
    with core.guard("truncating", fatal=True):
        core.upper = None
        core.local.truncate_to(offset)
        epochs.truncate_from_end(end_offset)
        core.log_start_offset = min(core.log_start_offset, end_offset)
        core.high_watermark = min(core.high_watermark, end_offset)
        core.producers.truncate(core.log_start_offset, core.high_watermark)
        # A snapshot of what was cut must not come back and be taken for one of what follows.
        core.local.sync_names()
    return True


def truncate_fully_and_start_at(core: LogCore, offset: int, log_start_offset: int | None) -> None:
    core.check_usable()
    core.settle()
    epochs = core.epoch_cache()
    with core.guard("noting the new start of a log"):
        core.directory.lower_recovery_points({core.partition: offset})
        _set_log_start(core, offset)
    with core.guard("truncating", fatal=True):
        core.upper = None
        core.verified_end = True
        core.producers.start_anew(offset)
        core.local.truncate_fully_and_start_at(offset, core.directory.clock.wall_ms())
    epochs.clear()
    core.log_start_offset = offset if log_start_offset is None else min(log_start_offset, offset)
    core.high_watermark = offset


def _set_log_start(core: LogCore, offset: int) -> None:
    """Make another log start durable, a lower one maybe: then what was deleted must be gone for good."""
    if offset < core.log_start_offset and not core.local.names_synced:
        core.local.sync_names()
    core.directory.set_log_starts({core.partition: offset})


# The start


def increment_log_start_offset(core: LogCore, offset: int, reason: str) -> bool:
    core.check_usable()
    if offset > core.high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the log start of {core.partition} cannot move to {offset}, beyond the high watermark "
            f"{core.high_watermark}",
        )
    if offset <= core.log_start_offset:
        return False
    _log.info("%s: the log start moves to %d: %s", core.partition, offset, reason)
    epochs = core.epoch_cache()
    core.log_start_offset = offset
    epochs.truncate_from_start(offset)
    producers = core.producers.loaded
    if producers is not None:
        with core.guard("listing the producer snapshots"):
            latest = core.producers.snapshots.latest
        producers.on_log_start_offset_incremented(offset, latest)
    return True


def deletable(core: LogCore, now_ms: int) -> list[Deletion[LogSegment]]:
    config = core.config
    with core.guard("applying retention"):
        return segments_to_delete(
            core.segments,
            log_start_offset=core.log_start_offset,
            log_end_offset=core.log_end_offset,
            high_watermark=core.high_watermark,
            delete_policy=config.delete,
            retention_bytes=config.retention_bytes,
            retention_ms=config.retention_ms,
            now_ms=now_ms,
        )


def pass_over(core: LogCore, deletion: Deletion[LogSegment], now_ms: int) -> list[LogSegment]:
    core.check_usable()
    core.verify_end()
    known = set(core.segments)
    passed = [segment for segment in deletion.segments if segment in known]
    if passed:
        if passed[-1] is core.active:
            log_appends.roll(core, now_ms)
        increment_log_start_offset(core, deletion.new_log_start_offset, deletion.reason.value)
    return passed


def remove_passed(core: LogCore, passed: Sequence[LogSegment]) -> int:
    core.check_usable()
    start, below = core.log_start_offset, set()
    for segment, following in pairwise(core.segments):
        if following.base_offset <= start:
            below.add(segment)
    gone = [segment for segment in passed if segment in below]
    if not gone:
        return 0
    with core.guard("noting the new start of a log"):
        _set_log_start(core, start)
    with core.guard("deleting segments", fatal=True):
        core.local.remove_front(gone)
        core.producers.drop_snapshots(gone)
    return len(gone)


# The middle


def replace_segments(core: LogCore, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
    core.check_usable()
    end = max(segment.base_offset for segment in old)
    following = [segment.base_offset for segment in core.segments if segment.base_offset > end]
    if following and core.local.recovery_point < following[0]:
        log_flushes.flush(core, following[0])
    with core.guard("noting the recovery point before a swap"):
        core.directory.raise_recovery_points({core.partition: core.local.recovery_point})
    with core.guard("swapping segments", fatal=True):
        core.upper = None
        core.producers.drop_snapshots(core.local.replace_segments(new, old))
