"""Create and load a partition: after a clean shutdown by file names and checkpoints, after a crash by
batches.

After a crash, interrupted deletions and swaps are completed or undone first (`interrupted_operations`). Then
the segments from the recovery point on are recovered: every batch is checked, the indexes, the transaction
index, the leader epochs and the producer state are rebuilt, and the log is truncated before the first batch
that is not whole, such as a torn tail.

Below the recovery point everything was synced. Damage there was not caused by a crash, and truncating the log
would throw away records that were promised to be safe: such a log is refused with `CorruptLog`, which says
where it is damaged and what to do, unless the policy says to truncate. Damage above the recovery point ends
the log; where good batches follow it, that is reported as an error with their number and place, as records
that had not been synced are lost.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import NamedTuple

from ottla.log.config.log_config import LogConfig
from ottla.log.directory import checkpoints
from ottla.log.directory.contents import PartitionDir
from ottla.log.directory.directory import LogDirectory
from ottla.log.leader_epoch_cache import LeaderEpochCache, read_leader_epochs
from ottla.log.local_log import LocalLog
from ottla.log.producers.snapshot import ProducerSnapshots
from ottla.log.producers.state_manager import (
    DEFAULT_PRODUCER_STATE_CONFIG,
    ProducerStateManager,
    ProducerStateManagerConfig,
    batches_between,
    end_txn_marker,
)
from ottla.log.recovery.damage_report import find_whole_batches
from ottla.log.recovery.interrupted_operations import complete_interrupted_operations
from ottla.log.segment.file_names import INDEX, LOG, SEGMENT_KINDS, TIME_INDEX, segment_file_name
from ottla.log.segment.offset_index import MAX_RELATIVE_OFFSET
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.soundness import Stretch
from ottla.log.segment.walk import CorruptBatch, CorruptLog, walk_headers
from ottla.log.unified_log import MAX_OFFSET, UnifiedLog
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.types import NO_LEADER_EPOCH
from ottla.runtime.disk import Disk, is_out_of_space

_log = logging.getLogger(__name__)

_REPAIR = "run `ottla storage repair`, which shows what would be lost and ends the log before the damage"

_ANY_EPOCH = (1 << 31) - 1
_MIN_PREALLOCATED_BYTES = 4096
"""Smaller indexes look like our own after a crash, which may leave zeros in them too."""


class CorruptionPolicy(Enum):
    """What to do with a log that is damaged below its recovery point."""

    REFUSE = "refuse"
    """Leave it as it is and do not serve it."""
    TRUNCATE = "truncate"
    """End it before the damage, as Apache Kafka does."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Settings of a load that are the same for all partitions of a directory."""

    clean: bool
    """True after a clean shutdown of the directory."""
    producer_config: ProducerStateManagerConfig = DEFAULT_PRODUCER_STATE_CONFIG
    corruption_policy: CorruptionPolicy = CorruptionPolicy.REFUSE


def create_log(
    directory: LogDirectory,
    name: str,
    partition: TopicPartition,
    config: LogConfig,
    *,
    topic_id: bytes | None = None,
    producer_config: ProducerStateManagerConfig = DEFAULT_PRODUCER_STATE_CONFIG,
) -> UnifiedLog:
    """Create the directory of a new partition, with an empty segment at offset 0. Once its creation is
    durable (`LogCreation`), a log that does not begin with this segment has had it removed on purpose.
    """
    directory.check_online()
    dir = posixpath.join(directory.path, name)
    try:
        if directory.knows(partition):
            directory.forget([partition])
        directory.disk.make_dirs(dir)
        segment = LogSegment.create(directory.handles, dir, 0, config, created_ms=directory.clock.wall_ms())
    except OSError as error:
        _remove_unfinished(directory.disk, dir)
        raise directory.io_error(f"creating {dir}", error) from error
    local = LocalLog(directory, dir, partition, config, [segment], 0, 0, names_synced=False)
    return UnifiedLog(
        local,
        0,
        producer_config,
        producer_state=ProducerStateManager(str(partition), producer_config),
        leader_epochs=LeaderEpochCache(),
        creation_durable=False,
        topic_id=topic_id,
    )


def _remove_unfinished(disk: Disk, dir: str) -> None:
    """Remove what a failed creation has left, as far as the disk allows: the partition may be created in
    another directory next. Files with content are not from it, and stay.
    """
    with suppress(OSError):
        for name in disk.list_dir(dir):
            if not disk.size(path := posixpath.join(dir, name)):
                disk.unlink(path)
        disk.remove_dir(dir)


def load_log(
    directory: LogDirectory, name: str, partition: TopicPartition, config: LogConfig, options: LoadOptions
) -> UnifiedLog:
    """Open the partition in the directory `name`. OSError where the disk fails, CorruptLog where synced
    records are damaged.
    """
    return LogLoader(directory, name, partition, config, options).load()


class LoadedPartition(NamedTuple):
    """A partition that was opened, or why it was not."""

    dir: PartitionDir
    result: UnifiedLog | KafkaError | OSError
    is_reported: bool = False
    """True if the partition's directory has a report of the damage, so that no load overlooks it."""


def load_part(
    directory: LogDirectory, part: Iterable[tuple[PartitionDir, LogConfig]], options: LoadOptions
) -> list[LoadedPartition]:
    loaded = []
    for dir, config in part:
        result: UnifiedLog | KafkaError | OSError
        try:
            result = load_log(directory, dir.name, dir.partition, config, options)
        except (KafkaError, OSError) as error:
            result = error
        reported = isinstance(result, KafkaError) and report_damage(
            directory, posixpath.join(directory.path, dir.name), result
        )
        loaded.append(LoadedPartition(dir, result, reported))
    return loaded


def report_damage(directory: LogDirectory, dir: str, error: KafkaError) -> bool:
    """Write the report of a damaged log into its directory; whether that could be done."""
    try:
        checkpoints.write_damage_report(directory.disk, dir, error.message)
    except OSError as failure:
        _log.error("the damage of %s could not be noted: %s", dir, failure)
        return False
    return True


class LogLoader:
    def __init__(
        self,
        directory: LogDirectory,
        name: str,
        partition: TopicPartition,
        config: LogConfig,
        options: LoadOptions,
    ) -> None:
        self.directory = directory
        self.disk = directory.disk
        self.dir = posixpath.join(directory.path, name)
        self.partition = partition
        self.config = config
        self.options = options
        self.start_is_known = directory.log_start(partition) is not None
        self.log_start = directory.log_start(partition) or 0
        checkpointed = directory.recovery_point(partition)
        self.end_is_known = options.clean and checkpointed is not None
        self.recovery_point = checkpointed or 0
        # True for a log that was found damaged before: every batch is checked, not only the last ones.
        self.checks_all = False
        # True for a log that Apache Kafka has left in a crash; its files follow other rules.
        self.made_by_kafka = False
        # Where the log would end without its last batch, if there is a gap before that one.
        self.doubtful_from: int | None = None

    def load(self) -> UnifiedLog:
        try:
            return self._load()
        except CorruptBatch as error:
            raise CorruptLog(f"{error.message}. {self._advice()}") from error

    def _load(self) -> UnifiedLog:
        bases, self.checks_all = complete_interrupted_operations(
            self.directory.handles, self.dir, self.config
        )
        segments = [self._segment(base) for base in bases]
        if self.checks_all:
            log = self._recover_log(segments)
            # Not earlier: a load that is interrupted has to check everything again.
            self.disk.unlink(posixpath.join(self.dir, checkpoints.DAMAGE_REPORT))
            return log
        if not self.options.clean:
            return self._recover_log(segments)
        if segments and self.end_is_known:
            end_offset = self.recovery_point
            if self.log_start > end_offset:
                self._check_start(end_offset)
            known = self.log_start <= end_offset and segments[-1].base_offset <= end_offset
        else:
            try:
                end_offset, known = segments[-1].read_next_offset() if segments else 0, False
            except CorruptBatch:
                return self._recover_log(segments)
        if not segments or end_offset < max(self.log_start, segments[-1].base_offset):
            # The checkpoints and the files contradict each other, so the shutdown was not clean.
            return self._recover_log(segments)
        return self._log(segments, end_offset, end_offset, end_verified=not known, names_synced=True)

    def _check_start(self, end_offset: int) -> None:
        """Refuse a log start offset beyond the end of the log, unless the policy is to truncate: one wrong
        number in a checkpoint must not cost a whole log.
        """
        message = (
            f"{self.dir} ended at offset {end_offset} at its clean shutdown, but {checkpoints.LOG_STARTS} "
            f"says that everything below {self.log_start} was deleted"
        )
        if self.options.corruption_policy is CorruptionPolicy.REFUSE:
            raise CorruptLog(
                f"{message}. The files are left as they are. Correct the line, or remove it to have all "
                f"records that are in the files, or go on at {self.log_start} without them: {_REPAIR}"
            )
        _log.error("%s; the log begins there, as the corruption policy says", message)

    def _advice(self) -> str:
        return (
            "The files are left as they are. Where another replica leads the partition, they are set aside "
            "and the log is fetched from it. If there is none, restore the file, or stop the node and "
            f"{_REPAIR}"
        )

    def _segment(self, base_offset: int) -> LogSegment:
        return LogSegment(
            self.directory.handles,
            self.dir,
            base_offset,
            self.config,
            created_ms=self.directory.clock.wall_ms(),
        )

    def _log(
        self,
        segments: list[LogSegment],
        end_offset: int,
        recovery_point: int,
        *,
        end_verified: bool,
        names_synced: bool,
        epochs: LeaderEpochCache | None = None,
        producers: ProducerStateManager | None = None,
        snapshots: ProducerSnapshots | None = None,
        lacks_producers: bool = False,
    ) -> UnifiedLog:
        local = LocalLog(
            self.directory,
            self.dir,
            self.partition,
            self.config,
            segments,
            end_offset,
            recovery_point,
            names_synced=names_synced,
        )
        return UnifiedLog(
            local,
            self._start_above(segments[0]),
            self.options.producer_config,
            producer_state=producers,
            snapshots=snapshots,
            lacks_producers=lacks_producers,
            leader_epochs=epochs,
            end_verified=end_verified,
            doubtful_from=self.doubtful_from,
        )

    @property
    def _is_tiered(self) -> bool:
        return self.config.is_remote or checkpoints.is_marked_tiered_log(self.disk, self.dir)

    def _start_above(self, first: LogSegment) -> int:
        """The log start of a log with this first segment: below it where remote storage has the rest. That
        start is durable before the first segment leaves the disk. Where the checkpoint is lost, the first
        leader epoch tells: what lies below the log start is deleted from remote storage.
        """
        if self.config.is_remote and not self.start_is_known:
            earliest = read_leader_epochs(self.disk, self.dir, ()).earliest
            return first.base_offset if earliest is None else min(earliest.start_offset, first.base_offset)
        if self.start_is_known and self.log_start < first.base_offset and self._is_tiered:
            return self.log_start
        return max(self.log_start, first.base_offset)

    # After a crash

    def _recover_log(self, segments: list[LogSegment]) -> UnifiedLog:
        while len(segments) > 1 and segments[1].base_offset <= self.log_start:
            # Below the log start there are no readers, and nothing keeps the segments sound.
            self._remove(segments.pop(0))
        made_by_kafka = bool(segments) and self._has_preallocated_indexes(segments[-1])
        self.made_by_kafka = made_by_kafka
        if (
            segments
            and self.start_is_known
            and segments[0].base_offset > self.log_start
            and not made_by_kafka
            # Turned off or not, remote storage has the records below.
            and not self._is_tiered
        ):
            # The log start is durable before the segments below it go, so what lies above it was lost.
            self._check_loss(
                segments[0].path(LOG), 0, self.log_start, "the records before this segment are missing"
            )
            self._discard(segments, 0, self.log_start)
        if not segments:
            self._check_loss(self.dir, 0, self.log_start, "it has no segment")
        first = self._first_to_scan(segments)
        epochs = read_leader_epochs(self.disk, self.dir, segments[:first])
        first_offset = segments[first].base_offset if segments else 0
        terms = RecoveryTerms(
            epochs,
            first_offset,
            log_start=self.log_start,
            # Kafka's followers have gaps, and what a crash has left of its epochs is not exact.
            recovery_point=0 if made_by_kafka else self.recovery_point,
        )
        snapshots = ProducerSnapshots(self.disk, self.dir)
        snapshots.remove_stray(segment.base_offset for segment in segments)
        snapshots.doubt_from(self.recovery_point)
        producers = ProducerStateManager(str(self.partition), self.options.producer_config)
        lacks_producers = False
        if segments:
            self._reload(producers, snapshots, segments, first_offset)
            starts_below = self._start_above(segments[0]) < segments[0].base_offset
            lacks_producers = starts_below and snapshots.latest is None
        end_offset = first_offset
        for number in range(first, len(segments)):
            segment = segments[number]
            gap = number > first and segment.base_offset != end_offset
            if gap and not self._is_plausible_gap(segments[number - 1], segment, end_offset, made_by_kafka):
                self._check_loss(
                    segments[number - 1].path(LOG),
                    segments[number - 1].size,
                    end_offset,
                    f"the records from {end_offset} to {segment.base_offset} are missing",
                )
                self._discard(segments, number, end_offset)
                break
            if number > first and not lacks_producers:
                producers.map_end_offset = segment.base_offset
                self._take_snapshot(producers, snapshots)
            later = segments[number + 1 :]
            end_offset, complete = self._recover_segment(segment, later, epochs, terms, producers)
            if not complete:
                self._discard(segments, number + 1, end_offset)
                break
        if end_offset < self.recovery_point and end_offset >= self.log_start and segments:
            self._check_loss(
                segments[-1].path(LOG),
                segments[-1].size,
                end_offset,
                f"the log ends at offset {end_offset}, but it was synced up to {self.recovery_point}",
            )
        if not segments or end_offset < self.log_start:
            end_offset = self._start_empty(segments, snapshots, producers)
            epochs.clear()
            lacks_producers = False
        epochs.fit(self._start_above(segments[0]), end_offset)
        snapshots.delete_outside(self.log_start, end_offset)
        producers.map_end_offset = end_offset
        self.disk.sync_dir(self.dir)
        log = self._log(
            segments,
            end_offset,
            min(self.recovery_point, end_offset),
            end_verified=True,
            names_synced=True,
            epochs=epochs,
            producers=producers,
            snapshots=snapshots,
            lacks_producers=lacks_producers,
        )
        _log.info("%r was recovered from offset %d on", log, self.recovery_point)
        if log.is_flush_due:
            # No other flush comes before the next append, and until then the readers would wait.
            log.flush()
        return log

    def _take_snapshot(self, producers: ProducerStateManager, snapshots: ProducerSnapshots) -> None:
        """Write a snapshot, which the next flush syncs; below the recovery point none would."""
        try:
            producers.take_snapshot(snapshots, sync=producers.map_end_offset <= self.recovery_point)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            _log.warning("no room for a producer snapshot, the next start reads the log instead: %s", error)

    def _first_to_scan(self, segments: list[LogSegment]) -> int:
        scan_from = self.log_start if self.checks_all else max(self.recovery_point, self.log_start)
        first = 0
        for number, segment in enumerate(segments):
            if segment.base_offset <= scan_from:
                first = number
        return first

    def _reload(
        self,
        producers: ProducerStateManager,
        snapshots: ProducerSnapshots,
        segments: list[LogSegment],
        end_offset: int,
    ) -> None:
        """The producer state as of the first segment to be scanned."""
        producers.truncate_and_reload(
            snapshots, min(self.log_start, end_offset), end_offset, self.directory.clock.wall_ms()
        )
        for batch in batches_between(segments, producers.map_end_offset, end_offset):
            producers.replay([batch])
        producers.map_end_offset = end_offset

    def _recover_segment(
        self,
        segment: LogSegment,
        later: Sequence[LogSegment],
        epochs: LeaderEpochCache,
        terms: RecoveryTerms,
        producers: ProducerStateManager,
    ) -> tuple[int, bool]:
        """Check every batch, rebuild what follows from them and truncate a torn tail; return the offset after
        the last good batch, and whether the file ended with it. `later` are the segments behind it.
        """
        segment.start_rebuild()
        aborted = []
        end_offset = segment.base_offset
        end_position = 0
        damage: CorruptBatch | None = None
        for stretch in terms.stretches(segment, later, mend=True):
            if stretch.reason is not None:
                damage = CorruptBatch(segment.path(LOG), stretch.position, stretch.reason)
                break
            for position, header in walk_headers(segment.open_file(), stretch.end, stretch.position):
                segment.rebuild_from(position, header)
                epochs.reconcile(header.leader_epoch, header.base_offset)
                terms.last_epoch = max(terms.last_epoch, header.leader_epoch)
                is_gap = header.base_offset > max(end_offset, self.log_start)
                self.doubtful_from = end_offset if is_gap and end_offset >= self.recovery_point else None
                if header.last_offset >= self.log_start:
                    marker = None
                    if header.is_control:
                        marker = end_txn_marker(segment.read(position, header.size), 0, header)
                    aborted.extend(producers.replay([(header, marker)]))
                end_offset = header.next_offset
                end_position = position + header.size
        segment.end_rebuild()
        segment.txn_index.reset(aborted)
        if self.checks_all and end_offset <= self.recovery_point:
            # No flush visits a segment below the recovery point any more, nor does the next recovery.
            segment.indexes.sync()
            segment.txn_index.flush()
        if damage is not None:
            self._report(segment, damage, end_offset)
            segment.set_size(end_position)
        return end_offset, damage is None

    def _report(self, segment: LogSegment, damage: CorruptBatch, end_offset: int) -> None:
        """Report what is lost with the bytes behind the last good batch, or refuse to lose it."""
        self._check_loss(damage.path, damage.position, end_offset, damage.reason)
        found = find_whole_batches(segment, damage.position)
        if found is None:
            _log.warning("%s; the log ends at offset %d", damage, end_offset)
            return
        _log.error(
            "%s; the log ends at offset %d. %d whole batches behind it, with offsets from %d to %d, were not "
            "synced before the crash and are lost with it",
            damage,
            end_offset,
            *found[:3],
        )

    def _check_loss(self, path: str, position: int, end_offset: int, reason: str) -> None:
        if max(end_offset, self.log_start) >= self.recovery_point:
            return
        message = (
            f"{path} is damaged at position {position}, after offset {end_offset - 1}: {reason}. Everything "
            f"up to offset {self.recovery_point} had been synced, so a crash does not explain it"
        )
        if self.options.corruption_policy is CorruptionPolicy.TRUNCATE:
            _log.error("%s; the log is truncated, as the corruption policy says", message)
            self.recovery_point = end_offset
            return
        raise CorruptLog(f"{message}. {self._advice()}")

    def _is_plausible_gap(
        self, before: LogSegment, segment: LogSegment, end_offset: int, made_by_kafka: bool
    ) -> bool:
        """True unless a gap means lost bytes. A new segment starts where the log ends, unless the offsets
        would not have fitted, compaction has made it below the recovery point, or Apache Kafka has written
        the log, which starts a segment at its first record.
        """
        if segment.base_offset < end_offset:
            return False
        overflow = segment.base_offset - before.base_offset > MAX_RELATIVE_OFFSET + 1
        return overflow or made_by_kafka or segment.base_offset <= self.recovery_point

    def _has_preallocated_indexes(self, segment: LogSegment) -> bool:
        """True if both indexes of the active segment have the full size and zeros at the end, as only Apache
        Kafka leaves them.
        """
        full = max(self.config.segment_index_bytes, _MIN_PREALLOCATED_BYTES)
        for kind, width in ((INDEX, 8), (TIME_INDEX, 12)):
            path = posixpath.join(self.dir, segment_file_name(segment.base_offset, kind))
            if not self.disk.exists(path):
                return False
            file = self.disk.open(path, writable=False)
            try:
                size = file.size()
                if size != full - full % width or any(file.pread(width, size - width)):
                    return False
            finally:
                file.close()
        return True

    def _discard(self, segments: list[LogSegment], start: int, end_offset: int) -> None:
        """Remove the segments from `start` on, the last one first."""
        while len(segments) > start:
            segment = segments.pop()
            found = find_whole_batches(segment, 0)
            if found is not None:
                _log.error(
                    "%s: the log ends at offset %d; %d whole batches from %d to %d were not synced before "
                    "the crash and are lost with the segment",
                    segment.path(LOG),
                    end_offset,
                    *found[:3],
                )
            self._remove(segment)
            self.disk.sync_dir(self.dir)

    def _remove(self, segment: LogSegment) -> None:
        segment.close_handlers()
        for kind in SEGMENT_KINDS:
            if self.disk.exists(segment.path(kind)):
                self.disk.unlink(segment.path(kind))

    def _start_empty(
        self, segments: list[LogSegment], snapshots: ProducerSnapshots, producers: ProducerStateManager
    ) -> int:
        """Replace a log that lies wholly below its start by an empty one there."""
        if segments:
            _log.warning(
                "%s ends below its start offset %d and goes on there, empty", self.dir, self.log_start
            )
        self._discard(segments, 0, self.log_start)
        snapshots.delete_all()
        producers.truncate_fully_and_start_at(self.log_start)
        segments.append(
            LogSegment.create(
                self.directory.handles,
                self.dir,
                self.log_start,
                self.config,
                created_ms=self.directory.clock.wall_ms(),
            )
        )
        return self.log_start


class RecoveryTerms:
    """What the batches of a log that is being recovered are compared with, beside their checksums and each
    other: no checksum covers their offsets and leader epochs.

    The epochs of what lies below the recovery point are in their checkpoint, if that is whole; above it they
    do not fall. A batch ends where the recovery point is.
    """

    def __init__(
        self,
        epochs: LeaderEpochCache,
        first_offset: int,
        *,
        log_start: int,
        recovery_point: int,
    ) -> None:
        """`first_offset` is where the first segment begins that is looked at."""
        self._epochs = epochs
        self._log_start = log_start
        self._recovery_point = recovery_point
        self._known_below = recovery_point if epochs.is_sealed else first_offset
        known = epochs.epoch_for_offset(self._known_below - 1)
        # At most that of the batches that follow.
        self.last_epoch = NO_LEADER_EPOCH if known is None else known
        # At least that of the batches of the segment, by what lies behind it.
        self._greatest_epoch = _ANY_EPOCH

    def span(self, offset: int) -> tuple[int, int, int]:
        """As `EpochSpans`."""
        if offset < self._known_below:
            least, greatest, until = self._epochs.span(offset)
            return least, greatest, min(until, self._known_below)
        return self.last_epoch, max(self._greatest_epoch, self.last_epoch), MAX_OFFSET

    def stretches(self, segment: LogSegment, later: Sequence[LogSegment], *, mend: bool) -> Iterator[Stretch]:
        """The sound stretches of a segment, up to the first damage that cannot be mended, which is the last
        one. Damage that can be is mended, or without `mend` taken as if it were. `later` are the segments
        behind it.
        """
        end_offset = later[0].base_offset if later else segment.base_offset + MAX_RELATIVE_OFFSET + 1
        # Of two, as one of them may have rotted.
        self._greatest_epoch = max(islice(_epochs_of(later), 2), default=_ANY_EPOCH)
        position, least_offset = 0, segment.base_offset
        while True:
            for stretch in segment.stretches(end_offset, self, position=position, least_offset=least_offset):
                damaged = stretch if stretch.reason is not None else self._first_skip(segment, stretch)
                if damaged is None:
                    yield stretch
                    continue
                if damaged.position > stretch.position:
                    yield stretch._replace(end=damaged.position, next_offset=damaged.first_offset)
                if not later and damaged.first_offset < self._recovery_point < damaged.next_offset:
                    damaged = damaged._replace(next_offset=self._recovery_point)
                if mend and segment.mend(damaged, self, self._epochs):
                    position, least_offset = damaged.position, damaged.first_offset
                    break
                next_offset = None if mend else segment.end_once_mended(damaged, self, self._epochs)
                if next_offset is None:
                    yield damaged
                    return
                yield damaged._replace(next_offset=next_offset, reason=None)
                position, least_offset = damaged.end, next_offset
                break
            else:
                return

    def _first_skip(self, segment: LogSegment, stretch: Stretch) -> Stretch | None:
        """The first batch of a sound stretch that skips the recovery point, where the log ended once."""
        recovery_point = self._recovery_point
        if stretch.next_offset <= recovery_point:
            return None
        end_offset = stretch.first_offset
        for position, header in walk_headers(segment.open_file(), stretch.end, stretch.position):
            if max(end_offset, self._log_start) < recovery_point < header.next_offset:
                reason = f"the offsets {header.base_offset} to {header.last_offset} after {end_offset - 1}"
                return Stretch(position, position + header.size, end_offset, recovery_point, reason)
            end_offset = header.next_offset
            if end_offset >= recovery_point:
                return None
        return None


def _epochs_of(segments: Sequence[LogSegment]) -> Iterator[int]:
    """The leader epochs of batches, as far as these can be read."""
    with suppress(CorruptBatch):
        for segment in segments:
            for _, header in segment.headers():
                yield header.leader_epoch
