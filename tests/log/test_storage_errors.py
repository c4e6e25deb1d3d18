"""A disk that is full, and a disk that fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.segment.handles import FileHandles
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.validation import AppendOrigin
from ottla.runtime.random import SeededRandom
from ottla.sim.disk import SimDisk
from tests.support.log_harness import LogHarness, all_batches, check_log


def full(lab: LogHarness, spare: int = 0) -> None:
    usage = lab.sim_disk.usage("/data")
    lab.sim_disk.limit(usage.total_bytes - usage.free_bytes + spare)


def fill_up(lab: LogHarness) -> KafkaError:
    """Append until that fails."""
    for _ in range(50):
        try:
            lab.put(b"x" * 200)
        except KafkaError as error:
            return error
    raise AssertionError("the disk never got full")


def test_a_full_disk_fails_the_append_and_nothing_else() -> None:
    for seed in range(10):
        lab = LogHarness(LogConfig(), seed=seed)
        lab.fill(20)
        content = [data for _, data in all_batches(lab.log)]
        full(lab)
        error = fill_up(lab)
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "no room in the log directory /data" in error.message
        assert lab.directory.is_online
        end = lab.log.log_end_offset
        assert [data for _, data in all_batches(lab.log)][:20] == content
        check_log(lab.log)
        assert lab.log.read(0, 10_000).records
        # The same disk after a crash right now.
        copy = LogHarness.__new__(LogHarness)
        copy.__dict__.update(lab.__dict__)
        copy.disk = lab.sim_disk.after_crash(seed)
        copy.reload()
        assert copy.log.log_end_offset <= end
        check_log(copy.log)
        lab.sim_disk.limit(1 << 40)
        assert lab.put(b"on") == end
        check_log(lab.log)


def test_a_full_disk_at_a_roll_fails_the_append_until_there_is_room() -> None:
    lab = LogHarness(LogConfig(segment_bytes=530))
    lab.fill(3)
    fault = lab.sim_disk.fail(errno.ENOSPC, ops=["create"], prefix="/data/orders-3", times=None)
    for _ in range(3):
        with pytest.raises(KafkaError, match="no room"):
            lab.put(b"x" * 200)
    assert lab.log.log_end_offset == 3
    assert not [name for name in lab.disk.list_dir(lab.log.dir) if name.startswith("00000000000000000003")]
    lab.sim_disk.heal(fault)
    assert lab.put(b"x" * 200) == 3
    assert [segment.base_offset for segment in lab.log.segments] == [0, 3]
    check_log(lab.log)


def test_an_index_that_finds_no_room_waits_in_memory() -> None:
    lab = LogHarness(LogConfig(index_interval_bytes=0))
    lab.fill(5)
    fault = lab.sim_disk.fail(
        errno.ENOSPC, ops=["write"], prefix=lab.log.active_segment.path(".index"), times=None
    )
    lab.fill(600, size=10)
    assert lab.directory.is_online
    check_log(lab.log)
    lab.sim_disk.heal(fault)
    lab.close()
    lab.reload(clean=True)
    check_log(lab.log)


@pytest.mark.parametrize("operation", ["write", "truncate", "sync"])
def test_a_failed_write_whose_traces_stay_takes_the_directory_offline(operation: str) -> None:
    lab = LogHarness()
    lab.fill(3)
    path = lab.log.active_segment.path(".log")
    lab.sim_disk.fail(errno.ENOSPC if operation != "write" else errno.EIO, ops=["write"], prefix=path)
    if operation != "write":
        lab.sim_disk.fail(errno.EIO, ops=[operation], prefix=path)
    with pytest.raises(KafkaError) as refused:
        lab.put(b"x" * 500)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not lab.directory.is_online
    assert lab.directory.failure is not None
    with pytest.raises(KafkaError, match=r"is offline: .*restart the node once the disk is repaired"):
        lab.put(b"y")
    lab.crash()
    assert lab.log.log_end_offset <= 4
    check_log(lab.log)


def test_an_aborted_transaction_that_cannot_be_indexed_is_not_ended() -> None:
    lab = LogHarness()
    data = build_batch(
        [(lab.now_ms, None, b"x")], producer_id=4, producer_epoch=0, base_sequence=0, transactional=True
    )
    lab.log.append_as_leader(bytearray(data), 0, now_ms=lab.now_ms)
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 0), producer_id=4, producer_epoch=0, timestamp=lab.now_ms
    )

    def end() -> int:
        return lab.log.append_as_leader(
            bytearray(marker), 0, now_ms=lab.now_ms, origin=AppendOrigin.COORDINATOR, transaction_version=1
        ).first_offset

    fault = lab.sim_disk.fail(
        errno.ENOSPC, ops=["write"], prefix=lab.log.active_segment.path(".txnindex"), times=None
    )
    with pytest.raises(KafkaError, match="writing the transaction index"):
        end()
    assert lab.directory.is_online
    assert lab.log.log_end_offset == 1
    assert lab.log.first_unstable_offset == 0
    check_log(lab.log)
    lab.sim_disk.heal(fault)
    assert end() == 1
    lab.log.update_high_watermark(2)
    assert lab.log.last_stable_offset == 2
    check_log(lab.log)


def test_a_truncation_that_fails_half_way_takes_the_directory_offline() -> None:
    lab = LogHarness(LogConfig(segment_bytes=500))
    lab.fill(12)
    lab.sim_disk.fail(errno.EIO, ops=["rename"], skip=1)
    with pytest.raises(KafkaError):
        lab.log.truncate_to(1)
    assert not lab.directory.is_online
    lab.crash()
    check_log(lab.log)


def test_a_truncation_that_cannot_begin_changes_nothing() -> None:
    lab = LogHarness()
    lab.fill(12)
    lab.log.flush()
    lab.checkpoint()
    lab.sim_disk.fail(errno.ENOSPC, ops=["write"], prefix="/data/recovery-point")
    with pytest.raises(KafkaError, match="no room"):
        lab.log.truncate_to(5)
    assert lab.directory.is_online
    assert lab.log.log_end_offset == 12
    lab.log.truncate_to(5)
    assert lab.log.log_end_offset == 5


def test_a_read_that_fails_takes_the_directory_offline() -> None:
    lab = LogHarness()
    lab.fill(3)
    lab.sim_disk.fail(errno.EIO, ops=["read"])
    with pytest.raises(KafkaError) as refused:
        lab.log.read(0, 100)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not lab.directory.is_online


# Too many open files


def closed_files(lab: LogHarness) -> None:
    for segment in lab.log.segments:
        segment.close_handlers()


def test_files_that_are_open_make_room_for_one_that_is_needed() -> None:
    lab = LogHarness(LogConfig(segment_bytes=600))
    lab.fill(20)
    lab.log.flush()
    assert len(lab.directory.handles) > 2
    lab.log.segments[0].close_handlers()
    lab.sim_disk.fail(errno.EMFILE, ops=["open"])
    assert lab.log.read(0, 100).records
    assert len(lab.directory.handles) <= 2
    check_log(lab.log)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_a_handle_nothing_is_done_and_the_directory_stays_online(code: int) -> None:
    lab = LogHarness(LogConfig(segment_bytes=600))
    lab.fill(20)
    end = lab.log.log_end_offset
    actions: dict[str, Callable[[], object]] = {
        "read": lambda: lab.log.read(0, 100),
        "append": lambda: lab.put(b"x"),
        "flush": lambda: lab.log.flush(),
        "roll": lambda: lab.log.roll(lab.now_ms),
    }
    for name, action in actions.items():
        closed_files(lab)
        fault = lab.sim_disk.fail(code, ops=["open", "create"], times=None)
        with pytest.raises(KafkaError, match="ulimit -n") as refused:
            action()
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR, name
        assert lab.directory.is_online, name
        assert lab.log.log_end_offset == end, name
        lab.sim_disk.heal(fault)
        check_log(lab.log)
    lab.log.flush()
    assert lab.log.recovery_point == end
    assert lab.put(b"on") == end


# No room at any one write


def eventful_life(lab: LogHarness) -> list[Callable[[], object]]:
    """Transactions, new epochs, rolls, flushes, retention, step by step."""

    def produce(epoch: int, sequence: int) -> object:
        batch = build_batch(
            [(lab.now_ms, None, b"x" * 60)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        return lab.log.append_as_leader(bytearray(batch), epoch, now_ms=lab.now_ms)

    def end(epoch: int, kind: ControlType) -> object:
        marker = build_end_transaction_marker(
            EndTransactionMarker(kind, 0), producer_id=7, producer_epoch=0, timestamp=lab.now_ms
        )
        how = {"origin": AppendOrigin.COORDINATOR, "transaction_version": 1}
        return lab.log.append_as_leader(bytearray(marker), epoch, now_ms=lab.now_ms, **how)  # type: ignore[arg-type]

    steps: list[Callable[[], object]] = []
    for epoch in range(5):
        steps += [
            partial(produce, epoch, 2 * epoch),
            partial(lab.put, b"y" * 80, epoch=epoch),
            partial(produce, epoch, 2 * epoch + 1),
            partial(end, epoch, ControlType.ABORT if epoch % 2 else ControlType.COMMIT),
            lambda: lab.log.update_high_watermark(lab.log.log_end_offset),
            lab.log.flush,
        ]
    steps.append(partial(lab.log.delete_old_segments, lab.now_ms))
    steps.append(partial(lab.log.roll, lab.now_ms))
    return steps


@pytest.mark.parametrize("op", ["write", "create"])
def test_a_lack_of_room_at_any_moment_costs_no_more_than_a_second_attempt(op: str) -> None:
    config = LogConfig(segment_bytes=400, index_interval_bytes=0, retention_bytes=1200)
    untroubled = LogHarness(config)
    for step in eventful_life(untroubled):
        step()
    expected = [data for _, data in all_batches(untroubled.log)]
    refusals: list[str] = []
    for skip in range(10_000):
        lab = LogHarness(config)
        fault = lab.sim_disk.fail(errno.ENOSPC, ops=[op], skip=skip)
        for step in eventful_life(lab):
            try:
                step()
            except KafkaError as error:
                refusals.append(error.message)
                step()
        assert lab.directory.is_online
        assert [data for _, data in all_batches(lab.log)] == expected, f"no room at {op} {skip}"
        check_log(lab.log, producers_from=lab.log.log_start_offset)
        lab.sim_disk.heal()
        lab.log.flush()
        lab.checkpoint()
        lab.crash()
        assert [data for _, data in all_batches(lab.log)] == expected, f"no room at {op} {skip}"
        check_log(lab.log, producers_from=lab.log.log_start_offset)
        if fault.times:
            break
    assert len(refusals) > 5
    assert all("no room" in refusal for refusal in refusals)


@pytest.mark.parametrize("op", ["write", "create", "sync", "sync_dir", "rename", "truncate"])
def test_an_io_error_at_any_moment_ends_the_directory_but_not_what_was_synced(op: str) -> None:
    """After a failed sync the simulated disk has forgotten some of what it was to keep, as kernels do."""
    config = LogConfig(segment_bytes=400, index_interval_bytes=0, retention_bytes=1200)
    struck = 0
    for skip in range(10_000):
        lab = LogHarness(config, seed=skip)
        fault = lab.sim_disk.fail(errno.EIO, ops=[op], skip=skip)
        synced: dict[int, bytes] = {}
        for step in eventful_life(lab):
            try:
                step()
            except KafkaError:
                break
            point = lab.log.recovery_point
            below = [batch for batch in all_batches(lab.log) if batch[0].last_offset < point]
            synced = {header.base_offset: data for header, data in below}
        if fault.times:
            break
        struck += 1
        assert not lab.directory.is_online, f"{op} {skip} failed, and the directory is still online"
        for _ in range(2):
            with pytest.raises(KafkaError, match="offline"):
                lab.log.flush()
        lab.sim_disk.heal()
        lab.crash()
        start = lab.log.log_start_offset
        found = {header.base_offset: data for header, data in all_batches(lab.log)}
        for offset, data in synced.items():
            assert offset < start or found.get(offset) == data, f"{op} {skip}: {offset} is lost"
        check_log(lab.log, producers_from=start)
    assert struck > 2


class _WatchedDirectory(LogDirectory):
    """Looks at itself after every change, as another thread may do."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in ("failure", "is_online") and not self.is_online:
            with pytest.raises(KafkaError, match="a bad block"):
                self.check_online()


def test_a_directory_that_is_offline_has_a_reason_at_every_moment() -> None:
    disk = SimDisk(1)
    directory = _WatchedDirectory("/data", FileHandles(disk), disk.clock, SeededRandom(1))
    directory.fail("a bad block")
    assert not directory.is_online
