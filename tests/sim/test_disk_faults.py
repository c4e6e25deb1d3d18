"""Power cuts at a chosen operation, injected errors, full disks, slow disks, and replay from a seed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from ottla.runtime.disk import Disk, File, read_file, write_file
from ottla.sim.clock import SimClock
from ottla.sim.disk import DiskOperation, Op, SimCrash, SimDisk

BLOCK = 4096


def durable_file(disk: Disk, path: str = "/file", data: bytes = b"") -> File:
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.sync()
    disk.sync_dir(os.path.dirname(path))
    return file


class TestPowerCuts:
    def a_life(self, disk: SimDisk) -> None:
        disk.make_dirs("/a/b")
        file = disk.open("/a/b/f", create=True)
        file.pwrite(b"x" * 1000, 0)
        file.truncate(500)
        file.sync()
        disk.set_mtime_ms("/a/b/f", 1)
        disk.rename("/a/b/f", "/a/g")
        disk.sync_dir("/a")
        disk.unlink("/a/g")
        disk.remove_dir("/a/b")
        disk.lock("/a/lock")

    def test_a_life_can_be_cut_at_each_of_its_changes(self) -> None:
        whole = SimDisk()
        self.a_life(whole)
        assert whole.operations == 12
        for allowed in range(whole.operations):
            disk = SimDisk()
            disk.crash_after(allowed)
            with pytest.raises(SimCrash, match="power lost"):
                self.a_life(disk)
            assert disk.operations == allowed + 1
        disk = SimDisk()
        disk.crash_after(whole.operations)
        self.a_life(disk)

    def test_the_write_that_is_cut_may_leave_any_prefix(self) -> None:
        lengths = set()
        for seed in range(200):
            disk = SimDisk(seed)
            file = durable_file(disk)
            disk.crash_after(0)
            with pytest.raises(SimCrash):
                file.pwrite(b"12345", 0)
            disk.crash()
            data = read_file(disk, "/file")
            assert b"12345".startswith(data.rstrip(b"\0"))
            lengths.add(len(data))
        assert lengths == set(range(6))

    def test_no_handler_for_errors_survives_a_power_cut(self) -> None:
        assert not issubclass(SimCrash, Exception)

    def test_the_power_stays_off_until_the_crash_is_over(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        disk.crash_after(0)
        with pytest.raises(SimCrash):
            file.truncate(0)
        with pytest.raises(SimCrash, match="power is off"):
            disk.unlink("/file")
        with pytest.raises(SimCrash, match="power is off"):
            disk.exists("/file")
        with pytest.raises(SimCrash, match="power is off"):
            file.size()
        file.close()
        disk.crash()
        assert disk.exists("/file")

    def test_handles_of_an_earlier_generation_are_dead_and_may_be_closed(self) -> None:
        disk = SimDisk()
        file = durable_file(disk, data=b"data")
        disk.crash()
        for use in (lambda: file.pread(1, 0), lambda: file.pwrite(b"x", 0), file.sync, file.size):
            with pytest.raises(SimCrash, match="generation 0"):
                use()
        file.close()
        assert read_file(disk, "/file") == b"data"

    def test_locks_do_not_outlive_their_process(self) -> None:
        disk = SimDisk()
        old = disk.lock("/lock")
        with pytest.raises(BlockingIOError):
            disk.lock("/lock")
        disk.sync_dir("/")
        disk.crash()
        new = disk.lock("/lock")
        old.release()
        with pytest.raises(BlockingIOError):
            disk.lock("/lock")
        new.release()
        disk.lock("/lock")

    def test_a_look_at_possible_crashes_leaves_this_life_alone(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        file.pwrite(b"unsynced", 0)
        for seed in range(20):
            other = disk.after_crash(seed)
            write_file(other, "/file", b"another run")
        assert file.pread(20, 0) == b"unsynced"
        assert disk.contents() == {"/file": b"unsynced"}


class TestErrors:
    def test_a_fault_strikes_once_unless_told_otherwise(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        disk.fail(errno.EIO, ops=["sync"])
        with pytest.raises(OSError) as raised:
            file.sync()
        assert (raised.value.errno, raised.value.filename) == (errno.EIO, "/file")
        file.sync()

    @pytest.mark.parametrize(("code", "survives"), [(errno.EIO, False), (errno.EMFILE, True)])
    def test_a_sync_that_found_no_handle_can_be_repeated(self, code: int, survives: bool) -> None:
        """Other than one that has failed: the kernel then takes the pages for written."""
        kept = []
        for seed in range(20):
            disk = SimDisk(seed=seed)
            file = durable_file(disk)
            file.pwrite(b"unsynced" * 100, 0)
            disk.fail(code, ops=["sync"])
            with pytest.raises(OSError):
                file.sync()
            file.sync()
            kept.append(read_file(disk.after_crash(1), "/file") == b"unsynced" * 100)
        assert all(kept) is survives

    def test_a_lasting_fault_lasts_until_healed(self) -> None:
        disk = SimDisk()
        file = durable_file(disk, data=b"data")
        fault = disk.fail(errno.EIO, ops=[Op.READ], times=None)
        for _ in range(3):
            with pytest.raises(OSError):
                file.pread(1, 0)
        disk.heal(fault)
        assert file.pread(4, 0) == b"data"

    def test_a_fault_may_wait_and_may_strike_several_times(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        disk.fail(errno.EIO, ops=["write"], skip=2, times=2)
        struck = []
        for index in range(6):
            try:
                file.pwrite(b"x", index)
            except OSError:
                struck.append(index)
        assert struck == [2, 3]

    def test_a_fault_keeps_to_its_paths(self) -> None:
        disk = SimDisk()
        disk.make_dirs("/good")
        disk.make_dirs("/bad")
        good = durable_file(disk, "/good/f")
        disk.fail(errno.EIO, prefix="/bad/", times=None)
        good.pwrite(b"x", 0)
        for call in (
            lambda: disk.open("/bad/f", create=True),
            lambda: disk.rename("/good/f", "/bad/f"),
            lambda: disk.lock("/bad/lock"),
        ):
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == errno.EIO
        assert disk.list_dir("/bad") == []

    def test_every_kind_of_operation_can_fail(self) -> None:
        calls: dict[Op, Callable[[SimDisk, File], object]] = {
            Op.OPEN: lambda disk, _: disk.open("/file"),
            Op.CREATE: lambda disk, _: disk.open("/new", create=True),
            Op.READ: lambda _, file: file.pread(1, 0),
            Op.WRITE: lambda _, file: file.pwrite(b"x", 0),
            Op.TRUNCATE: lambda _, file: file.truncate(0),
            Op.SYNC: lambda _, file: file.sync(),
            Op.LIST_DIR: lambda disk, _: disk.list_dir("/"),
            Op.MAKE_DIR: lambda disk, _: disk.make_dirs("/d"),
            Op.RENAME: lambda disk, _: disk.rename("/file", "/other"),
            Op.UNLINK: lambda disk, _: disk.unlink("/file"),
            Op.REMOVE_DIR: lambda disk, _: disk.remove_dir("/empty"),
            Op.SYNC_DIR: lambda disk, _: disk.sync_dir("/"),
            Op.SET_MTIME: lambda disk, _: disk.set_mtime_ms("/file", 0),
            Op.LOCK: lambda disk, _: disk.lock("/lock"),
            Op.STAT: lambda disk, _: disk.size("/file"),
        }
        assert calls.keys() == set(Op)
        for op, call in calls.items():
            disk = SimDisk()
            file = durable_file(disk)
            disk.make_dirs("/empty")
            before = disk.list_dir("/")
            disk.fail(errno.EIO, ops=[op])
            with pytest.raises(OSError) as raised:
                call(disk, file)
            assert raised.value.errno == errno.EIO
            assert disk.list_dir("/") == before
            call(disk, file)

    def test_a_failed_write_may_leave_any_prefix(self) -> None:
        lengths = set()
        for seed in range(100):
            disk = SimDisk(seed)
            file = durable_file(disk)
            disk.fail(errno.ENOSPC, ops=["write"])
            with pytest.raises(OSError):
                file.pwrite(b"123", 0)
            lengths.add(file.size())
        assert lengths == {0, 1, 2, 3}

    def test_after_a_failed_sync_a_good_one_does_not_bring_the_data_back(self) -> None:
        found = set()
        for seed in range(60):
            disk = SimDisk(seed)
            file = durable_file(disk)
            file.pwrite(b"doomed", 0)
            disk.fail(errno.EIO, ops=["sync"])
            with pytest.raises(OSError):
                file.sync()
            assert file.pread(6, 0) == b"doomed"
            file.sync()
            disk.crash()
            found.add(read_file(disk, "/file"))
        assert {b"", b"doomed"} <= found

    def test_a_failed_directory_sync_leaves_the_names_unsynced(self) -> None:
        disk = SimDisk()
        disk.open("/file", create=True)
        disk.fail(errno.EIO, ops=["sync_dir"])
        with pytest.raises(OSError):
            disk.sync_dir("/")
        assert {disk.after_crash(seed).exists("/file") for seed in range(50)} == {True, False}

    def test_write_file_gives_the_room_of_a_failed_attempt_back(self) -> None:
        disk = SimDisk()
        write_file(disk, "/file", b"old")
        for op in ("write", "truncate", "sync", "rename"):
            disk.fail(errno.EIO, ops=[op])
            with pytest.raises(OSError):
                write_file(disk, "/file", b"new")
            assert disk.contents() == {"/file": b"old"}


class TestFullDisk:
    def test_a_write_that_does_not_fit_leaves_what_did(self) -> None:
        disk = SimDisk(capacity_bytes=2 * BLOCK)
        file = durable_file(disk)
        with pytest.raises(OSError) as raised:
            file.pwrite(b"x" * (3 * BLOCK), 0)
        assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/file")
        assert file.size() == 2 * BLOCK
        assert disk.usage("/").free_bytes == 0
        file.pwrite(b"y" * BLOCK, 0)

    def test_room_comes_back_by_truncating_and_by_a_larger_disk(self) -> None:
        disk = SimDisk(capacity_bytes=BLOCK)
        file = durable_file(disk, data=b"x" * BLOCK)
        with pytest.raises(OSError):
            file.pwrite(b"x", BLOCK)
        file.truncate(0)
        assert disk.usage("/").free_bytes == BLOCK
        file.pwrite(b"x" * BLOCK, 0)
        disk.limit(3 * BLOCK)
        file.pwrite(b"x", BLOCK)
        assert disk.usage("/").free_bytes == BLOCK

    def test_an_unlinked_file_takes_room_until_its_last_handle_is_closed(self) -> None:
        disk = SimDisk(capacity_bytes=4 * BLOCK)
        file = durable_file(disk, data=b"x" * BLOCK)
        again = disk.open("/file")
        disk.unlink("/file")
        file.close()
        assert disk.usage("/").free_bytes == 3 * BLOCK
        assert again.pread(1, 0) == b"x"
        again.close()
        again.close()
        assert disk.usage("/").free_bytes == 4 * BLOCK

    def test_a_replaced_file_gives_its_room_back(self) -> None:
        disk = SimDisk(capacity_bytes=4 * BLOCK)
        durable_file(disk, "/old", b"x" * BLOCK).close()
        durable_file(disk, "/new", b"x" * BLOCK).close()
        disk.rename("/new", "/old")
        assert disk.usage("/").free_bytes == 3 * BLOCK

    def test_a_hole_takes_no_room(self) -> None:
        disk = SimDisk(capacity_bytes=BLOCK)
        file = durable_file(disk)
        file.truncate(1 << 30)
        assert disk.usage("/").free_bytes == BLOCK
        file.pwrite(b"x", 1 << 29)
        assert disk.usage("/").free_bytes == 0
        with pytest.raises(OSError):
            file.pwrite(b"x", 0)

    def test_room_is_counted_again_after_a_crash(self) -> None:
        disk = SimDisk(capacity_bytes=4 * BLOCK)
        durable_file(disk, data=b"x" * BLOCK)
        other = disk.open("/unsynced", create=True)
        other.pwrite(b"x" * BLOCK, 0)
        disk.crash()
        used = sum(-(-len(data) // BLOCK) * BLOCK for data in disk.contents().values())
        assert disk.usage("/").free_bytes == 4 * BLOCK - used

    def test_a_handle_of_an_earlier_life_gives_no_room_back(self) -> None:
        disk = SimDisk(capacity_bytes=4 * BLOCK)
        durable_file(disk, "/kept", b"x" * BLOCK)
        file = durable_file(disk, data=b"x" * BLOCK)
        disk.unlink("/file")
        disk.sync_dir("/")
        disk.crash()
        file.close()
        assert disk.usage("/").free_bytes == 3 * BLOCK

    def test_each_mount_has_its_own_room(self) -> None:
        disk = SimDisk()
        for directory in ("/data/1", "/data/2", "/data/20"):
            disk.make_dirs(directory)
        disk.limit(BLOCK, "/data/1")
        disk.limit(2 * BLOCK, "/data/2/")
        first, second = durable_file(disk, "/data/1/f"), durable_file(disk, "/data/2/f")
        with pytest.raises(OSError):
            first.pwrite(b"x" * (BLOCK + 1), 0)
        second.pwrite(b"x" * (BLOCK + 1), 0)
        assert disk.usage("/data/1").free_bytes == 0
        assert disk.usage("/data/2/f").total_bytes == 2 * BLOCK
        assert disk.usage("/data/20").free_bytes > 2 * BLOCK
        with pytest.raises(OSError) as raised:
            disk.rename("/data/1/f", "/data/2/g")
        assert raised.value.errno == errno.EXDEV


class TestSlowAndTraced:
    def test_a_hook_makes_the_disk_slow_on_the_virtual_clock(self) -> None:
        clock = SimClock(wall_ms=1000)
        disk = SimDisk(clock=clock)
        file = durable_file(disk)
        disk.hook = lambda operation: clock.advance_ms(50) if operation.op is Op.SYNC else None
        file.pwrite(b"x", 0)
        file.sync()
        assert clock.wall_ms() == 1050
        assert clock.monotonic_ns() == 50_000_000

    def test_a_hook_may_fail_an_operation_of_its_choice(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)

        def hook(operation: DiskOperation) -> None:
            if operation.op is Op.WRITE and operation.offset >= 100:
                raise OSError(errno.EDQUOT, "over quota", operation.path)

        disk.hook = hook
        file.pwrite(b"x", 0)
        with pytest.raises(OSError, match="over quota"):
            file.pwrite(b"x", 100)
        assert file.size() == 1

    def test_modification_times_come_from_the_clock(self) -> None:
        clock = SimClock(wall_ms=1000)
        disk = SimDisk(clock=clock)
        file = durable_file(disk)
        clock.advance_ms(5)
        file.pwrite(b"x", 0)
        assert disk.mtime_ms("/file") == 1005

    def test_the_trace_tells_what_was_done_and_what_failed(self) -> None:
        disk = SimDisk()
        file = durable_file(disk)
        disk.fail(errno.ENOSPC, ops=["write"])
        with pytest.raises(OSError):
            file.pwrite(b"xyz", 7)
        disk.rename("/file", "/other")
        disk.crash_after(0)
        with pytest.raises(SimCrash):
            file.truncate(3)
        lines = [line.split(maxsplit=1)[1] for line in str(disk.trace).splitlines()[-3:]]
        assert lines == [
            "write      /file 3 bytes at 7  [ENOSPC]",
            "rename     /file -> /other",
            "truncate   /file to 3  [power lost]",
        ]

    def test_the_trace_is_bounded(self) -> None:
        disk = SimDisk(trace_limit=10)
        file = durable_file(disk)
        for index in range(100):
            file.pwrite(b"x", index)
        assert [operation.offset for operation in disk.trace.entries()] == list(range(90, 100))


REPLAY = """
import errno, hashlib, sys
from ottla.sim.disk import SimCrash, SimDisk

seed = int(sys.argv[1])
disk = SimDisk(seed)
for round in range(6):
    disk.crash_after(17 + round)
    disk.fail(errno.EIO, ops=["sync", "write"], skip=3)
    try:
        disk.make_dirs(f"/d{round}")
        for index in range(20):
            try:
                file = disk.open(f"/d{round}/{index % 3}", create=True)
                file.pwrite(bytes([round, index]) * 700, index * 100)
                file.sync()
                disk.rename(f"/d{round}/{index % 3}", f"/d{round}/{index % 2}")
                disk.sync_dir("/")
            except OSError:
                pass
    except SimCrash:
        pass
    disk.crash()
print(hashlib.sha256(repr((disk.contents(), str(disk.trace))).encode()).hexdigest())
"""


class TestReplay:
    def digest(self, seed: int, hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", REPLAY, str(seed)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    @pytest.mark.slow
    def test_a_seed_replays_in_another_process_and_another_seed_differs(self) -> None:
        assert self.digest(1, "1") == self.digest(1, "2")
        assert self.digest(1, "1") != self.digest(2, "1")


class TestSimClock:
    def test_the_wall_clock_may_jump_and_the_monotonic_one_never_goes_back(self) -> None:
        clock = SimClock(wall_ms=1000, monotonic_ns=5)
        clock.set_wall_ms(10)
        assert (clock.wall_ms(), clock.monotonic_ns()) == (10, 5)
        clock.advance_ns(1_500_000)
        assert (clock.wall_ms(), clock.monotonic_ns()) == (11, 1_500_005)
        with pytest.raises(ValueError, match="forwards"):
            clock.advance_ms(-1)


def test_a_simulated_file_says_that_it_has_no_descriptor() -> None:
    with pytest.raises(OSError, match="no descriptor"):
        durable_file(SimDisk()).fileno()


def test_the_root_can_be_neither_removed_nor_renamed() -> None:
    disk = SimDisk()
    disk.make_dirs("/d")
    for src, dst in (("/", "/d/x"), ("/d", "/")):
        with pytest.raises(OSError):
            disk.rename(src, dst)
    with pytest.raises(IsADirectoryError):
        disk.unlink("/")
    disk.remove_dir("/d")
    with pytest.raises(OSError):
        disk.remove_dir("/")
    with pytest.raises(IsADirectoryError):
        disk.open("/", create=True)
