"""Few open files at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ottla.log.handles import FileHandles, LazyFile
from ottla.runtime.disk import RealDisk, write_file


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
