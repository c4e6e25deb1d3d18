"""Repair a damaged log where no other replica has its records: end it before the damage.

`find_damage` reads every batch of a partition, changes nothing, and says what would be lost. `repair` keeps a
copy of everything that it removes in a directory beside the log, lowers the recovery point to the new end,
and then has the loader truncate. It may be interrupted at any point: until the copy has its report, which is
written last, the log is as it was; and once the recovery point is lowered, any start, and any later repair,
takes what is behind it for the tail of a crash and completes the truncation. For a node that is stopped: the
caller holds the lock of the directory.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from ottla.log.config.log_config import LogConfig
from ottla.log.directory import checkpoints
from ottla.log.directory.dir_names import DirKind, dir_name, moved_dir_name, parse_dir_name
from ottla.log.directory.directory import LogDirectory
from ottla.log.leader_epoch_cache import LEADER_EPOCH_CHECKPOINT, read_leader_epochs
from ottla.log.log_loader import CorruptionPolicy, LoadOptions, RecoveryTerms, load_log
from ottla.log.recovery.damage_report import find_whole_batches
from ottla.log.segment.file_names import LOG, parse_segment_file
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.walk import CorruptBatch
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import CLUSTER_METADATA_TOPIC, TopicPartition
from ottla.runtime.disk import Disk, remove_tree

_COPY_BYTES = 4 * 1024 * 1024
_CONFIG = LogConfig()


class Damage(NamedTuple):
    """The first damage in a log, and what is lost if the log ends before it."""

    partition: TopicPartition
    path: str
    position: int
    reason: str
    end_offset: int
    """The log would end here."""
    last_offset: int
    """The last offset that is known to have been in the log."""
    lost_bytes: int
    whole_batches: int
    """Batches behind the damage that are not damaged themselves."""
    first_timestamp: int | None
    last_timestamp: int | None
    files: tuple[str, ...]
    """The segments that would be truncated or removed, by name."""


def damaged_partitions(directory: LogDirectory) -> list[TopicPartition]:
    """The partitions whose logs were refused, by the reports in their directories."""
    found = []
    for name in directory.disk.list_dir(directory.path):
        path = posixpath.join(directory.path, name)
        if "-" in name and directory.disk.exists(posixpath.join(path, checkpoints.DAMAGE_REPORT)):
            try:
                partition, kind = parse_dir_name(name)
            except KafkaError:
                continue
            if kind is DirKind.CURRENT:
                found.append(partition)
    return found


def find_damage(directory: LogDirectory, partition: TopicPartition) -> Damage | None:
    """Check every batch of a partition; None if all are sound. Changes nothing."""
    dir = posixpath.join(directory.path, dir_name(partition))
    parsed = [parse_segment_file(name) for name in directory.disk.list_dir(dir)]
    bases = sorted(
        file.offset for file in parsed if file is not None and file.kind == LOG and not file.suffix
    )
    segments = [LogSegment(directory.handles, dir, base, _CONFIG) for base in bases]
    try:
        return _find_damage(directory, partition, segments)
    finally:
        for segment in segments:
            segment.close_handlers()


def _find_damage(
    directory: LogDirectory, partition: TopicPartition, segments: list[LogSegment]
) -> Damage | None:
    log_start = directory.log_start(partition) or 0
    recovery_point = directory.recovery_point(partition) or 0
    while len(segments) > 1 and segments[1].base_offset <= log_start:
        segments.pop(0)
    if not segments:
        if recovery_point <= log_start:
            return None
        dir = posixpath.join(directory.path, dir_name(partition))
        return _damage(partition, dir, 0, "it has no segment", log_start, recovery_point, [])
    first = segments[0]
    known_start = directory.log_start(partition)
    if (
        known_start is not None
        and max(known_start, 0) < first.base_offset <= recovery_point
        and not checkpoints.is_marked_tiered_log(directory.disk, first.dir)
    ):
        reason = "the records before this segment are missing"
        return _damage(partition, first.path(LOG), 0, reason, known_start, recovery_point, segments)
    end_offset = first.base_offset
    terms = RecoveryTerms(
        read_leader_epochs(directory.disk, first.dir, ()),
        end_offset,
        log_start=log_start,
        recovery_point=recovery_point,
    )
    for number, segment in enumerate(segments):
        try:
            if segment.base_offset < end_offset:
                raise CorruptBatch(segment.path(LOG), 0, f"the segment before it ends at {end_offset}")
            end_offset = segment.base_offset
            for stretch in terms.stretches(segment, segments[number + 1 :], mend=False):
                if stretch.reason is not None:
                    raise CorruptBatch(segment.path(LOG), stretch.position, stretch.reason)
                end_offset = stretch.next_offset
        except CorruptBatch as error:
            return _damage(
                partition,
                error.path,
                error.position,
                error.reason,
                end_offset,
                recovery_point,
                segments[number:],
            )
    if end_offset < recovery_point and end_offset >= log_start:
        last = segments[-1]
        reason = f"the log ends at offset {end_offset}, but it was synced up to {recovery_point}"
        return _damage(partition, last.path(LOG), last.size, reason, end_offset, recovery_point, [])
    if end_offset < log_start:
        reason = f"the log ends at offset {end_offset}, below its start {log_start}"
        return _damage(partition, first.path(LOG), 0, reason, log_start, recovery_point, segments)
    return None


def _damage(
    partition: TopicPartition,
    path: str,
    position: int,
    reason: str,
    end_offset: int,
    recovery_point: int,
    segments: list[LogSegment],
) -> Damage:
    lost_bytes = batches = 0
    last_offset = max(recovery_point - 1, end_offset - 1)
    times: list[int] = []
    for number, segment in enumerate(segments):
        begin = position if number == 0 else 0
        lost_bytes += segment.size - begin
        found = find_whole_batches(segment, begin)
        if found is not None:
            batches += found.batches
            last_offset = max(last_offset, found.last_offset)
            times += [found.first_timestamp, found.last_timestamp]
    return Damage(
        partition,
        path,
        position,
        reason,
        end_offset,
        last_offset,
        lost_bytes,
        batches,
        min(times, default=None),
        max(times, default=None),
        tuple(posixpath.basename(segment.path(LOG)) for segment in segments),
    )


def repair(directory: LogDirectory, damage: Damage) -> str | None:
    """End a log before its damage, durably; return the directory with a copy of what was removed, None if
    nothing was there to keep. OSError where the disk fails; then nothing is lost, and it can be run again.
    """
    partition = damage.partition
    assert partition.topic != CLUSTER_METADATA_TOPIC, "the quorum repairs the metadata log"
    dir = posixpath.join(directory.path, dir_name(partition))
    report = f"{damage.path}, position {damage.position}: {damage.reason}"
    copy = _keep_copy(directory, damage, dir, report) if damage.files else None
    # The loader checks all batches of a log with a report.
    checkpoints.write_damage_report(directory.disk, dir, report)
    directory.lower_recovery_points({partition: damage.end_offset})
    _load_and_close(directory, partition, CorruptionPolicy.TRUNCATE)
    return copy


def clear_report(directory: LogDirectory, partition: TopicPartition) -> None:
    """Have the loader check a log that is not damaged any more, and remove its report. KafkaError if it finds
    damage.
    """
    _load_and_close(directory, partition, CorruptionPolicy.REFUSE)


def _load_and_close(directory: LogDirectory, partition: TopicPartition, policy: CorruptionPolicy) -> None:
    options = LoadOptions(clean=False, corruption_policy=policy)
    log = load_log(directory, dir_name(partition), partition, _CONFIG, options)
    log.close()
    directory.raise_recovery_points({partition: log.recovery_point})
    if log.log_start_offset > (directory.log_start(partition) or 0):
        directory.set_log_starts({partition: log.log_start_offset})


def _keep_copy(directory: LogDirectory, damage: Damage, dir: str, report: str) -> str:
    """Copy the files that are to change into a directory beside the log; use a complete copy of an earlier,
    interrupted repair again.
    """
    disk = directory.disk
    new = posixpath.join(
        directory.path, moved_dir_name(damage.partition, DirKind.DAMAGED, directory.random.uuid())
    )
    for name in disk.list_dir(directory.path):
        path = posixpath.join(directory.path, name)
        if name.endswith(DirKind.DAMAGED.value) and _is_same_partition(name, posixpath.basename(new)):
            found = checkpoints.read_damage_report(disk, path)
            if found is None:
                remove_tree(disk, path)  # a copy that was interrupted
            elif found == report and all(_same_size(disk, file, dir, path) for file in damage.files):
                return path
    disk.make_dirs(new)
    others = (checkpoints.PARTITION_METADATA, LEADER_EPOCH_CHECKPOINT)
    for file in (*damage.files, *(each for each in others if disk.exists(posixpath.join(dir, each)))):
        _copy(disk, posixpath.join(dir, file), posixpath.join(new, file))
    disk.sync_dir(new)
    disk.sync_dir(directory.path)
    checkpoints.write_damage_report(disk, new, report)
    return new


def _is_same_partition(name: str, other: str) -> bool:
    try:
        return parse_dir_name(name)[0] == parse_dir_name(other)[0]
    except KafkaError:
        return False


def _same_size(disk: Disk, file: str, dir: str, copy: str) -> bool:
    path = posixpath.join(copy, file)
    return disk.exists(path) and disk.size(path) == disk.size(posixpath.join(dir, file))


def _copy(disk: Disk, src: str, dst: str) -> None:
    source = disk.open(src, writable=False)
    try:
        target = disk.open(dst, create=True)
        try:
            position, size = 0, source.size()
            while position < size:
                data = source.pread(min(_COPY_BYTES, size - position), position)
                target.pwrite(data, position)
                position += len(data)
            target.sync()
        finally:
            target.close()
    finally:
        source.close()
