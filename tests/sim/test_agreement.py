"""Without faults the simulated disk and the machine's own do the same, call by call, errors included."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.runtime.disk import Disk, File, Lock, RealDisk, read_file, remove_tree, write_file
from ottla.sim.disk import SimDisk

NAMES = st.sampled_from(["a", "b", "c"])
# Short paths over few names, so that files, directories and missing parents meet all the time.
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
# Around the edges of a block, and small.
OFFSETS = st.one_of(st.integers(0, 40), st.sampled_from([4090, 4096, 8191, 70_000]))
DATA = st.one_of(st.binary(max_size=40), st.binary(min_size=1, max_size=8).map(lambda unit: unit * 1500))
MAX_HANDLES = 6


class Side:
    """One of the two disks, with its own open handles."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self.files: list[File] = []
        self.locks: list[Lock] = []

    def path(self, path: str) -> str:
        return f"{self.root}/{path}"

    def outcome(self, call: Callable[[Side], Any]) -> tuple[str, Any]:
        try:
            return "returned", call(self)
        except OSError as error:
            return "raised", normal_errno(error.errno)


def normal_errno(number: int | None) -> int | None:
    # POSIX lets unlink of a directory be EPERM, and macOS does so.
    if sys.platform == "darwin" and number == errno.EPERM:
        return errno.EISDIR
    return number


class Agreement(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="ottla-agreement-")
        self.real = Side(RealDisk(), self.directory)
        self.sim = Side(SimDisk(seed=1), "/disk")
        self.sim.disk.make_dirs("/disk")

    def both(self, call: Callable[[Side], Any]) -> Any:
        real, sim = self.real.outcome(call), self.sim.outcome(call)
        assert sim == real
        return real

    @rule(path=PATHS, create=st.booleans(), exclusive=st.booleans(), writable=st.booleans())
    def open(self, path: str, create: bool, exclusive: bool, writable: bool) -> None:
        def call(side: Side) -> None:
            file = side.disk.open(side.path(path), create=create, exclusive=exclusive, writable=writable)
            side.files.append(file)
            if len(side.files) > MAX_HANDLES:
                side.files.pop(0).close()

        self.both(call)

    @precondition(lambda self: self.real.files)
    @rule(which=st.integers(0, MAX_HANDLES - 1), data=DATA, offset=OFFSETS)
    def pwrite(self, which: int, data: bytes, offset: int) -> None:
        self.both(lambda side: side.files[which % len(side.files)].pwrite(memoryview(data), offset))

    @precondition(lambda self: self.real.files)
    @rule(which=st.integers(0, MAX_HANDLES - 1), size=st.integers(0, 80_000), offset=OFFSETS)
    def pread(self, which: int, size: int, offset: int) -> None:
        self.both(lambda side: side.files[which % len(side.files)].pread(size, offset))

    @precondition(lambda self: self.real.files)
    @rule(which=st.integers(0, MAX_HANDLES - 1), size=OFFSETS)
    def truncate(self, which: int, size: int) -> None:
        self.both(lambda side: side.files[which % len(side.files)].truncate(size))

    @precondition(lambda self: self.real.files)
    @rule(which=st.integers(0, MAX_HANDLES - 1), close=st.booleans())
    def sync_and_size(self, which: int, close: bool) -> None:
        def call(side: Side) -> int:
            file = side.files[which % len(side.files)]
            file.sync()
            size = file.size()
            if close:
                file.close()
                side.files.remove(file)
            return size

        self.both(call)

    @precondition(lambda self: self.real.files)
    @rule()
    def use_after_close(self) -> None:
        def call(side: Side) -> bytes:
            file = side.files.pop()
            file.close()
            file.close()
            return file.pread(1, 0)

        assert self.both(call) == ("raised", errno.EBADF)

    @rule(path=PATHS, new_path=PATHS)
    def rename(self, path: str, new_path: str) -> None:
        self.both(lambda side: side.disk.rename(side.path(path), side.path(new_path)))

    @rule(path=PATHS)
    def make_dirs(self, path: str) -> None:
        self.both(lambda side: side.disk.make_dirs(side.path(path)))

    @rule(path=PATHS)
    def unlink(self, path: str) -> None:
        self.both(lambda side: side.disk.unlink(side.path(path)))

    @rule(path=PATHS)
    def remove_dir(self, path: str) -> None:
        self.both(lambda side: side.disk.remove_dir(side.path(path)))

    @rule(path=PATHS)
    def sync_dir(self, path: str) -> None:
        self.both(lambda side: side.disk.sync_dir(side.path(path)))

    @rule(path=PATHS)
    def list_dir(self, path: str) -> None:
        self.both(lambda side: side.disk.list_dir(side.path(path)))

    @rule(path=PATHS, mtime_ms=st.integers(0, 4_000_000_000_000))
    def set_mtime(self, path: str, mtime_ms: int) -> None:
        def call(side: Side) -> int:
            side.disk.set_mtime_ms(side.path(path), mtime_ms)
            return side.disk.mtime_ms(side.path(path))

        self.both(call)

    @rule(path=PATHS)
    def lock(self, path: str) -> None:
        self.both(lambda side: side.locks.append(side.disk.lock(side.path(path))))

    @precondition(lambda self: self.real.locks)
    @rule()
    def release_twice(self) -> None:
        def call(side: Side) -> None:
            lock = side.locks.pop()
            lock.release()
            lock.release()

        self.both(call)

    @rule(path=PATHS, data=st.binary(max_size=20))
    def write_and_read_whole(self, path: str, data: bytes) -> None:
        self.both(lambda side: write_file(side.disk, side.path(path), data))
        self.both(lambda side: read_file(side.disk, side.path(path)))

    @rule(path=PATHS)
    def remove(self, path: str) -> None:
        self.both(lambda side: remove_tree(side.disk, side.path(path)))

    @rule(path=PATHS)
    def queries(self, path: str) -> None:
        self.both(lambda side: (side.disk.exists(side.path(path)), side.disk.is_dir(side.path(path))))
        if not self.real.disk.is_dir(self.real.path(path)):
            self.both(lambda side: side.disk.size(side.path(path)))
        self.both(lambda side: side.disk.usage(side.path(path)) is not None)

    @invariant()
    def the_trees_are_equal(self) -> None:
        if hasattr(self, "real"):
            assert tree(self.sim) == tree(self.real)

    def teardown(self) -> None:
        if hasattr(self, "real"):
            for side in (self.real, self.sim):
                for lock in side.locks:
                    lock.release()
                for file in side.files:
                    file.close()
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.directory)


def tree(side: Side, path: str = ".") -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for name in side.disk.list_dir(side.path(path)):
        inner = f"{path}/{name}"
        if side.disk.is_dir(side.path(inner)):
            found[inner] = None
            found.update(tree(side, inner))
        else:
            found[inner] = read_file(side.disk, side.path(inner))
    return found


TestAgreement = pytest.mark.slow(Agreement.TestCase)
TestAgreement.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
