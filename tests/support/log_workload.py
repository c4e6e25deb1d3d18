"""Random operations on a log on a simulated disk, with a model of what a crash may leave of it.

`LogWorkload` executes one random operation after another on a log. Before each it notes what the log may hold
if the power fails during the operation, and after each, what the log must hold. `crash` loses the power,
reloads the log and checks what survived. A log after a crash is correct if

- its batches are those of the model, from some start to some end, with none missing between them;
- it ends at or above everything that was synced, and starts where the log start was durable, or later;
- its indexes, leader epochs, transaction index and producer state are what a scan of the batches makes.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.log.config.log_config import LogConfig
from ottla.log.segment.file_names import CLEANED
from ottla.log.segment.segment import LogSegment
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.types import Codec
from ottla.records.validation import AppendOrigin
from ottla.sim.disk import SimCrash, SimDisk
from tests.support.log_harness import PARTITION, Batch, LogHarness, all_batches, check_log, segment_batches


class DirectoryOffline(Exception):
    """The directory is offline, as expected after an error; the workload ends."""


@dataclass
class ProducerModel:
    producer_id: int
    epoch: int = 0
    sequence: int = 0
    in_transaction: bool = False


@dataclass
class LogModel:
    """The content of the log, and the content that it may have if the power fails now."""

    content: list[Batch] = field(default_factory=list)
    synced_end: int = 0
    """Everything below it is durable."""
    lowest_start: int = 0
    highest_start: int = 0
    """The log start after a crash lies between these two."""
    appending: bool = False
    """An append is in progress: further batches may follow."""
    removable: set[int] = field(default_factory=set)
    """The base offsets of batches that a compaction is about to remove: all of them or none."""
    new_start: int | None = None
    """The log is about to be truncated fully and to start at this offset."""

    @property
    def end(self) -> int:
        return self.content[-1][0].next_offset if self.content else self.highest_start


class LogWorkload:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        rng = self.random
        config = LogConfig(
            segment_bytes=rng.choice([800, 1500, 4000]),
            index_interval_bytes=rng.choice([0, 100, 400]),
            segment_index_bytes=rng.choice([24, 48, 10_000]),
            preallocate=rng.random() < 0.2,
            flush_messages=rng.choice([1 << 62, 1 << 62, 5, 1]),
            retention_ms=-1,
            retention_bytes=rng.choice([-1, 2000]),
            file_delete_delay_ms=rng.choice([0, 1000]),
            cleanup_policy=frozenset({"compact", "delete"}),
        )
        self.lab = LogHarness(
            config, seed=seed, open_files=rng.choice([1, 3, 64]), unsynced_files=1 if seed % 3 == 0 else 64
        )
        self.disk: SimDisk = self.lab.sim_disk
        self.model = LogModel()
        self.epoch = 0
        self.producers = [ProducerModel(number) for number in range(1, 4)]
        self.compacted = False
        # The greatest log start so far: after a crash the log start may be lower again, but the producers
        # that were expired with it stay so.
        self.greatest_start = 0
        self.doing = "beginning"
        self.history: list[str] = []

    @property
    def log(self):  # type: ignore[no-untyped-def]
        return self.lab.log

    # Operations

    def actions(self) -> list[tuple[int, Callable[[], None]]]:
        """What may happen, with the weight of each."""
        return [
            (40, self.append),
            (8, self.append_many),
            (10, self.append_produced),
            (8, self.append_transactional),
            (5, self.end_transaction),
            (8, self.flush),
            (4, self.flush_in_steps),
            (4, self.roll),
            (3, self.truncate),
            (1, self.truncate_fully),
            (3, self.move_start),
            (2, self.delete_old),
            (3, self.checkpoint),
            (3, self.compact),
            (2, self.new_epoch),
            (2, self.pass_time),
            (1, self.restart),
            (2, self.fill_disk),
            (1, self.break_disk),
        ]

    def step(self) -> None:
        rng, actions = self.random, self.actions()
        action = rng.choices([each for _, each in actions], [weight for weight, _ in actions])[0]
        self.doing = action.__name__
        action()
        self.greatest_start = max(self.greatest_start, self.log.log_start_offset)
        self.history.append(self.doing)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.doing = "idle"

    def _note(self, **details: object) -> None:
        self.doing += f" {details}"

    def _update_model(self) -> None:
        """Take the current content of the log as the model; no operation is in progress."""
        self.model.content = all_batches(self.log)
        self.model.appending = False

    def _append(self, data: bytes, **how: object) -> None:
        self.model.appending = True
        info = self.log.append_as_leader(bytearray(data), self.epoch, now_ms=self.lab.now_ms, **how)
        self._note(first=info.first_offset, last=info.last_offset)
        self._flush_if_due()
        self._update_model()
        replicated = self.log.log_end_offset - self.random.choice([0, 0, 0, 1, 3])
        self.log.update_high_watermark(max(self.log.high_watermark, replicated))
        self.model.synced_end = max(self.model.synced_end, self.log.recovery_point)

    def _flush_if_due(self) -> None:
        """Flush before the records count, as a broker does."""
        if self.log.is_flush_due:
            self.log.flush()

    def _timestamp(self) -> int:
        return self.lab.now_ms - self.random.choice([0, 0, 1, 5, 1000])

    def _records(self) -> list[tuple[int, bytes | None, bytes | None]]:
        rng = self.random
        return [
            (self._timestamp(), rng.choice([b"a", b"b", b"c"]), rng.randbytes(rng.choice([1, 20, 150])))
            for _ in range(rng.choice([1, 1, 2, 4]))
        ]

    def append(self) -> None:
        codec = self.random.choice([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD])
        self._append(build_batch(self._records(), codec=codec))

    def append_many(self) -> None:
        """Append several batches at once, as a follower does, some with gaps between their offsets."""
        rng = self.random
        offset = self.log.log_end_offset + rng.choice([0, 0, 0, 3])
        parts = []
        for _ in range(rng.choice([1, 2, 3])):
            batch = build_batch(self._records(), base_offset=offset, leader_epoch=self.epoch)
            parts.append(batch)
            offset += 5
        data = b"".join(parts)
        if len(data) > self.lab.config.segment_bytes:
            return
        self.model.appending = True
        self.log.append_as_follower(data, self.epoch, now_ms=self.lab.now_ms)
        self._flush_if_due()
        self._update_model()
        self.log.update_high_watermark(self.log.log_end_offset)
        self.model.synced_end = max(self.model.synced_end, self.log.recovery_point)

    def append_produced(self) -> None:
        idle = [producer for producer in self.producers if not producer.in_transaction]
        if idle:
            self._produce(self.random.choice(idle), transactional=False)

    def append_transactional(self) -> None:
        producer = self.random.choice(self.producers)
        self._produce(producer, transactional=True)
        producer.in_transaction = True

    def _produce(self, producer: ProducerModel, *, transactional: bool) -> None:
        records = self._records()
        batch = build_batch(
            records,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            transactional=transactional,
        )
        self._append(batch)
        producer.sequence += len(records)
        if self.random.random() < 0.2:
            again = self.log.append_as_leader(bytearray(batch), self.epoch, now_ms=self.lab.now_ms)
            assert again.duplicate
            assert again.last_offset == self.log.log_end_offset - 1

    def end_transaction(self) -> None:
        producer = self.random.choice(self.producers)
        if not producer.in_transaction:
            return
        kind = self.random.choice([ControlType.COMMIT, ControlType.ABORT])
        marker = build_end_transaction_marker(
            EndTransactionMarker(kind, 0),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            timestamp=self._timestamp(),
        )
        self._append(marker, origin=AppendOrigin.COORDINATOR, transaction_version=1)
        producer.in_transaction = False

    def flush(self) -> None:
        self.log.flush()
        self.model.synced_end = self.log.log_end_offset

    def flush_in_steps(self) -> None:
        """Flush as the log manager does, while the log goes on."""
        log, meanwhile = self.log, [self.append, self.end_transaction, self.roll]
        plan = log.prepare_flush()
        while plan is not None:
            self.random.choice(meanwhile)()
            log.run_flush(plan)
            self.random.choice(meanwhile)()
            plan = log.prepare_flush(plan.upto) if log.complete_flush(plan) else None
        self.model.synced_end = max(self.model.synced_end, log.recovery_point)

    def roll(self) -> None:
        self.log.roll(self.lab.now_ms)

    def new_epoch(self) -> None:
        self.epoch += self.random.choice([1, 2])

    def pass_time(self) -> None:
        self.lab.clock.advance_ms(self.random.choice([1, 10, 2000]))  # type: ignore[attr-defined]
        self.lab.directory.remove_due(self.lab.now_ms)

    def checkpoint(self) -> None:
        self.lab.checkpoint()
        start = self.log.log_start_offset
        self.lab.directory.set_log_starts({PARTITION: start})
        self.model.lowest_start = start

    def truncate(self) -> None:
        log = self.log
        low = max(log.log_start_offset, log.log_end_offset - 20)
        offset = self.random.randint(low, log.log_end_offset)
        self._note(offset=offset)
        end = log.end_after_truncation(offset) if offset < log.log_end_offset else log.log_end_offset
        self.model.synced_end = min(self.model.synced_end, end)
        self.model.lowest_start = min(self.model.lowest_start, end)
        log.truncate_to(offset)
        self._update_model()
        self.model.lowest_start = min(self.model.lowest_start, log.log_start_offset)
        self.model.highest_start = log.log_start_offset
        self._forget_lost_producers()

    def truncate_fully(self) -> None:
        log = self.log
        offset = max(
            0, self.random.choice([log.log_end_offset + 7, log.log_end_offset - 5, log.log_start_offset - 3])
        )
        self._truncate_fully(offset)

    def _truncate_fully(self, offset: int) -> None:
        log = self.log
        self._note(offset=offset)
        self.model.new_start = offset
        self.model.lowest_start = min(self.model.lowest_start, offset)
        self.model.synced_end = 0
        log.truncate_fully_and_start_at(offset)
        self._update_model()
        self.model.new_start = None
        self.model.lowest_start = self.model.highest_start = self.model.synced_end = offset
        self._forget_lost_producers()

    def move_start(self) -> None:
        log = self.log
        if log.high_watermark <= log.log_start_offset:
            return
        offset = self.random.randint(log.log_start_offset, min(log.high_watermark, log.log_start_offset + 10))
        self._note(offset=offset)
        self.model.highest_start = offset
        log.maybe_increment_log_start_offset(offset, "a test")
        self._update_model()

    def delete_old(self) -> None:
        log = self.log
        # Retention never takes more than what is below the high watermark.
        self.model.highest_start = log.high_watermark
        deleted = log.delete_old_segments(self.lab.now_ms)
        self._note(deleted=deleted)
        self.model.highest_start = log.log_start_offset
        if deleted:
            self.model.lowest_start = log.log_start_offset
        self._update_model()

    def compact(self) -> None:
        """Remove some batches of some closed segments, but none with producer state."""
        log = self.log
        closed = [segment for segment in log.segments[:-1] if segment.base_offset < log.recovery_point]
        if not closed:
            return
        first = self.random.randrange(len(closed))
        group = closed[first : first + self.random.choice([1, 2])]
        batches = [(header, data) for segment in group for _, header, data in segment_batches(segment)]
        kept = [
            batch
            for number, batch in enumerate(batches)
            if batch[0].producer_id >= 0 or number == len(batches) - 1 or self.random.random() < 0.5
        ]
        gone = {header.base_offset for header, _ in batches} - {header.base_offset for header, _ in kept}
        if not kept or not gone:
            return
        self._note(bases=[segment.base_offset for segment in group], gone=sorted(gone))
        self.compacted = True
        self.model.removable = {
            each for each in gone if each in {h.base_offset for h, _ in self.model.content}
        }
        aborted = [txn for segment in group for txn in segment.txn_index.entries]
        new = LogSegment.create(
            self.lab.directory.handles, log.dir, group[0].base_offset, self.lab.config, suffix=CLEANED
        )
        for header, data in kept:
            new.append(data, [header])
        for txn in aborted:
            new.txn_index.append(txn)
        new.on_become_inactive()
        log.replace_segments([new], group)
        self.model.removable = set()
        self.model.synced_end = max(self.model.synced_end, log.recovery_point)
        self._update_model()

    def restart(self) -> None:
        """Shut down cleanly and start again."""
        end, start, entries = (
            self.log.log_end_offset,
            self.log.log_start_offset,
            self.log.leader_epoch_cache.entries,
        )
        before = all_batches(self.log)
        self.lab.close()
        self.model.synced_end = end
        self.model.lowest_start = start
        log = self.lab.reload(clean=True)
        assert (log.log_end_offset, log.log_start_offset) == (end, start)
        assert [data for _, data in all_batches(log)] == [data for _, data in before]
        if start < end:
            assert log.leader_epoch_cache.entries == entries, (
                f"{log.leader_epoch_cache.entries}, not {entries}"
            )
        self.check()
        self._forget_lost_producers()

    def _forget_lost_producers(self) -> None:
        known = self.log.producer_state_manager.active_producers
        for producer in self.producers:
            entry = known.get(producer.producer_id)
            if entry is None or entry.is_empty or entry.producer_epoch != producer.epoch:
                # As a client does whose producer id is unknown.
                producer.epoch = max(producer.epoch, -1 if entry is None else entry.producer_epoch) + 1
                producer.sequence = 0
            else:
                producer.sequence = entry.last_sequence + 1
            producer.in_transaction = entry is not None and entry.current_txn_first_offset is not None

    def fill_disk(self) -> None:
        """Fill the disk for some writes: those that need space fail with the right error."""
        self._with_fault(errno.ENOSPC, self.random.choice([["write"], ["create"], ["write", "create"]]))
        self.check()

    def break_disk(self) -> None:
        """Let some operation fail: then the directory is offline, unless the log did not depend on it."""
        self._with_fault(
            errno.EIO, self.random.choice([["write"], ["sync"], ["sync_dir"], ["truncate"], ["rename"]])
        )
        if self.lab.unsynced_files == 1:
            # A failed sync that made room for another open file is reported by the next flush.
            try:
                self.flush()
            except KafkaError as refused:
                if not self.lab.directory.is_online:
                    raise DirectoryOffline from refused
                raise

    def _with_fault(self, error: int, ops: list[str]) -> None:
        rng = self.random
        fault = self.disk.fail(
            error,
            ops=ops,
            prefix=rng.choice([f"{self.log.dir}/", "/data"]),
            skip=rng.choice([0, 0, 1, 3]),
            times=rng.choice([1, 2, None]),
        )
        self._note(fault=fault)
        actions = [
            self.append,
            self.append_produced,
            self.end_transaction,
            self.roll,
            self.truncate,
            self.flush,
        ]
        for action in rng.choices(actions, k=4):
            self._note(action=action.__name__)
            try:
                action()
            except KafkaError as refused:
                if refused.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                if not self.lab.directory.is_online:
                    raise DirectoryOffline from refused
                self._update_model()
                self._forget_lost_producers()
            if not self.lab.directory.is_online:
                raise DirectoryOffline
        self.disk.heal(fault)

    # Crash and check

    def crash(self) -> None:
        """Lose the power, check what survived, and continue with it."""
        for _ in range(self.random.choice([0, 0, 0, 1, 2])):
            # Power may also fail during the recovery.
            self.disk.crash()
            self.disk.crash_after(self.random.randrange(12))
            try:
                self.lab.reload()
            except SimCrash:
                continue
            break
        self.disk.crash()
        self.history.append(f"crash in {self.doing}")
        self.lab.reload()
        self._check_survivor()
        self.check()
        model, log = self.model, self.log
        model.removable, model.new_start, model.appending = set(), None, False
        model.lowest_start = min(model.lowest_start, log.log_start_offset)
        model.highest_start = log.log_start_offset
        self._update_model()
        self._forget_lost_producers()
        self.doing = "recovered"

    def check(self) -> None:
        check_log(
            self.log,
            producers_from=max(self.greatest_start, self.log.log_start_offset),
            compacted=self.compacted,
        )

    def _check_survivor(self) -> None:
        model, log = self.model, self.log
        start, end = log.log_start_offset, log.log_end_offset
        found = [batch for batch in all_batches(log) if batch[0].last_offset >= start]
        if model.new_start is not None and start == end == model.new_start:
            assert not found
            model.lowest_start = start
            return
        highest = max(model.highest_start, model.new_start or 0)
        assert model.lowest_start <= start <= highest, f"{start=} not in {model.lowest_start}..{highest}"
        assert end >= model.synced_end, f"{end=} is below what was synced, {model.synced_end}"
        expected = [batch for batch in model.content if batch[0].last_offset >= start]
        removed = [batch for batch in expected if batch[0].base_offset not in model.removable]
        datas = [data for _, data in found]
        for candidate in (expected, removed):
            wanted = [data for header, data in candidate if header.last_offset < end]
            if datas[: len(wanted)] == wanted:
                extra = datas[len(wanted) :]
                assert not extra or (model.appending and len(wanted) == len(candidate)), (
                    "the log holds batches that were never appended"
                )
                return
        raise AssertionError(
            f"the log holds {[(h.base_offset, h.last_offset) for h, _ in found]}, not a prefix of "
            f"{[(h.base_offset, h.last_offset) for h, _ in expected]}"
        )


def run_log_workload(seed: int, *, crashes: int = 3, steps: int = 40) -> None:
    """Run the workload on one log, with several crashes, each at some change of the disk."""
    run_workload(LogWorkload(seed), seed, crashes=crashes, steps=steps)


def run_workload(workload: LogWorkload, seed: int, *, crashes: int = 3, steps: int = 40) -> None:
    try:
        for _ in range(crashes):
            workload.disk.crash_after(workload.random.randrange(steps * 6))
            try:
                workload.run(steps)
            except (SimCrash, DirectoryOffline):
                workload.disk.heal()
            except KafkaError as error:
                raise AssertionError(f"the log refused in {workload.doing}: {error}") from error
            workload.crash()
    except Exception as error:
        steps_taken = "\n  ".join(workload.history[-60:])
        raise AssertionError(
            f"seed {seed}: {error}\nin: {workload.doing}\nafter:\n  {steps_taken}\n"
            f"disk:\n{tail(workload.disk)}"
        ) from error


def tail(disk: SimDisk, count: int = 60) -> str:
    return "\n".join(map(str, disk.trace.entries()[-count:]))
