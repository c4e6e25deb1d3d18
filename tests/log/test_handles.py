"""Few open files at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.segment.handles import FileHandles, LazyFile, shares
from ottla.protocol.errors import KafkaError
from ottla.runtime.disk import RealDisk, write_file
from ottla.sim.disk import SimDisk
from tests.support.log_harness import LogHarness


def files(tmp_path: Path, handles: FileHandles, count: int) -> list[LazyFile]:
    for number in range(count):
        write_file(handles.disk, f"{tmp_path}/{number}", b"%d" % number)
    return [LazyFile(handles, f"{tmp_path}/{number}") for number in range(count)]


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    handles = FileHandles(RealDisk(), 3)
    lazy = files(tmp_path, handles, 10)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for number, file in enumerate(lazy):
            assert file.get().pread(10, 0) == b"%d" % number
    assert len(handles) == 3
    assert len(os.listdir("/proc/self/fd")) == before + 3


def test_the_least_recently_used_file_is_closed_first(tmp_path: Path) -> None:
    handles = FileHandles(RealDisk(), 2)
    first, second, third = files(tmp_path, handles, 3)
    kept = first.get()
    second.get()
    first.get()
    third.get()
    assert first.get() is kept
    assert len(handles) == 2


def test_a_reader_keeps_its_file_although_the_room_was_needed(tmp_path: Path) -> None:
    handles = FileHandles(RealDisk(), 1)
    first, second = files(tmp_path, handles, 2)
    reading = first.get()
    second.get()
    assert reading.pread(1, 0) == b"0"
    descriptor = reading.fileno()
    del reading
    with pytest.raises(OSError) as closed:
        os.fstat(descriptor)
    assert closed.value.errno == errno.EBADF


def test_a_released_file_opens_again(tmp_path: Path) -> None:
    handles = FileHandles(RealDisk(), 4)
    (file,) = files(tmp_path, handles, 1)
    file.get()
    file.release()
    assert len(handles) == 0
    assert file.get().pread(1, 0) == b"0"


def test_creating_makes_the_file_empty(tmp_path: Path) -> None:
    handles = FileHandles(RealDisk(), 4)
    (file,) = files(tmp_path, handles, 1)
    assert file.create().size() == 0


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FileHandles(RealDisk(), 0)


# Written and not yet synced


def writable(
    count: int, capacity: int, unsynced_capacity: int
) -> tuple[SimDisk, FileHandles, list[LazyFile]]:
    disk = SimDisk(0)
    disk.make_dirs("/data")
    handles = FileHandles(disk, capacity, unsynced_capacity)
    lazy = [LazyFile(handles, f"/data/{number}") for number in range(count)]
    for file in lazy:
        file.create()
    return disk, handles, lazy


def test_a_file_that_was_written_to_stays_open_until_it_was_synced() -> None:
    _, handles, lazy = writable(6, 2, 100)
    for file in lazy[:4]:
        file.for_write().pwrite(b"x", 0)
    for file in lazy[4:]:
        file.get()
    assert [file.is_open for file in lazy] == [True] * 6
    assert len(handles) == 6
    for file in lazy[:3]:
        file.sync()
    assert [file.is_open for file in lazy] == [False, True, True, True, False, False]
    assert len(handles) == 3


def test_a_write_during_a_sync_is_not_taken_for_synced() -> None:
    _, handles, (file, other) = writable(2, 1, 100)
    file.for_write().pwrite(b"x", 0)
    syncing = file.get()

    class WrittenMeanwhile:
        def sync(self) -> None:
            syncing.sync()
            file.for_write()

    file._file = WrittenMeanwhile()  # type: ignore[assignment]
    file.sync()
    assert not file.is_synced
    other.get()
    assert file.is_open
    assert len(handles) == 2


def test_of_too_many_unsynced_files_the_oldest_is_synced_before_it_is_closed() -> None:
    disk, handles, lazy = writable(4, 2, 3)
    for file in lazy:
        file.for_write().pwrite(b"kept", 0)
    assert [file.is_open for file in lazy] == [False, True, True, True]
    assert lazy[0].is_synced
    assert len(handles) == 3
    assert "/data/0" in [each.path for each in disk.trace.entries() if each.op == "sync"]
    lazy[0].for_write().pwrite(b"more", 4)
    assert not lazy[0].is_synced
    assert len(handles) == 3


def test_a_sync_that_failed_unseen_makes_the_next_sync_fail() -> None:
    disk, _, lazy = writable(2, 2, 1)
    disk.fail(errno.EIO, ops=["sync"], prefix="/data/0")
    lazy[0].for_write().pwrite(b"lost", 0)
    lazy[1].for_write().pwrite(b"x", 0)
    assert not lazy[0].is_open
    assert not lazy[0].is_synced
    for _ in range(2):
        with pytest.raises(OSError, match="/data/0") as told:
            lazy[0].sync()
        assert told.value.errno == errno.EIO
    lazy[1].sync()


def test_without_a_descriptor_clean_files_go_first_and_then_a_synced_one() -> None:
    disk, handles, lazy = writable(3, 8, 8)
    lazy[0].for_write().pwrite(b"x", 0)
    lazy[2].release()
    disk.fail(errno.EMFILE, ops=["open"])
    lazy[2].get()
    assert [file.is_open for file in lazy] == [True, False, True]
    lazy[2].release()
    disk.fail(errno.EMFILE, ops=["open"])
    lazy[2].get()
    assert [file.is_open for file in lazy] == [False, False, True]
    assert lazy[0].is_synced
    assert len(handles) == 1


def test_a_closed_segment_keeps_its_file_until_it_is_flushed() -> None:
    lab = LogHarness(LogConfig(segment_bytes=400), open_files=1)
    lab.fill(10)
    closed = lab.log.segments[:-1]
    assert len(closed) > 2
    assert all(segment._log.is_open for segment in closed)
    lab.log.flush()
    assert len(lab.directory.handles) == 1
    assert sum(segment._log.is_open for segment in lab.log.segments) <= 1


def test_a_write_that_the_disk_lost_while_its_file_was_closed_takes_the_directory_offline() -> None:
    lab = LogHarness(LogConfig(segment_bytes=400))
    lab.directory.handles.unsynced_capacity = 1
    lab.sim_disk.fail(errno.EIO, ops=["sync"], prefix="/data/orders-3/00000000000000000000.log")
    lab.fill(10)
    with pytest.raises(KafkaError, match=r"flushing .* failed"):
        lab.log.flush()
    assert not lab.directory.is_online
    assert lab.log.recovery_point == 0


@pytest.mark.parametrize("limit", [256, 1024, 8191, 8192, 20_000, 1_000_000])
def test_descriptors_are_left_for_connections(limit: int) -> None:
    open_files, unsynced = shares(limit)
    assert open_files >= 32
    assert unsynced >= limit // 4
    assert open_files + unsynced <= limit * 3 // 4
