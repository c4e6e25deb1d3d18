"""A partition on a disk, simulated or real, and full scans of it to compare the log with."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.leader_epoch_cache import LeaderEpochCache
from ottla.log.log_loader import CorruptionPolicy, LoadOptions, create_log, load_log
from ottla.log.producers.state_manager import ProducerStateManager, ProducerStateManagerConfig, end_txn_marker
from ottla.log.segment.handles import FileHandles
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.timestamp_search import TimestampAndOffset
from ottla.log.segment.txn_index import AbortedTxn
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.names import TopicPartition
from ottla.records.batch import BatchHeader, iter_batches, read_records, verify_crc
from ottla.records.builder import build_batch
from ottla.runtime.clock import Clock
from ottla.runtime.disk import Disk
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

PARTITION = TopicPartition("orders", 3)
PATH = "/data"
PRODUCERS = ProducerStateManagerConfig(transaction_verification=False)
TOPIC_ID = bytes(range(16))


class LogHarness:
    """One log with its directory; `reload` opens what is on the disk as a new process would."""

    def __init__(
        self,
        config: LogConfig | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        path: str = PATH,
        seed: int | str = 0,
        open_files: int = 64,
        unsynced_files: int = 64,
    ) -> None:
        self.clock = clock if clock is not None else SimClock()
        self.disk: Disk = disk if disk is not None else SimDisk(seed, clock=self.clock)
        self.config = config or LogConfig()
        self.path = path
        self.open_files = open_files
        self.unsynced_files = unsynced_files
        self.disk.make_dirs(path)
        self.disk.sync_dir(posixpath.dirname(path))
        self.directory = self.open_directory()
        self.log = create_log(
            self.directory,
            str(PARTITION),
            PARTITION,
            self.config,
            topic_id=TOPIC_ID,
            producer_config=PRODUCERS,
        )
        if isinstance(self.disk, SimDisk):
            self.disk.sync_all()

    @property
    def sim_disk(self) -> SimDisk:
        assert isinstance(self.disk, SimDisk)
        return self.disk

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def open_directory(self) -> LogDirectory:
        handles = FileHandles(self.disk, self.open_files, self.unsynced_files)
        directory = LogDirectory(self.path, handles, self.clock, SeededRandom(1))
        directory.load_checkpoints()
        return directory

    def configure(self, **settings: object) -> None:
        self.config = replace(self.config, **settings)  # type: ignore[arg-type]
        self.log.update_config(self.config)

    def put(self, *values: bytes, epoch: int = 0, timestamp: int | None = None) -> int:
        """Append one batch of records without keys; its base offset."""
        at = self.now_ms if timestamp is None else timestamp
        batch = build_batch([(at, None, value) for value in values])
        return self.log.append_as_leader(bytearray(batch), epoch, now_ms=self.now_ms).first_offset

    def fill(self, batches: int, *, size: int = 100, epoch: int = 0) -> None:
        for number in range(batches):
            self.put(b"%d" % number + b"x" * size, epoch=epoch)

    def checkpoint(self) -> None:
        self.directory.write_recovery_points({PARTITION: self.log.recovery_point})

    def close(self) -> None:
        """Shut down cleanly."""
        self.log.close()
        self.checkpoint()
        self.directory.write_log_starts({PARTITION: self.log.log_start_offset})

    def reload(
        self,
        *,
        clean: bool = False,
        policy: CorruptionPolicy = CorruptionPolicy.REFUSE,
        high_watermark: int | None = None,
    ) -> UnifiedLog:
        self.directory = self.open_directory()
        options = LoadOptions(clean, PRODUCERS, policy)
        self.log = load_log(self.directory, str(PARTITION), PARTITION, self.config, options)
        self.log.update_high_watermark(self.log.log_end_offset if high_watermark is None else high_watermark)
        return self.log

    def crash(self) -> UnifiedLog:
        """Lose what was not synced, and recover."""
        self.sim_disk.crash()
        return self.reload()


Batch = tuple[BatchHeader, bytes]


def segment_batches(segment: LogSegment) -> list[tuple[int, BatchHeader, bytes]]:
    """Position, header and bytes of every batch, from a scan of the file."""
    data = segment.read(0, segment.size)
    found = []
    end = 0
    for at, header in iter_batches(data):
        verify_crc(data, at, header)
        found.append((at, header, bytes(data[at : at + header.size])))
        end = at + header.size
    assert end == len(data), f"{segment} has {len(data) - end} bytes behind its last batch"
    return found


def all_batches(log: UnifiedLog) -> list[Batch]:
    return [(header, data) for segment in log.segments for _, header, data in segment_batches(segment)]


def scan_for_timestamp(batches: Sequence[Batch], timestamp: int, start: int) -> TimestampAndOffset | None:
    for header, data in batches:
        for record in read_records(data):
            if record.offset >= start and record.timestamp >= timestamp:
                return TimestampAndOffset(record.timestamp, record.offset, header.leader_epoch)
    return None


def scan_for_greatest(batches: Sequence[Batch], start: int) -> TimestampAndOffset | None:
    best: TimestampAndOffset | None = None
    for header, data in batches:
        for record in read_records(data):
            known = -1 if best is None else best.timestamp
            if record.offset >= start and record.timestamp > known:
                best = TimestampAndOffset(record.timestamp, record.offset, header.leader_epoch)
    return best


def replayed(batches: Sequence[Batch]) -> tuple[ProducerStateManager, list[AbortedTxn]]:
    """The producer state and the aborted transactions that a replay of the batches gives."""
    state = ProducerStateManager(str(PARTITION), PRODUCERS)
    aborted = []
    for header, data in batches:
        aborted += state.replay([(header, end_txn_marker(data, 0, header))])
    return state, aborted


def check_indexes(log: UnifiedLog) -> None:
    """Check that every index of every segment agrees with a scan of its file."""
    for segment in log.segments:
        batches = segment_batches(segment)
        at = {position: header for position, header, _ in batches}
        index = segment.offset_index
        entries = [index.entry(n) for n in range(index.entries)]
        assert entries == sorted(set(entries))
        for entry in entries:
            assert at[entry.position].last_offset == entry.offset
        greatest: list[tuple[int, int]] = []  # (timestamp, last offset) of each batch that set a new maximum
        for _, header, _ in batches:
            if header.max_timestamp > (greatest[-1][0] if greatest else -1):
                greatest.append((header.max_timestamp, header.last_offset))
        time_index = segment.time_index
        times = [time_index.entry(n) for n in range(time_index.entries)]
        indexed = [each for each in greatest if each in set(times)]
        assert [tuple(each) for each in times] == indexed, f"{segment}: {times}, not of {greatest}"
        assert tuple(segment.max_timestamp) == (greatest[-1] if greatest else (-1, segment.base_offset))
        for _, header, _ in batches:
            for offset in (header.base_offset, header.last_offset):
                found = segment.translate_offset(offset)
                assert found is not None
                assert (found.base_offset, found.last_offset) == (header.base_offset, header.last_offset)
        end = batches[-1][1].next_offset if batches else segment.base_offset
        assert segment.translate_offset(end) is None
        assert segment.read_next_offset() == end


def check_epochs(log: UnifiedLog, *, exact: bool = True) -> None:
    """Check that the leader epochs are those of the batches; not `exact` after a compaction."""
    expected = LeaderEpochCache()
    start = log.log_start_offset
    for header, _ in all_batches(log):
        if header.last_offset >= start:
            epoch = log.leader_epoch_cache.epoch_for_offset(max(header.base_offset, start))
            assert epoch == header.leader_epoch, (
                f"{header.base_offset}: {epoch} {log.leader_epoch_cache.entries}"
            )
            expected.assign(header.leader_epoch, max(header.base_offset, start))
    if start == log.log_end_offset:
        # The epoch of records that are gone may still be known.
        assert [entry.start_offset for entry in log.leader_epoch_cache.entries] in ([], [start])
    elif exact:
        # Where there is a gap before its first batch, an epoch may start anywhere in it; and where the log
        # starts in a gap, the first epoch may be that of records that are gone.
        epochs = [entry.epoch for entry in log.leader_epoch_cache.entries]
        wanted = [entry.epoch for entry in expected.entries]
        assert epochs[-len(wanted) :] == wanted, f"{log.leader_epoch_cache.entries}, not {expected.entries}"
        assert len(epochs) <= len(wanted) + 1


def check_lookups(log: UnifiedLog, timestamps: Sequence[int]) -> None:
    batches = all_batches(log)
    start = log.log_start_offset
    for timestamp in timestamps:
        assert log.fetch_offset_by_timestamp(timestamp) == scan_for_timestamp(batches, timestamp, start)
    assert log.fetch_offset_of_max_timestamp() == scan_for_greatest(batches, start)


def check_producers(log: UnifiedLog, *, start: int, compacted: bool) -> None:
    """Check that the producer state is what a replay of the log gives.

    If the log start was ever at `start`, that holds for the producers with a batch from there on; a snapshot
    may still contain others.
    """
    whole = start == 0 and not compacted
    batches = [batch for batch in all_batches(log) if batch[0].last_offset >= start]
    expected, aborted = replayed(batches)
    known = log.producer_state_manager.active_producers
    if whole:
        assert known.keys() == expected.active_producers.keys()
    for producer_id, want in expected.active_producers.items():
        have = known[producer_id]
        assert have.producer_epoch == want.producer_epoch
        if whole or want.batches:
            assert have.last_sequence == want.last_sequence
            assert have.last_data_offset == want.last_data_offset
        assert have.last_timestamp == want.last_timestamp
        assert have.coordinator_epoch == want.coordinator_epoch or (not whole and want.coordinator_epoch < 0)
        # A snapshot has one timestamp for the producer and its last batch.
        count = min(len(have.batches), len(want.batches))
        remembered = [batch[:3] for batch in have.batches][len(have.batches) - count :]
        recent = [batch[:3] for batch in want.batches][len(want.batches) - count :]
        assert remembered == recent, f"{producer_id}: {have.batches}, not {want.batches}"
        if whole:
            assert have.current_txn_first_offset == want.current_txn_first_offset
    if whole:
        expected.on_high_watermark_updated(log.high_watermark)
        assert log.first_unstable_offset == expected.first_unstable_offset()
        indexed = [txn for segment in log.segments for txn in segment.txn_index.entries]
        assert indexed == aborted
        for segment in log.segments:
            for txn in segment.txn_index.entries:
                assert segment.base_offset <= txn.last_offset < segment.read_next_offset()


def check_log(log: UnifiedLog, *, producers_from: int = 0, compacted: bool = False) -> None:
    """Check everything that must hold of a log at any time."""
    batches = all_batches(log)
    previous = -1
    for header, _ in batches:
        assert previous < header.base_offset <= header.last_offset
        previous = header.last_offset
    bases = [segment.base_offset for segment in log.segments]
    assert bases == sorted(set(bases))
    assert log.segments[-1].read_next_offset() == log.log_end_offset
    assert bases[0] <= log.log_start_offset <= log.high_watermark <= log.log_end_offset
    assert log.recovery_point <= log.log_end_offset
    check_indexes(log)
    check_epochs(log, exact=not compacted)
    timestamps = sorted({record.timestamp for _, data in batches for record in read_records(data)})
    check_lookups(
        log, [0, *timestamps[:: max(1, len(timestamps) // 5)], timestamps[-1] + 1 if timestamps else 1]
    )
    check_producers(log, start=max(producers_from, log.log_start_offset), compacted=compacted)
