"""The log cleaner: keeps the compacted logs of a node compact, in the background and within its budget.

Each worker takes the dirtiest log that no other worker cleans, compacts it slice by slice in the pool, and
swaps the result in, group by group, with every wait for the disk in the pool as well. Between two slices it
waits as long as the `Throttler` asks for the bytes moved and checks whether the log is still the one it began
with: a log that was truncated, deleted, moved or paused meanwhile is left as it is and tried again later,
since nothing refers to the new segment before it is swapped in.

Up to where a log is clean is in `cleaner-offset-checkpoint`, which belongs to its directory: an entry goes
with its log, and is lowered before the log is truncated below it. A log in another directory, or under the
name of a deleted one, is dirty from its start. A lost write costs a second cleaning, never a record.

The swap is `UnifiedLog.begin_replacement`: all files of the new segment are synced under `.cleaned`, renamed
to `.swap`, and that made durable (after a crash before this point recovery undoes the swap, after it recovery
completes it); then the old segments are renamed to `.deleted` and that made durable; then the new one gets
its final name. Cleaning stays below the recovery point, where recovery expects gaps between offsets.

A log whose records cannot be read is marked uncleanable, with an error in the node's log, and left alone
until the node starts again; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ottla.log.cleaner.compaction import (
    CleanerStats,
    Compaction,
    CompactionPlan,
    CompactionProgress,
    MeasuredSegment,
    SegmentTooLarge,
)
from ottla.log.cleaner.selection import LogToClean, assess, cleanable_offsets, dirtiest, segments_between
from ottla.log.cleaner.throttler import Throttler
from ottla.log.segment.walk import CorruptBatch
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.compaction import OffsetMap
from ottla.runtime.clock import Clock
from ottla.runtime.pool import Pool
from ottla.runtime.random import Random
from ottla.runtime.turns import Turns

SLICE_BYTES = 2 * 1024 * 1024
MAP_ENTRY_BYTES = 24
_OFFSET_INDEX_ENTRY_BYTES = 8
_TIME_INDEX_ENTRY_BYTES = 12
_SMALLER_GROUPS = 0.9
_CHECK_EVERY = 8
"""Logs that are looked at between two looks at the clock."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CleanerConfig:
    """The settings `log.cleaner.*` of the broker."""

    threads: int = 1
    dedupe_buffer_size: int = 128 * 1024 * 1024
    io_buffer_size: int = 512 * 1024
    io_buffer_load_factor: float = 0.9
    io_max_bytes_per_second: float = math.inf
    backoff_ms: int = 15_000

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"log.cleaner.threads must be 1 or more, got {self.threads}"
            )
        if self.dedupe_buffer_size // self.threads < 1024 * 1024:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"log.cleaner.dedupe.buffer.size={self.dedupe_buffer_size} is less than 1 MiB for each of "
                f"log.cleaner.threads={self.threads}",
            )
        if not 0 < self.io_buffer_load_factor < 1:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "log.cleaner.io.buffer.load.factor must be between 0 and 1, got "
                f"{self.io_buffer_load_factor}",
            )


class _Aborted(Exception):
    """The log is no longer the one that the cleaning began with."""


class LogCleaner:
    """Cleans the logs that `logs` yields. Belongs to the event loop; `run` until cancelled."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        pool: Pool,
        logs: Callable[[], Iterable[UnifiedLog]],
        config: CleanerConfig | None = None,
    ) -> None:
        self._clock = clock
        self._random = random
        self._pool = pool
        self._logs = logs
        self._config = config or CleanerConfig()
        self._throttle = Throttler(clock, self._config.io_max_bytes_per_second)
        # One worker chooses at a time: that takes several turns of the event loop where there are many logs.
        self._choosing = asyncio.Lock()
        self._in_progress: dict[TopicPartition, None] = {}
        # Why a log cannot be cleaned, by the log itself: a new one of the same name is tried again.
        self._uncleanable: dict[UnifiedLog, str] = {}
        # When logs are tried again whose cleaning failed for lack of room, of handles or of a disk; until
        # then the others are cleaned.
        self._retry_at_ms: dict[UnifiedLog, int] = {}
        # How much smaller than a segment the groups of a log must be so that the result fits.
        self._group_share: dict[UnifiedLog, float] = {}
        self.last_stats: CleanerStats | None = None
        self.last_clean_seconds = 0.0
        # Of all cleanings that were completed.
        self.cleanings = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.max_dirty_ratio = 0.0
        self.max_compaction_delay_ms = 0

    @property
    def config(self) -> CleanerConfig:
        return self._config

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """The partitions that cannot be cleaned, and why."""
        return {log.topic_partition: reason for log, reason in self._uncleanable.items()}

    def reconfigure(self, config: CleanerConfig) -> None:
        """Put other settings in force, from the next cleaning on; the number of workers needs a new `run`."""
        self._config = config
        self._throttle.set_rate(config.io_max_bytes_per_second)

    def clean_until(self, log: UnifiedLog) -> int | None:
        """Where the last cleaning of a log ended; None if that is not known."""
        return log.directory.cleaned_offsets.offsets.get(log.topic_partition)

    def is_cleaning(self, partition: TopicPartition) -> bool:
        return partition in self._in_progress

    # Cleaning

    async def run(self) -> None:
        """Clean until cancelled, with as many workers as configured."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._config.threads):
                workers.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            if not await self.clean_filthiest_log():
                await asyncio.sleep(self._config.backoff_ms / 1000)

    async def clean_filthiest_log(self) -> bool:
        """Clean the dirtiest log that is due; False if there was none."""
        now_ms = self._clock.wall_ms()
        async with self._choosing:
            choice = await self._grab_filthiest_log(now_ms)
            if choice is None:
                return False
            log, to_clean = choice
            partition = log.topic_partition
            self._in_progress[partition] = None
        try:
            await self._clean(log, to_clean, now_ms)
        finally:
            del self._in_progress[partition]
        return True

    async def _grab_filthiest_log(self, now_ms: int) -> tuple[UnifiedLog, LogToClean] | None:
        """Choose a log and its range, in turns; what was chosen is as it is now."""
        logs = list(self._logs())
        self._forget_others(logs)
        turns = Turns(self._clock, check_every=_CHECK_EVERY)
        compacted = []
        for log in logs:
            if log.config.compact and len(log.segments) > 1:
                compacted.append(log)
            if turns.is_due():
                await turns.pause()
        turns.begin()
        candidates = []
        ratio, delay_ms = 0.0, 0
        for log in compacted:
            if (self.clean_until(log) or 0) > log.log_end_offset:
                await self._drop_checkpoint(log)
            if self._is_available(log) and (to_clean := self._assess(log, now_ms)) is not None:
                candidates.append((log, to_clean, log.config))
                ratio = max(ratio, to_clean.cleanable_ratio)
                delay_ms = max(delay_ms, to_clean.compaction_delay_ms)
            if turns.is_due():
                await turns.pause()
        self.max_dirty_ratio, self.max_compaction_delay_ms = ratio, delay_ms
        choice = dirtiest(candidates)
        if choice is None or turns.taken == 0:
            return choice
        log = choice[0]
        # The log may have changed in the turns since: where it has, another round decides.
        again = self._assess(log, now_ms) if self._is_available(log) and not log.is_closed else None
        return None if again is None else dirtiest([(log, again, log.config)])

    def _forget_others(self, logs: Iterable[UnifiedLog]) -> None:
        """Forget what is known of logs that are gone."""
        if self._uncleanable or self._group_share or self._retry_at_ms:
            present = set(logs)
            now_ms = self._monotonic_ms()
            self._retry_at_ms = {
                log: at_ms for log, at_ms in self._retry_at_ms.items() if log in present and at_ms > now_ms
            }
            self._uncleanable = {log: why for log, why in self._uncleanable.items() if log in present}
            self._group_share = {log: share for log, share in self._group_share.items() if log in present}

    def _is_available(self, log: UnifiedLog) -> bool:
        """Whether a compacted log may be cleaned now."""
        partition = log.topic_partition
        return (
            log.config.compact
            and len(log.segments) > 1
            and log not in self._uncleanable
            and log not in self._retry_at_ms
            and partition not in self._in_progress
            and log.directory.is_online
        )

    async def _drop_checkpoint(self, log: UnifiedLog) -> None:
        """Note that a log is dirty from its start: it has lost records that were clean, or never had them. It
        must not count as clean when it has grown.
        """
        partition, clean_until = log.topic_partition, self.clean_until(log)
        _log.warning(
            "%s was clean up to %s, but the log is %d to %d; it counts as dirty from its start",
            partition,
            clean_until,
            log.log_start_offset,
            log.log_end_offset,
        )
        try:
            await self._set_checkpoint(
                log, log.log_start_offset, lambda: self.clean_until(log) == clean_until
            )
        except OSError as error:
            _log.warning("%s", log.directory.io_error("writing the checkpoint of the cleaner", error).message)

    async def _set_checkpoint(self, log: UnifiedLog, offset: int, is_wanted: Callable[[], bool]) -> None:
        changes = log.directory.cleaned_offset_sets
        await _to_the_end(changes.write(log.topic_partition, offset, is_wanted, self._pool))

    def _assess(self, log: UnifiedLog, now_ms: int) -> LogToClean | None:
        partition = log.topic_partition
        try:
            cleaning = cleanable_offsets(log, self.clean_until(log), now_ms)
            return assess(log, cleaning, now_ms)
        except OSError as error:
            self._try_later(log)
            _log.warning("%s", log.directory.io_error(f"looking at {partition} before cleaning", error))
        except Exception as error:
            self._note_failure(log, error)
        return None

    async def _clean(self, log: UnifiedLog, to_clean: LogToClean, now_ms: int) -> None:
        started_ns = self._clock.monotonic_ns()
        work: Compaction | None = None
        try:
            work = self._begin(log, to_clean, now_ms)
            truncation_count = log.truncation_count
            await self._compact(log, work, truncation_count)
            await self._set_checkpoint(
                log, work.end_offset, partial(_is_the_same, log, work, truncation_count)
            )
            self.last_stats = work.stats
            seconds = (self._clock.monotonic_ns() - started_ns) / 1e9
            self.last_clean_seconds = seconds
            self.cleanings += 1
            self.bytes_read += work.stats.bytes_read
            self.bytes_written += work.stats.bytes_written
            _report(log, to_clean.first_dirty_offset, work, seconds)
        except _Aborted:
            _log.info("the cleaning of %s is given up for now: the log has changed", log.topic_partition)
        except SegmentTooLarge as error:
            self._make_groups_smaller(log, error)
        except OSError as error:
            self._try_later(log)
            if not isinstance(error, FileNotFoundError) or log.directory.disk.is_dir(log.dir):
                _log.warning("%s", log.directory.io_error(f"cleaning {log.topic_partition}", error))
        except Exception as error:
            self._note_failure(log, error)
        finally:
            if work is not None:
                await self._in_pool(self._discard, log, work)

    def _begin(self, log: UnifiedLog, to_clean: LogToClean, now_ms: int) -> Compaction:
        """Collect everything about the log that the work off the event loop needs."""
        config = self._config
        start, end = to_clean.first_dirty_offset, to_clean.first_uncleanable_offset
        segments = [segment for segment in log.segments if segment.base_offset < end]
        dirty = segments_between(segments, start, end)
        plan = CompactionPlan(
            dir=log.dir,
            config=log.config,
            segments=tuple(
                MeasuredSegment(
                    segment,
                    segment.size,
                    segment.offset_index.entries * _OFFSET_INDEX_ENTRY_BYTES,
                    segment.time_index.entries * _TIME_INDEX_ENTRY_BYTES,
                )
                for segment in segments
            ),
            first_dirty_offset=start,
            first_uncleanable_offset=end,
            first_dirty_position=dirty[0].offset_index.lookup(start).position if dirty else 0,
            aborted=log.collect_aborted_transactions(segments[0].base_offset, end) if segments else (),
            last_records=log.producer_state_manager.last_records_of_active_producers(),
            now_ms=now_ms,
            max_group_bytes=int(log.config.segment_bytes * self._group_share.get(log, 1.0)),
        )
        # There are no more keys than offsets, so a small map is enough for a small range.
        needed = MAP_ENTRY_BYTES * (int((end - start) / config.io_buffer_load_factor) + 2)
        offset_map = OffsetMap(
            min(config.dedupe_buffer_size // config.threads, needed),
            config.io_buffer_load_factor,
            self._random.randbytes(16),
        )
        io_buffer_bytes = config.io_buffer_size // config.threads
        return Compaction(plan, log.directory.handles, offset_map, io_buffer_bytes=io_buffer_bytes)

    async def _compact(self, log: UnifiedLog, work: Compaction, truncation_count: int) -> None:
        while True:
            try:
                progress: CompactionProgress = await self._in_pool(work.advance, SLICE_BYTES)
            except Exception:
                # If the log was truncated meanwhile, the error does not mean damage.
                self._check_unchanged(log, work, truncation_count)
                raise
            delay = self._throttle.delay_after(progress.moved_bytes)
            if delay > 0:
                await asyncio.sleep(delay)
            self._check_unchanged(log, work, truncation_count)
            if progress.cleaned is not None:
                swap = log.begin_replacement([progress.cleaned.new], progress.cleaned.old)
                await _to_the_end(swap.run(self._pool))
                work.on_swapped()
            if progress.is_done:
                return

    def _check_unchanged(self, log: UnifiedLog, work: Compaction, truncation_count: int) -> None:
        present = set(log.segments)
        if (
            not _is_the_same(log, work, truncation_count)
            or not log.config.compact
            or any(segment not in present for segment in work.remaining)
        ):
            raise _Aborted

    def _make_groups_smaller(self, log: UnifiedLog, error: SegmentTooLarge) -> None:
        if error.segments < 2:
            self._give_up(log, error)
            return
        self._group_share[log] = self._group_share.get(log, 1.0) * _SMALLER_GROUPS
        _log.warning("%s; the next cleaning joins fewer of them", error)

    def _note_failure(self, log: UnifiedLog, error: Exception) -> None:
        if isinstance(error, KafkaError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            # Closed, offline or without room: not the fault of its records.
            self._try_later(log)
            _log.warning("the cleaning of %s has stopped: %s", log.topic_partition, error.message)
        else:
            # Even a mistake in this program must cost no more than this one log.
            self._give_up(log, error)
            if isinstance(error, CorruptBatch):
                log.directory.report_damage(log.dir, error)

    def _try_later(self, log: UnifiedLog) -> None:
        self._retry_at_ms[log] = self._monotonic_ms() + self._config.backoff_ms

    def _monotonic_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _give_up(self, log: UnifiedLog, error: Exception) -> None:
        self._uncleanable[log] = str(error)
        _log.error(
            "%s cannot be cleaned and will grow; it is left alone until the node starts again: %s",
            log.topic_partition,
            error,
            exc_info=error,
        )

    def _discard(self, log: UnifiedLog, work: Compaction) -> None:
        try:
            work.discard()
        except OSError as error:
            _log.warning("%s: what a cleaning has left will be removed at the next start: %s", log.dir, error)

    async def _in_pool(self, fn: Callable[..., T], *args: Any) -> T:
        return await _to_the_end(self._pool.run(fn, *args))


def _is_the_same(log: UnifiedLog, work: Compaction, truncation_count: int) -> bool:
    """Whether a log is still the one in its place, and was not truncated since a cleaning began."""
    return log.truncation_count == truncation_count and not log.is_truncating and log.dir == work.plan.dir


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work in the pool; where this is cancelled, let the work end first, since it uses state of the
    cleaner, and a swap of segments is not to be left half-way.
    """
    call = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        raise


def _report(log: UnifiedLog, first_dirty: int, work: Compaction, seconds: float) -> None:
    stats = work.stats
    _log.info(
        "cleaned %s from %d to %d in %.1f s: %d bytes of %d and %d records of %d are left, %.0f%% of the map "
        "was used",
        log.topic_partition,
        first_dirty,
        work.end_offset,
        seconds,
        stats.bytes_written,
        stats.bytes_read,
        stats.records_written,
        stats.records_read,
        100 * stats.map_utilization,
    )
