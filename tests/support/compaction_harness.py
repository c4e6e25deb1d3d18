"""A compacted partition on a simulated disk, and a list of everything that was ever appended to it.

`CompactionHarness` appends with `append_as_leader`, cleans with the `LogCleaner`, and compares what the log
then holds with the rules of compaction, applied to the list of everything that was appended.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Container
from dataclasses import dataclass, field, replace

from ottla.log.cleaner.cleaner import CleanerConfig, LogCleaner
from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.log_loader import LoadOptions, create_log, load_log
from ottla.log.producers.state_entry import LastRecord
from ottla.log.producers.state_manager import (
    ProducerStateManager,
    ProducerStateManagerConfig,
    batches_between,
)
from ottla.log.segment.handles import FileHandles
from ottla.protocol.names import TopicPartition
from ottla.records.batch import BatchHeader, iter_batches, read_records, verify_crc
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Codec
from ottla.records.validation import AppendOrigin
from ottla.runtime.pool import InlinePool, Pool
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

PARTITION = TopicPartition("compacted", 0)
PATH = "/data"
DAY_MS = 86_400_000

CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=1200,
    index_interval_bytes=200,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
    file_delete_delay_ms=0,
)
PRODUCERS = ProducerStateManagerConfig(producer_id_expiration_ms=30 * DAY_MS, transaction_verification=False)


@dataclass
class AppendedRecord:
    """A record as it was appended, and the outcome of its transaction."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    batch: int
    """The base offset of its batch."""
    producer_id: int = NO_PRODUCER_ID
    is_transactional: bool = False
    marker: int | None = None
    """The offset of the marker that ended its transaction."""
    is_aborted: bool = False


@dataclass
class CompactionProducer:
    epoch: int = 0
    sequence: int = 0
    open: list[AppendedRecord] = field(default_factory=list)


class CompactionHarness:
    def __init__(
        self,
        seed: int | str = 0,
        config: LogConfig = CONFIG,
        cleaner_config: CleanerConfig | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.pool: Pool = pool or InlinePool()
        self.clock = SimClock()
        self.disk = SimDisk(seed, clock=self.clock)
        self.disk.make_dirs(PATH)
        self.config = config
        self.cleaner_config = cleaner_config
        self.directory = self.open_directory()
        self.log = create_log(self.directory, str(PARTITION), PARTITION, config, producer_config=PRODUCERS)
        self.disk.sync_all()
        self.cleaner = self._new_cleaner()
        self.appended: list[AppendedRecord] = []
        self.producers: dict[int, CompactionProducer] = {}

    def open_directory(self) -> LogDirectory:
        directory = LogDirectory(PATH, FileHandles(self.disk), self.clock, SeededRandom(1))
        directory.load_checkpoints()
        return directory

    def _new_cleaner(self) -> LogCleaner:
        return LogCleaner(self.clock, SeededRandom(2), self.pool, lambda: [self.log], self.cleaner_config)

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    # Appending

    def append(
        self,
        *records: tuple[bytes | None, bytes | None],
        codec: Codec = Codec.NONE,
        producer_id: int = NO_PRODUCER_ID,
        transactional: bool = False,
    ) -> int:
        """Append one batch; its base offset."""
        timestamp = self.now_ms
        producer = self.producers.setdefault(producer_id, CompactionProducer())
        is_known = producer_id != NO_PRODUCER_ID
        batch = build_batch(
            [(timestamp, key, value) for key, value in records],
            codec=codec,
            transactional=transactional,
            producer_id=producer_id,
            producer_epoch=producer.epoch if is_known else NO_PRODUCER_EPOCH,
            base_sequence=producer.sequence if is_known else NO_SEQUENCE,
        )
        info = self.log.append_as_leader(bytearray(batch), 0, now_ms=timestamp)
        new = [
            AppendedRecord(
                info.first_offset + i,
                timestamp,
                key,
                value,
                info.first_offset,
                producer_id,
                transactional,
            )
            for i, (key, value) in enumerate(records)
        ]
        self.appended += new
        producer.sequence += len(records)
        if transactional:
            producer.open += new
        return info.first_offset

    def put(self, key: str, value: str | None, **how: object) -> int:
        return self.append((key.encode(), None if value is None else value.encode()), **how)  # type: ignore[arg-type]

    def end(self, producer_id: int, *, commit: bool) -> int:
        """End the producer's transaction as version 2 does, with a new epoch; the offset of the marker."""
        producer = self.producers[producer_id]
        producer.epoch += 1
        producer.sequence = 0
        marker = build_end_transaction_marker(
            EndTransactionMarker(ControlType.COMMIT if commit else ControlType.ABORT, 0),
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            timestamp=self.now_ms,
        )
        info = self.log.append_as_leader(
            bytearray(marker),
            0,
            now_ms=self.now_ms,
            origin=AppendOrigin.COORDINATOR,
            transaction_version=2,
        )
        for record in producer.open:
            record.marker = info.first_offset
            record.is_aborted = not commit
        producer.open = []
        return info.first_offset

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def replicate_and_flush(self) -> None:
        """Move the high watermark to the end of the log, and sync everything."""
        self.log.update_high_watermark(self.log.log_end_offset)
        self.log.flush()

    def truncate(self, offset: int) -> None:
        """Truncate the log to `offset`, where a batch begins."""
        self.log.truncate_to(offset)
        self.appended = [record for record in self.appended if record.offset < offset]
        for record in self.appended:
            if record.marker is not None and record.marker >= offset:
                record.marker, record.is_aborted = None, False
        for producer_id, producer in self.producers.items():
            entry = self.log.producer_state_manager.active_producers.get(producer_id)
            if entry is not None:
                producer.epoch, producer.sequence = entry.producer_epoch, entry.last_sequence + 1
            producer.open = [
                record
                for record in self.appended
                if record.producer_id == producer_id and record.is_transactional and record.marker is None
            ]

    def pass_time(self, ms: int) -> None:
        self.clock.advance_ms(ms)

    # Cleaning

    def clean(self) -> bool:
        """Flush and clean once; False if nothing was due."""
        self.replicate_and_flush()
        return asyncio.run(self.cleaner.clean_filthiest_log())

    def roll_and_clean(self) -> bool:
        self.roll()
        return self.clean()

    @property
    def clean_until(self) -> int:
        """The offset up to which the log is clean, according to the checkpoint."""
        known = self.cleaner.clean_until(self.log)
        return self.log.log_start_offset if known is None else known

    # Restart and crash

    def reload(self, *, clean: bool) -> None:
        """Open what is on the disk, after a clean shutdown or a crash."""
        self.directory = self.open_directory()
        self.log = load_log(
            self.directory,
            str(PARTITION),
            PARTITION,
            self.config,
            LoadOptions(clean=clean, producer_config=PRODUCERS),
        )
        self.log.update_high_watermark(self.log.log_end_offset)
        self.cleaner = self._new_cleaner()

    def on(self, disk: SimDisk) -> CompactionHarness:
        """The same partition as another disk has it, opened after a crash."""
        other = copy.copy(self)
        other.disk = disk
        other.reload(clean=False)
        return other

    def restart(self) -> None:
        self.log.close()
        self.directory.write_recovery_points({PARTITION: self.log.log_end_offset})
        self.directory.write_log_starts({PARTITION: self.log.log_start_offset})
        self.reload(clean=True)

    # Content of the log

    def batches(self) -> list[tuple[BatchHeader, bytes]]:
        result = []
        for segment in self.log.segments:
            data = segment.read(0, segment.size)
            for at, header in iter_batches(data):
                verify_crc(data, at, header)
                result.append((header, bytes(data[at : at + header.size])))
        return result

    def records(self) -> dict[int, tuple[int, bytes | None, bytes | None]]:
        """Offset -> (timestamp, key, value) of every data record in the files."""
        return {
            record.offset: (record.timestamp, record.key, record.value)
            for header, data in self.batches()
            if not header.is_control
            for record in read_records(data)
        }

    def values(self) -> dict[str, str | None]:
        """The latest value of each key that a `read_committed` consumer reads; None for a tombstone."""
        latest: dict[str, str | None] = {}
        for offset in self.committed():
            _, key, value = self.records()[offset]
            assert key is not None
            latest[key.decode()] = None if value is None else value.decode()
        return latest

    def committed(self, start: int | None = None) -> list[int]:
        """The offsets that a `read_committed` consumer sees from `start` on, fetch by fetch."""
        log = self.log
        position = log.log_start_offset if start is None else start
        seen: list[int] = []
        while position < log.last_stable_offset:
            fetched = log.read(position, 300, upper_offset=log.last_stable_offset)
            upper = position
            found = list(iter_batches(fetched.records))
            if not found:
                break
            upper = found[-1][1].next_offset
            # As a broker answers and a consumer reads: an aborted transaction begins at its first offset
            # and ends with the next abort marker of its producer.
            aborted = sorted(
                log.collect_aborted_transactions(position, upper),
                key=lambda txn: txn.first_offset,
                reverse=True,
            )
            ongoing: set[int] = set()
            for at, header in found:
                while aborted and aborted[-1].first_offset <= header.last_offset:
                    ongoing.add(aborted.pop().producer_id)
                if header.is_control:
                    ongoing.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in ongoing):
                    records = read_records(fetched.records, at)
                    seen += [record.offset for record in records if record.offset >= position]
            position = upper
        return seen

    # Checks

    def decided(self) -> list[AppendedRecord]:
        """The records below the end of the log that were appended and not aborted."""
        return [
            record
            for record in self.appended
            if record.offset < self.log.log_end_offset and not record.is_aborted
        ]

    def check_nothing_invented(self) -> None:
        originals = {record.offset: record for record in self.appended}
        for offset, (timestamp, key, value) in self.records().items():
            original = originals[offset]
            assert (timestamp, key, value) == (original.timestamp, original.key, original.value), offset

    def check_order(self) -> None:
        """Offsets ascend, within the bounds of their segments, and the indexes agree."""
        following = [segment.base_offset for segment in self.log.segments[1:]]
        for segment, end in zip(self.log.segments, [*following, self.log.log_end_offset], strict=True):
            previous = segment.base_offset - 1
            for _, header in segment.headers():
                assert previous < header.base_offset <= header.last_offset < end
                previous = header.last_offset
                found = segment.translate_offset(header.last_offset)
                assert found is not None
                assert found.last_offset == header.last_offset
            greatest = max((header.max_timestamp for _, header in segment.headers()), default=-1)
            assert segment.max_timestamp.timestamp == greatest

    def check_reads(self) -> None:
        """A read from any offset begins with the first batch that reaches it."""
        headers = [header for header, _ in self.batches()]
        for offset in range(self.log.log_start_offset, self.log.log_end_offset):
            expected = next((header for header in headers if header.last_offset >= offset), None)
            fetched = self.log.read(offset, 1)
            if expected is None:
                assert not fetched.records
            else:
                assert BatchHeader.parse(fetched.records).base_offset == expected.base_offset

    def latest(self, end: int) -> dict[int, AppendedRecord]:
        """The newest record of each key below `end`, by its offset."""
        newest = {record.key: record for record in self.decided() if record.key and record.offset < end}
        return {record.offset: record for record in newest.values()}

    def horizons(self) -> dict[int, int | None]:
        """The delete horizon of each batch, by its base offset."""
        return {header.base_offset: header.delete_horizon_ms for header, _ in self.batches()}

    def producer_states(self) -> dict[int, tuple[LastRecord, int]]:
        return {
            producer_id: (entry.last_record, entry.last_sequence)
            for producer_id, entry in self.log.producer_state_manager.active_producers.items()
        }

    def replayed_producer_states(self) -> dict[int, tuple[LastRecord, int]]:
        """The producer state that a replay of the batches in the log gives."""
        replayed = ProducerStateManager("replayed")
        batches = batches_between(self.log.segments, 0, self.log.log_end_offset)
        replayed.replay(batches)
        return {
            producer_id: (entry.last_record, entry.last_sequence)
            for producer_id, entry in replayed.active_producers.items()
        }

    def check_all(self) -> None:
        """Check everything that holds at any time."""
        self.check_nothing_invented()
        self.check_order()
        self.check_reads()
        self.check_complete()
        self.check_committed_reads()
        self.check_producers()

    def check_newest(self, end: int) -> None:
        """The newest value of each key below `end` is there."""
        present = self.records().keys()
        newest = self.latest(end)
        missing = [offset for offset, record in newest.items() if record.value and offset not in present]
        assert not missing, f"the newest records of their keys below {end} are missing: {missing}"

    def check_complete(self) -> None:
        """The newest value of each key is there, and everything that no cleaning has reached. Not so while a
        cleaning is half done: then part of the log is cleaner than the checkpoint says.
        """
        self.check_newest(self.clean_until)
        self.check_newest(self.log.log_end_offset)
        present = self.records().keys()
        missing = [
            record.offset
            for record in self.decided()
            if record.offset >= self.clean_until and record.offset not in present
        ]
        assert not missing, f"records at or above {self.clean_until}, up to which the log is clean: {missing}"

    def check_committed_reads(self) -> None:
        """A `read_committed` consumer sees from any offset what is decided and committed, and nothing
        else.
        """
        stable = self.log.last_stable_offset
        committed = {
            record.offset for record in self.decided() if record.marker or not record.is_transactional
        }
        expected = sorted(offset for offset in self.records() if offset in committed and offset < stable)
        starts = {0, self.clean_until, stable} | {segment.base_offset + 1 for segment in self.log.segments}
        for start in sorted(starts):
            if start <= stable:
                assert self.committed(start) == [offset for offset in expected if offset >= start]

    def check_producers(self) -> None:
        """Check that a replay of the log gives the state of its active producers."""
        known, replayed = self.producer_states(), self.replayed_producer_states()
        assert {producer_id: replayed.get(producer_id) for producer_id in known} == known

    def check_clean(self, before: Container[int], horizons: dict[int, int | None], cleaned_ms: int) -> None:
        """Below `clean_until` there is exactly what a cleaning at `cleaned_ms` leaves, where these records
        were there before, and the batches had these delete horizons.
        """
        expected = {
            offset
            for offset, record in self.latest(self.clean_until).items()
            if record.value is not None
            or (offset in before and (horizons.get(record.batch) or cleaned_ms + 1) > cleaned_ms)
        }
        present = self.records()
        assert {offset for offset in present if offset < self.clean_until} == expected
        after = self.horizons()
        retention_ms = self.config.delete_retention_ms
        for record in self.latest(self.clean_until).values():
            if record.value is None and record.offset in present:
                assert after[record.batch] == (horizons.get(record.batch) or cleaned_ms + retention_ms)

    def with_config(self, **changes: object) -> None:
        self.config = replace(self.config, **changes)  # type: ignore[arg-type]
        self.log.update_config(self.config)
