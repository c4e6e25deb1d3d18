"""Logs and the disk: flushes, cold reads, retention, the cleaner, directories, file handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.log.log_manager import LogManager
from ottla.log.scrub.examination import KINDS
from ottla.node.metrics.slow_calls import SlowCall
from ottla.runtime.disk import DiskUsage
from ottla.runtime.metrics import Histogram, MetricKind, MetricsText, number_text, quantile
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.log.cleaner.cleaner import LogCleaner
    from ottla.log.scrub.scrubber import LogScrubber

_FLUSHES: Final = "kafka_log_logflushstats_logflushrateandtimems"
_QUANTILES: Final = (0.5, 0.99)
_DIRECTORY: Final = ("directory",)


class LogCollector:
    def __init__(
        self,
        logs: LogManager,
        runtime: Runtime,
        cleaner: Callable[[], LogCleaner | None],
        scrubber: Callable[[], LogScrubber | None],
    ) -> None:
        self._logs: Final = logs
        self._cleaner: Final = cleaner
        self._scrubber: Final = scrubber
        self._runtime: Final = runtime
        self._usages: Final[dict[str, SlowCall]] = {}

    async def collect(self, text: MetricsText, turns: Turns) -> None:
        logs = self._logs
        statistics = logs.statistics
        _write_flushes(text, statistics.flushes)
        text.histogram("ottla_log_flush_seconds", "Time of flushes, in their thread", "", statistics.flushes)
        text.histogram(
            "ottla_log_cold_read_seconds",
            "Time that fetches waited for records that were not in memory",
            "",
            statistics.cold_reads,
        )
        text.counter(
            "ottla_log_deleted_segments_total", "Segments that retention removed", statistics.deleted_segments
        )
        text.gauge("ottla_log_files_open", "Files of logs that are open", len(logs.handles))
        text.gauge(
            "ottla_log_files_capacity",
            "Files of logs that may be open at once, and those that may besides, until they are synced",
            [(("any",), logs.handles.capacity), (("unsynced",), logs.handles.unsynced_capacity)],
            ("kind",),
        )
        _write_cleaner(text, self._cleaner())
        _write_scrubber(text, self._scrubber())
        await self._write_directories(text, turns)

    async def _write_directories(self, text: MetricsText, turns: Turns) -> None:
        directories = self._logs.directories
        text.gauge(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Log directories that have failed",
            sum(not each.is_online for each in directories),
        )
        text.gauge(
            "kafka_log_logmanager_logdirectoryoffline",
            "1 if the log directory has failed",
            [((each.path,), int(not each.is_online)) for each in directories],
            ("logDirectory",),
        )
        text.gauge(
            "ottla_log_directory_lacks_room",
            "1 if something was not written lately for lack of room",
            [((each.path,), int(each.lacks_room)) for each in directories],
            _DIRECTORY,
        )
        text.gauge(
            "ottla_log_damaged_partitions", "Partitions whose logs are damaged", len(self._logs.failed)
        )
        usages = [
            (each.path, usage)
            for each in directories
            if each.is_online and (usage := await self._usage(each.path)) is not None
        ]
        turns.begin()
        text.gauge(
            "ottla_log_directory_free_bytes",
            "Bytes that the file system of the directory has left for this process",
            [((path,), usage.free_bytes) for path, usage in usages],
            _DIRECTORY,
        )
        text.gauge(
            "ottla_log_directory_total_bytes",
            "Bytes of the file system of the directory",
            [((path,), usage.total_bytes) for path, usage in usages],
            _DIRECTORY,
        )

    async def _usage(self, path: str) -> DiskUsage | None:
        """The room in a file system; None if that cannot be found out in time."""
        runtime = self._runtime
        call = self._usages.setdefault(path, SlowCall(runtime.pool, runtime.clock))
        return await call.run(runtime.disk.usage, path)


def _write_flushes(text: MetricsText, flushes: Histogram) -> None:
    lines = text.family(_FLUSHES, "Time of flushes, in milliseconds", MetricKind.SUMMARY)
    for share in _QUANTILES:
        value = quantile(share, flushes.bounds, flushes.counts) / 1e6
        lines.append(f'{_FLUSHES}{{quantile="{share}"}} {number_text(value)}')
    lines.append(f"{_FLUSHES}_sum {number_text(flushes.sum / 1e6)}")
    lines.append(f"{_FLUSHES}_count {flushes.count}")


def _write_cleaner(text: MetricsText, cleaner: LogCleaner | None) -> None:
    if cleaner is None:
        return
    text.gauge(
        "kafka_log_logcleanermanager_max_dirty_percent",
        "The dirty part of the dirtiest log, in percent",
        100 * cleaner.max_dirty_ratio,
    )
    text.gauge(
        "kafka_log_logcleaner_max_compaction_delay_secs",
        "By how much the log that is most overdue for cleaning is overdue",
        cleaner.max_compaction_delay_ms / 1000,
    )
    text.gauge(
        "kafka_log_logcleaner_max_clean_time_secs", "Time of the last cleaning", cleaner.last_clean_seconds
    )
    text.gauge(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Logs that cannot be cleaned and grow",
        len(cleaner.uncleanable),
    )
    text.counter("ottla_log_cleaner_cleanings_total", "Cleanings of logs", cleaner.cleanings)
    text.counter(
        "ottla_log_cleaner_bytes_total",
        "Bytes that the cleaner has read and written",
        [(("read",), cleaner.bytes_read), (("written",), cleaner.bytes_written)],
        ("direction",),
    )


def _write_scrubber(text: MetricsText, scrubber: LogScrubber | None) -> None:
    if scrubber is None:
        return
    text.counter("ottla_log_scrub_passes_total", "Passes of the scrubber over all logs", scrubber.passes)
    text.counter("ottla_log_scrub_bytes_total", "Bytes that the scrubber has read", scrubber.bytes_read)
    text.gauge(
        "ottla_log_scrub_progress",
        "The part of the logs that the pass under way has been through; 1 between two passes",
        scrubber.progress,
    )
    text.gauge(
        "ottla_log_scrub_last_pass_timestamp_seconds",
        "When the last pass of the scrubber ended; 0 if there was none",
        (scrubber.last_pass_ms or 0) / 1000,
    )
    text.counter(
        "ottla_log_scrub_findings_total",
        "Files that have rotted, by kind",
        [((kind,), scrubber.found[kind]) for kind in KINDS],
        ("kind",),
    )
    text.counter(
        "ottla_log_scrub_mended_total",
        "Of these, files that were written again; a damaged segment is fetched again with its replica",
        [((kind,), scrubber.mended[kind]) for kind in KINDS],
        ("kind",),
    )
