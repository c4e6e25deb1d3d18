"""The scrubber: reads what is at rest on the disks of a node, slowly, and has mended what has rotted.

A pass goes through all logs, one segment after the other, some bytes at a time in the pool. It waits between
two of these for as long as `log.scrub.max.bytes.per.second` asks, and never takes more than a twentieth of a
core. What was not in the page cache does not stay there. A pass that a restart interrupts begins again.

Damaged batches are reported as those are that a reader meets: where another replica has the records, this one
is fetched again. Everything else follows from the batches and is written again here. Findings of a log, or of
a segment, that has changed or gone meanwhile are dropped: the next pass looks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.log.cleaner.throttler import Throttler
from ottla.log.scrub.examination import (
    LEADER_EPOCHS,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    SEGMENT,
    TIMESTAMP_INDEX,
    TOPIC_ID,
    TRANSACTION_INDEX,
    Examined,
    RottenFile,
    examine_leader_epochs,
    examine_segment,
    examine_snapshots,
    examine_topic_id,
    examine_transaction_index,
)
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.walk import CorruptBatch
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.clock import Clock
from ottla.runtime.pool import Pool

_log = logging.getLogger(__name__)

_SLICE_BYTES: Final = 1024 * 1024
_SLICE_NS: Final = 10_000_000
# Of each second the share that it may be at work.
_SHARE: Final = 0.05
_FINDINGS_KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class ScrubConfig:
    """The settings `log.scrub.*` of the broker."""

    interval_ms: int = 7 * 24 * 3_600_000
    max_bytes_per_second: int = 10 * 1024 * 1024


class ScrubFinding(NamedTuple):
    """What was found, and when."""

    found_ms: int
    partition: TopicPartition
    finding: RottenFile
    is_mended: bool
    """Whether it was written again here. A damaged segment is mended by fetching the replica again."""


class _Slice(NamedTuple):
    """What was examined at once."""

    size: int
    findings: list[RottenFile]
    busy_ns: int
    is_last: bool


class LogScrubber:
    """Scrubs the logs that `logs` yields. Belongs to the event loop; `run` until cancelled."""

    def __init__(
        self,
        clock: Clock,
        pool: Pool,
        logs: Callable[[], Iterable[UnifiedLog]],
        flush: Callable[[UnifiedLog], Awaitable[None]],
        config: ScrubConfig | None = None,
    ) -> None:
        self._clock = clock
        self._pool = pool
        self._logs = logs
        self._flush = flush
        self._config = config or ScrubConfig()
        self._throttle = Throttler(clock, self._config.max_bytes_per_second)
        # Of all passes since the start.
        self.passes = 0
        self.bytes_read = 0
        self.found: Counter[str] = Counter()
        self.mended: Counter[str] = Counter()
        self.findings: deque[ScrubFinding] = deque(maxlen=_FINDINGS_KEPT)
        # Of the pass under way, or the last one.
        self.pass_bytes = 0
        self.pass_done_bytes = 0
        self.scrubbing: TopicPartition | None = None
        self.last_pass_ms: int | None = None

    @property
    def progress(self) -> float:
        """The part of the logs that the pass under way has been through; 1 between two passes."""
        if self.scrubbing is None:
            return 1.0 if self.passes else 0.0
        return min(self.pass_done_bytes / self.pass_bytes, 1.0) if self.pass_bytes else 0.0

    def reconfigure(self, config: ScrubConfig) -> None:
        self._config = config
        self._throttle.set_rate(config.max_bytes_per_second)

    async def run(self, first_ms: int) -> None:
        """Scrub everything after `first_ms`, and again whenever the interval has passed."""
        wait_ms = min(first_ms, self._config.interval_ms)
        while True:
            await asyncio.sleep(wait_ms / 1000)
            began_ns = self._clock.monotonic_ns()
            await self.scrub()
            took_ms = (self._clock.monotonic_ns() - began_ns) // 1_000_000
            wait_ms = max(0, self._config.interval_ms - took_ms)

    async def scrub(self) -> None:
        """Make one pass."""
        logs = list(self._logs())
        self.pass_bytes = self.pass_done_bytes = 0
        for log in logs:
            try:
                self.pass_bytes += 0 if log.is_closed else log.size
            except KafkaError:
                continue  # its directory is offline
            await asyncio.sleep(0)
        for log in logs:
            if not log.is_closed and log.directory.is_online:
                self.scrubbing = log.topic_partition
                try:
                    await self._scrub_log(log)
                except (KafkaError, OSError) as error:
                    if not log.is_closed:
                        _log.warning("%s could not be scrubbed to its end: %s", log.topic_partition, error)
        self.scrubbing = None
        self.passes += 1
        self.last_pass_ms = self._clock.wall_ms()

    async def _scrub_log(self, log: UnifiedLog) -> None:
        disk = log.directory.disk
        dir = log.dir
        await self._examine(log, None, examine_topic_id(disk, dir, log.known_topic_id))
        await self._examine(log, None, examine_leader_epochs(disk, dir, log.written_leader_epochs))
        segments = log.segments
        for number, segment in enumerate(segments):
            is_closed = number + 1 < len(segments)
            if log.is_closed or segment not in log.segments:
                continue
            # Both of this turn: the active segment grows.
            size = segment.size
            end = segments[number + 1].base_offset if is_closed else log.log_end_offset
            epochs = log.epoch_spans
            examined = examine_segment(disk, segment, size, end, epochs, is_closed=is_closed)
            await self._examine(log, segment, examined)
            if is_closed:
                await self._examine(log, segment, examine_transaction_index(disk, segment))
        offsets = await self._pool.run(lambda: log.snapshot_offsets)
        await self._examine(log, None, examine_snapshots(disk, dir, offsets))

    async def _examine(
        self, log: UnifiedLog, segment: LogSegment | None, examined: Iterator[Examined]
    ) -> None:
        truncations = log.local_log.truncation_count
        is_last = False
        while not is_last:
            try:
                size, findings, busy_ns, is_last = await self._pool.run(self._take_slice, examined)
            except FileNotFoundError:
                return  # retention, the cleaner or a move took it
            self.bytes_read += size
            self.pass_done_bytes += size
            for finding in findings:
                if (
                    log.is_closed
                    or log.local_log.truncation_count != truncations
                    or (segment is not None and segment not in log.segments)
                ):
                    return
                await self._on_found(log, segment, finding)
            await asyncio.sleep(max(self._throttle.delay_after(size), busy_ns / 1e9 * (1 / _SHARE - 1)))

    def _take_slice(self, examined: Iterator[Examined]) -> _Slice:
        """Examine some bytes, in any thread."""
        began_ns = self._clock.monotonic_ns()
        size = 0
        findings: list[RottenFile] = []
        is_last = True
        for each in examined:
            if isinstance(each, RottenFile):
                findings.append(each)
            else:
                size += each
            if size >= _SLICE_BYTES or self._clock.monotonic_ns() - began_ns >= _SLICE_NS:
                is_last = False
                break
        return _Slice(size, findings, self._clock.monotonic_ns() - began_ns, is_last)

    async def _on_found(self, log: UnifiedLog, segment: LogSegment | None, finding: RottenFile) -> None:
        tp = log.topic_partition
        self.found[finding.kind] += 1
        _log.error("%s has rotted: %s", finding.path, finding.detail)
        try:
            is_mended = await self._mend(log, segment, finding)
        except (KafkaError, OSError) as error:
            _log.error("%s could not be mended: %s", finding.path, error)
            is_mended = False
        if is_mended:
            self.mended[finding.kind] += 1
        self.findings.append(ScrubFinding(self._clock.wall_ms(), tp, finding, is_mended))

    async def _mend(self, log: UnifiedLog, segment: LogSegment | None, finding: RottenFile) -> bool:
        match finding.kind:
            case kind if kind == SEGMENT:
                assert finding.stretch is not None
                damage = CorruptBatch(finding.path, finding.stretch.position, finding.detail)
                log.directory.report_damage(log.dir, damage)
                return False
            case kind if kind in (OFFSET_INDEX, TIMESTAMP_INDEX):
                assert segment is not None
                await self._pool.run(segment.rebuild_indexes_aside)
                if segment not in log.segments or segment is log.active_segment or log.is_truncating:
                    return False
                segment.install_rebuilt_indexes()
            case kind if kind == TRANSACTION_INDEX:
                assert segment is not None
                log.repair_transaction_index(segment)
            case kind if kind == PRODUCER_SNAPSHOT:
                return await self._pool.run(log.repair_producer_snapshot, finding.path)
            case kind if kind == LEADER_EPOCHS:
                log.repair_leader_epochs()
                await self._flush(log)
            case kind if kind == TOPIC_ID:
                await self._pool.run(log.repair_topic_id)
        return True
