"""The machine's disk, where it differs from the simulated one: partial transfers, descriptors, processes.

What the two have in common is tested in `tests.sim.test_agreement`.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.runtime import disk, process
from ottla.runtime.disk import NotInMemory, RealDisk, read_file, remove_tree, waiting, write_file

HOLD_LOCK = """
import sys
from ottla.runtime.disk import RealDisk
try:
    lock = RealDisk().lock(sys.argv[1])
except BlockingIOError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_write_goes_on_where_the_system_took_only_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: whole(fd, bytes(data)[:3], offset))
    file = RealDisk().open(f"{tmp_path}/f", create=True)
    file.pwrite(b"0123456789", 5)
    file.pwrite(memoryview(b"abcd").cast("H"), 15)
    assert file.pread(100, 0) == bytes(5) + b"0123456789abcd"
    file.close()


def test_a_guest_leaves_the_low_numbers_to_its_host_where_there_are_others(tmp_path: Path) -> None:
    host, guest = RealDisk(), RealDisk(guest=True)
    ours, its = host.open(f"{tmp_path}/f", create=True), guest.open(f"{tmp_path}/f")
    its.pwrite(b"the same", 0)
    assert ours.pread(100, 0) == b"the same"
    assert ours.fileno() < 1024
    number = its.fileno()
    assert not os.get_inheritable(number)
    assert (number >= 1024) == (process.open_file_limit() > 1024)
    ours.close()
    its.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_system_that_takes_nothing_is_an_error_and_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
    file = RealDisk().open(f"{tmp_path}/f", create=True)
    with pytest.raises(OSError, match="took no bytes"):
        file.pwrite(b"0123", 0)
    file.close()


def test_a_read_goes_on_until_it_is_complete_or_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(RealDisk(), f"{tmp_path}/f", b"0123456789")
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: whole(fd, min(size, 3), offset))
    file = RealDisk().open(f"{tmp_path}/f", writable=False)
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(100, 1) == b"123456789"
    file.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, the disk that is always full")
def test_a_full_disk_is_reported_with_the_path() -> None:
    file = RealDisk().open("/dev/full")
    with pytest.raises(OSError) as raised:
        file.pwrite(b"x", 0)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/dev/full")
    file.close()


def test_errors_of_a_handle_name_its_path(tmp_path: Path) -> None:
    file = RealDisk().open(f"{tmp_path}/f", create=True)
    file.close()
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        file.size,
        file.sync,
        file.fileno,
    ):
        with pytest.raises(OSError) as raised:
            call()
        assert (raised.value.errno, raised.value.filename) == (errno.EBADF, f"{tmp_path}/f")


def test_a_handle_that_is_dropped_gives_its_descriptor_back(tmp_path: Path) -> None:
    file = RealDisk().open(f"{tmp_path}/f", create=True)
    descriptor = file.fileno()
    os.fstat(descriptor)
    del file
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_descriptors_are_not_inherited_by_other_programs(tmp_path: Path) -> None:
    file = RealDisk().open(f"{tmp_path}/f", create=True)
    assert not os.get_inheritable(file.fileno())
    file.close()


def test_writing_a_whole_file_leaves_no_other_behind(tmp_path: Path) -> None:
    disk = RealDisk()
    write_file(disk, f"{tmp_path}/f", b"a longer content")
    write_file(disk, f"{tmp_path}/f", bytearray(b"short"))
    assert read_file(disk, f"{tmp_path}/f") == b"short"
    assert disk.list_dir(str(tmp_path)) == ["f"]


def test_removing_a_tree_that_is_not_there_is_fine(tmp_path: Path) -> None:
    remove_tree(RealDisk(), f"{tmp_path}/missing")


def test_room_is_that_of_the_file_system(tmp_path: Path) -> None:
    usage = RealDisk().usage(str(tmp_path))
    assert 0 < usage.free_bytes <= usage.total_bytes


class TestLock:
    def other_process(self, path: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", HOLD_LOCK, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    @pytest.mark.slow
    def test_another_process_is_refused_while_it_is_held(self, tmp_path: Path) -> None:
        path = f"{tmp_path}/.lock"
        lock = RealDisk().lock(path)
        # An attempt within this process must not weaken it.
        with pytest.raises(BlockingIOError, match="this process"):
            RealDisk().lock(f"{tmp_path}/../{tmp_path.name}/.lock")
        with self.other_process(path) as process:
            assert self.answer(process) == "refused"
        lock.release()
        with self.other_process(path) as process:
            assert self.answer(process) == "locked"
            process.kill()

    @pytest.mark.slow
    def test_it_is_free_again_when_its_process_has_died(self, tmp_path: Path) -> None:
        path = f"{tmp_path}/.lock"
        with self.other_process(path) as process:
            assert self.answer(process) == "locked"
            with pytest.raises(BlockingIOError, match="another process") as raised:
                RealDisk().lock(path)
            assert raised.value.filename == path
            process.kill()
        RealDisk().lock(path).release()

    def test_a_refused_attempt_leaves_no_descriptor_open(self, tmp_path: Path) -> None:
        lock = RealDisk().lock(f"{tmp_path}/.lock")
        before = len(os.listdir("/dev/fd"))
        for _ in range(100):
            with pytest.raises(BlockingIOError):
                RealDisk().lock(f"{tmp_path}/.lock")
        # What other tests have left may open and close some meanwhile.
        assert len(os.listdir("/dev/fd")) < before + 50
        lock.release()


def test_a_read_that_would_wait_for_the_disk_can_be_refused_and_loaded(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3 * 1024 * 1024)
    path = tmp_path / "cold"
    path.write_bytes(data)
    file = RealDisk().open(str(path))
    with waiting(False):
        assert file.pread(len(data), 0) == data
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with waiting(False):
        try:
            file.pread(2_000_000, 1_000_000)
        except NotInMemory as found:
            missing = found
        else:
            pytest.skip("this file system keeps everything in memory, or cannot tell")
        with waiting(True):
            assert file.pread(10, 0) == data[:10]
        missing.load()
        assert file.pread(2_000_000, 1_000_000) == data[1_000_000:3_000_000]
        assert file.pread(10, len(data)) == b""
    file.close()


def test_what_a_handle_has_written_lately_is_taken_to_be_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(disk, "_peek", lambda _, offset: looked_at.append(offset))
    file = RealDisk().open(str(tmp_path / "written"), create=True)
    block = bytes(256 * 1024)
    for n in range(20):
        file.pwrite(block, n * len(block))
        with waiting(False):
            file.pread(10, n * len(block))
    assert looked_at == []
    with waiting(False):
        file.pread(10, 0)
    assert looked_at == [9]
    file.close()


def test_only_the_thread_that_asked_for_it_does_not_wait(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "cold"), create=True)
    file.pwrite(bytes(100_000), 0)
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with waiting(False), ThreadPoolExecutor(1) as pool:
        assert pool.submit(file.pread, 100_000, 0).result() == bytes(100_000)
    file.close()
