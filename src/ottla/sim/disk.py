"""A disk in memory that fails on request, and loses in a crash what was not synced.

`SimDisk` keeps the contract of `ottla.runtime.disk.Disk` and guarantees nothing beyond it. `disk_content`
(bytes) and `disk_tree` (names) define what a crash may leave. Everything is drawn from the seed: the same
calls with the same seed fail, tear and survive in the same way.

    disk = SimDisk(seed=7)
    disk.crash_after(12)              # the thirteenth change from now on fails
    try:
        run(disk)                     # the code under test
    except SimCrash:
        pass
    disk.crash()                      # power is back: the disk holds what survived
    recover(disk)

The power stays off from the moment that `SimCrash` is raised until `crash` is called, so that clean-up code
of the process that has ended cannot write to the disk of the next one. `after_crash` shows any number of
possible outcomes without a crash. For one thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ottla.runtime.clock import Clock
from ottla.runtime.disk import Buffer, DiskUsage, File, Lock
from ottla.sim.clock import SimClock
from ottla.sim.disk_faults import READ_ONLY, DiskOperation, DiskTrace, Fault, Op, SimCrash
from ottla.sim.disk_tree import Directory, Node, SimInode, Tree, normal, os_error, split

__all__ = ["READ_ONLY", "Fault", "Op", "DiskOperation", "SimCrash", "SimDisk"]

_DEFAULT_CAPACITY_BYTES = 1 << 50


class SimDisk:
    """A simulated disk, see the module.

    `sector_bytes` is the unit that a crash keeps or loses. `hook` is called before each operation and may
    advance a clock, to make the disk slow, or raise, to make it fail in ways that `Fault` does not cover.
    """

    def __init__(
        self,
        seed: int | str = 0,
        *,
        clock: Clock | None = None,
        capacity_bytes: int = _DEFAULT_CAPACITY_BYTES,
        sector_bytes: int = 512,
        trace_limit: int = 10_000,
    ) -> None:
        self.seed = seed
        self.clock: Clock = clock if clock is not None else SimClock()
        self.hook: Callable[[DiskOperation], None] | None = None
        self.trace = DiskTrace(trace_limit)
        # Changes so far, including failed ones, over all crashes.
        self.operations = 0
        # How often a fault or a lack of space made an operation fail, by error number.
        self.failures: Counter[int] = Counter()
        # Whether a sync has failed: the page cache counts as clean then, and may hold what the disk does not.
        self.cache_lies = False
        # Over all bytes that were written, in their order.
        self.digest = 0
        # Counts crashes and kills; a handle is valid in the generation in which it was opened.
        self.generation = 0
        self._sector_bytes = sector_bytes
        self._trace_limit = trace_limit
        self._tree = Tree(self.clock.wall_ms())
        self._volumes = _Volumes(capacity_bytes)
        self._faults: list[Fault] = []
        self._locked: list[SimInode] = []
        self._crash_at: int | None = None
        self._down = False

    # Faults and inspection

    def crash_after(self, operations: int) -> None:
        """Let this many more changes succeed, and raise `SimCrash` in the next one."""
        self._crash_at = self.operations + operations + 1

    def spare(self) -> None:
        """Cancel `crash_after`, unless the crash has happened."""
        self._crash_at = None

    def crash(self) -> None:
        """Lose the power, whether or not `SimCrash` was raised, and come back with one possible set of
        survivors.

        Handles and locks are gone. Faults and limits stay: they belong to the disk.
        """
        self._tree = self._tree.survivor(self._random("crash"), self._sector_bytes)
        self.generation += 1
        self._locked.clear()
        self._crash_at = None
        self._down = False
        self.cache_lies = False
        self._volumes.recount(self._tree)

    def kill(self) -> None:
        """End the process that uses the disk, as `kill -9` does.

        Handles and locks are gone, but the machine goes on, and what was not synced is neither lost nor
        durable yet.
        """
        self.generation += 1
        self._locked.clear()
        self._crash_at = None
        self._down = False

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Let a checker read without faults, and without using them up."""
        faults, self._faults = self._faults, []
        hook, self.hook = self.hook, None
        try:
            yield
        finally:
            self._faults, self.hook = faults, hook

    @property
    def is_down(self) -> bool:
        """Whether the power is off: from `SimCrash` until `crash` is called."""
        return self._down

    def after_crash(self, seed: int | str) -> SimDisk:
        """A copy of this disk as a crash at this moment might leave it. This disk does not change."""
        other = SimDisk(
            seed, clock=self.clock, sector_bytes=self._sector_bytes, trace_limit=self._trace_limit
        )
        other._volumes = self._volumes.empty_copy()
        other._tree = self._tree.survivor(other._random("crash"), self._sector_bytes)
        other._volumes.recount(other._tree)
        return other

    def fail(
        self,
        error: int,
        *,
        prefix: str = "",
        ops: Iterable[Op | str] | None = None,
        skip: int = 0,
        times: int | None = 1,
    ) -> Fault:
        """Add a fault: `fail(errno.EIO, prefix="/data/a", ops=["sync"], times=None)`. See `Fault`."""
        kinds = None if ops is None else frozenset(Op(op) for op in ops)
        fault = Fault(error, prefix, kinds, skip, times)
        self._faults.append(fault)
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """Remove a fault, or all of them."""
        self._faults = [] if fault is None else [other for other in self._faults if other is not fault]

    def limit(self, capacity_bytes: int, prefix: str = "") -> None:
        """Set the size of the disk, or of the volume mounted at `prefix`, counted in blocks of 4096 bytes.

        A path belongs to the longest prefix that is set. As between real mounts, a rename from one volume to
        another fails.
        """
        self._volumes.limit(capacity_bytes, prefix)
        self._volumes.recount(self._tree)

    def is_at_rest(self, path: str) -> bool:
        """Whether all of a file is durable, and something is in it."""
        inode = self._tree.find(path)
        return isinstance(inode, SimInode) and not inode.pending and inode.durable.size > 0

    def rot(self, path: str, position: int, data: bytes) -> None:
        """Put other bytes into a file at rest, as a bad disk does."""
        inode = self._tree.find(path)
        assert isinstance(inode, SimInode)
        assert not inode.pending, f"{path} is not at rest"
        assert position + len(data) <= inode.durable.size
        for content in (inode.durable, inode.live):
            content.write(data, position)

    def sync_all(self) -> None:
        """Make everything durable as it stands, as `sync(1)` does."""
        self._tree.sync_all()

    def contents(self) -> dict[str, bytes]:
        """Every file as a program sees it."""
        return {path: inode.live.read(inode.live.size, 0) for path, inode in self._tree.files()}

    def paths(self) -> list[str]:
        """The path of every file, sorted."""
        return sorted(path for path, _ in self._tree.files())

    def durable_content(self, path: str) -> bytes | None:
        """The durable bytes of a file; None if it has no durable name."""
        inode = self._tree.find_durable(path)
        return None if inode is None else inode.durable.read(inode.durable.size, 0)

    def durable_contents(self) -> dict[str, bytes]:
        """Every file with a durable name, with the bytes of it that are durable."""
        return {path: inode.durable.read(inode.durable.size, 0) for path, inode in self._tree.durable_files()}

    # Disk

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True
    ) -> File:
        self._check_power()
        directory, name, node = self._tree.locate(path)
        makes = node is None and (create or exclusive)
        self._begin(Op.CREATE if makes else Op.OPEN, path)
        if node is None:
            if not makes:
                raise os_error(errno.ENOENT, path)
            node = self._create(directory, name, path)
        elif exclusive:
            raise os_error(errno.EEXIST, path)
        elif isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        return _SimFile(self, node, path, writable)

    def exists(self, path: str) -> bool:
        self._check_power()
        return self._tree.find(path) is not None

    def is_dir(self, path: str) -> bool:
        self._check_power()
        return isinstance(self._tree.find(path), Directory)

    def size(self, path: str) -> int:
        self._begin(Op.STAT, path)
        node = self._tree.get(path)
        return 0 if isinstance(node, Directory) else node.live.size

    def mtime_ms(self, path: str) -> int:
        self._begin(Op.STAT, path)
        return self._tree.get(path).mtime_ms

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        self._begin(Op.SET_MTIME, path)
        self._tree.get(path).mtime_ms = mtime_ms

    def list_dir(self, path: str) -> list[str]:
        self._begin(Op.LIST_DIR, path)
        return sorted(self._tree.get_dir(path).live)

    def is_private(self, path: str) -> bool:
        self._tree.get_dir(path)
        return True

    def make_dirs(self, path: str) -> None:
        self._check_power()
        directory = self._tree.root
        parts = split(path)
        for index, name in enumerate(parts):
            node = directory.live.get(name)
            if node is None:
                self._begin(Op.MAKE_DIR, "/" + "/".join(parts[: index + 1]))
                node = Directory(self.clock.wall_ms(), directory)
                self._tree.link(directory, name, node, self.clock.wall_ms())
            elif not isinstance(node, Directory):
                raise os_error(errno.EEXIST if index + 1 == len(parts) else errno.ENOTDIR, path)
            directory = node

    def rename(self, src: str, dst: str) -> None:
        self._begin(Op.RENAME, src, target=dst)
        source, name, node = self._tree.locate(src)
        target, new_name, replaced = self._tree.locate(dst)
        if not name or not new_name:
            raise os_error(errno.EBUSY, src, dst)
        if node is None:
            raise os_error(errno.ENOENT, src, dst)
        if self._volumes.of(src) != self._volumes.of(dst):
            raise os_error(errno.EXDEV, src, dst)
        if isinstance(node, Directory) and _is_inside(target, node):
            raise os_error(errno.EINVAL, src, dst)
        if isinstance(replaced, Directory) and _is_inside(source, replaced):
            raise os_error(errno.ENOTEMPTY, src, dst)
        if replaced is node:
            return
        if replaced is not None:
            self._check_replaceable(node, replaced, src, dst)
        self._tree.rename((source, name), (target, new_name), self.clock.wall_ms())
        if isinstance(replaced, SimInode):
            self._release(replaced)

    def unlink(self, path: str) -> None:
        self._begin(Op.UNLINK, path)
        directory, name, node = self._tree.locate(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        self._tree.unlink(directory, name, self.clock.wall_ms())
        self._release(node)

    def remove_dir(self, path: str) -> None:
        self._begin(Op.REMOVE_DIR, path)
        if self._tree.get_dir(path).live:
            raise os_error(errno.ENOTEMPTY, path)
        directory, name, _ = self._tree.locate(path)
        if not name:
            raise os_error(errno.EBUSY, path)
        self._tree.unlink(directory, name, self.clock.wall_ms())

    def sync_dir(self, path: str) -> None:
        self._begin(Op.SYNC_DIR, path)
        self._tree.sync(self._tree.get_dir(path))

    def lock(self, path: str) -> Lock:
        self._begin(Op.LOCK, path)
        directory, name, node = self._tree.locate(path)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        if node is None:
            node = self._create(directory, name, path)
        if node in self._locked:
            raise BlockingIOError(errno.EAGAIN, "it is locked", path)
        self._locked.append(node)
        return _SimLock(self, node)

    def usage(self, path: str) -> DiskUsage:
        self._begin(Op.STAT, path)
        self._tree.get(path)
        volume = self._volumes.of(path)
        return DiskUsage(self._volumes.capacity_bytes(volume), self._volumes.free_bytes(volume))

    # Operations of a handle

    def _read(self, inode: SimInode, path: str, size: int, offset: int) -> bytes:
        self._begin(Op.READ, path, offset, size)
        if offset < 0 or size < 0:
            raise os_error(errno.EINVAL, path)
        return inode.live.read(size, offset)

    def _write(self, inode: SimInode, path: str, data: bytes, offset: int) -> None:
        failure = self._admit(Op.WRITE, path, offset, len(data))
        if failure is not None:
            data = data[: self._random("torn").randrange(len(data) + 1)]
        elif offset < 0:
            raise os_error(errno.EINVAL, path)
        fitting = inode.live.fitting(len(data), offset, self._volumes.free_bytes(inode.volume))
        if fitting < len(data):
            data = data[:fitting]
            if failure is None:
                failure = os_error(errno.ENOSPC, path)
                self.failures[errno.ENOSPC] += 1
        if data:
            before = inode.live.allocated_bytes
            inode.write(data, offset, self.clock.wall_ms())
            self.digest = zlib.crc32(data, zlib.crc32(path.encode(), self.digest))
            self._volumes.charge(inode, inode.live.allocated_bytes - before)
        if failure is not None:
            raise failure

    def _truncate(self, inode: SimInode, path: str, size: int) -> None:
        self._begin(Op.TRUNCATE, path, 0, size)
        if size < 0:
            raise os_error(errno.EINVAL, path)
        before = inode.live.allocated_bytes
        inode.truncate(size, self.clock.wall_ms())
        self._volumes.charge(inode, inode.live.allocated_bytes - before)

    def _sync(self, inode: SimInode, path: str) -> None:
        failure = self._admit(Op.SYNC, path)
        if failure is None:
            inode.sync()
            return
        # Without a handle nothing was asked of the kernel, and what is not synced stays so.
        if isinstance(failure, OSError) and failure.errno not in (errno.EMFILE, errno.ENFILE):
            self.cache_lies = True
            inode.fail_sync(self._random("sync"), self._sector_bytes)
        raise failure

    def _close(self, inode: SimInode) -> None:
        inode.handles -= 1
        if not inode.handles and not inode.linked:
            self._volumes.charge(inode, -inode.live.allocated_bytes)

    def _unlock(self, inode: SimInode) -> None:
        if inode in self._locked:
            self._locked.remove(inode)

    # Internals

    def _begin(self, op: Op, path: str, offset: int = 0, size: int = 0, target: str = "") -> None:
        failure = self._admit(op, path, offset, size, target)
        if failure is not None:
            raise failure

    def _admit(
        self, op: Op, path: str, offset: int = 0, size: int = 0, target: str = ""
    ) -> OSError | SimCrash | None:
        """Count and trace an operation; return the failure that it has to end with, if any."""
        self._check_power()
        if op not in READ_ONLY:
            self.operations += 1
        operation = DiskOperation(self.operations, op, path, offset, size, target)
        if self.hook is not None:
            self.hook(operation)
        failure: OSError | SimCrash | None = None
        if self._crash_at == self.operations and op not in READ_ONLY:
            self._down = True
            failure = SimCrash(f"power lost in {operation}")
        else:
            fault = next((fault for fault in self._faults if fault.strikes(operation)), None)
            if fault is not None:
                failure = fault.make(path)
                self.failures[fault.error] += 1
        if failure is not None:
            operation = operation._replace(outcome=_outcome(failure))
        self.trace.add(operation)
        return failure

    def _check_power(self) -> None:
        if self._down:
            raise SimCrash("the power is off until SimDisk.crash() is called")

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{purpose}/{self.generation}/{self.operations}")

    def _create(self, directory: Directory, name: str, path: str) -> SimInode:
        inode = SimInode(self.clock.wall_ms(), self._volumes.of(path))
        self._tree.link(directory, name, inode, self.clock.wall_ms())
        return inode

    def _release(self, inode: SimInode) -> None:
        inode.linked = False
        if not inode.handles:
            self._volumes.charge(inode, -inode.live.allocated_bytes)

    def _check_replaceable(self, node: Node, replaced: Node, src: str, dst: str) -> None:
        if isinstance(replaced, Directory):
            if not isinstance(node, Directory):
                raise os_error(errno.EISDIR, src, dst)
            if replaced.live:
                raise os_error(errno.ENOTEMPTY, src, dst)
        elif isinstance(node, Directory):
            raise os_error(errno.ENOTDIR, src, dst)


class _Volume:
    __slots__ = ("capacity_bytes", "used_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0


class _Volumes:
    """The space of each volume, and which volume a path belongs to.

    A file counts on the volume that it was created on, by its allocated blocks, until its last name and its
    last handle are gone.
    """

    __slots__ = ("_by_prefix",)

    def __init__(self, capacity_bytes: int) -> None:
        self._by_prefix = {"": _Volume(capacity_bytes)}

    def empty_copy(self) -> _Volumes:
        other = _Volumes(0)
        other._by_prefix = {
            prefix: _Volume(volume.capacity_bytes) for prefix, volume in self._by_prefix.items()
        }
        return other

    def limit(self, capacity_bytes: int, prefix: str) -> None:
        self._by_prefix[normal(prefix).rstrip("/")] = _Volume(capacity_bytes)

    def of(self, path: str) -> str:
        """The volume of a path: the longest prefix that is set."""
        if len(self._by_prefix) == 1:
            return ""
        inside = f"{normal(path)}/"
        return max((prefix for prefix in self._by_prefix if inside.startswith(f"{prefix}/")), key=len)

    def capacity_bytes(self, volume: str) -> int:
        return self._by_prefix[volume].capacity_bytes

    def free_bytes(self, volume: str) -> int:
        found = self._by_prefix[volume]
        return max(found.capacity_bytes - found.used_bytes, 0)

    def charge(self, inode: SimInode, size_bytes: int) -> None:
        volume = self._by_prefix[inode.volume]
        # A file that had no name when the limit was set is not counted, but its blocks are released.
        volume.used_bytes = max(volume.used_bytes + size_bytes, 0)

    def recount(self, tree: Tree) -> None:
        """Count the used space again, after a crash or a change of a limit."""
        for volume in self._by_prefix.values():
            volume.used_bytes = 0
        for path, inode in tree.files():
            inode.volume = self.of(path)
            self.charge(inode, inode.live.allocated_bytes)


class _SimFile:
    __slots__ = ("_disk", "_generation", "_inode", "_open", "_writable", "path")

    def __init__(self, disk: SimDisk, inode: SimInode, path: str, writable: bool) -> None:
        inode.handles += 1
        self._disk = disk
        self._inode = inode
        self._generation = disk.generation
        self._writable = writable
        self._open = True
        self.path = path

    def pread(self, size: int, offset: int) -> bytes:
        return self._disk._read(self._alive(), self.path, size, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        inode = self._alive()
        if not self._writable:
            raise os_error(errno.EBADF, self.path)
        self._disk._write(inode, self.path, bytes(data), offset)

    def truncate(self, size: int) -> None:
        inode = self._alive()
        if not self._writable:
            raise os_error(errno.EINVAL, self.path)
        self._disk._truncate(inode, self.path, size)

    def size(self) -> int:
        return self._alive().live.size

    def sync(self) -> None:
        self._disk._sync(self._alive(), self.path)

    def fileno(self) -> int:
        raise OSError(errno.ENOTSUP, "a simulated file has no descriptor", self.path)

    def close(self) -> None:
        if self._open:
            self._open = False
            if self._generation == self._disk.generation:
                self._disk._close(self._inode)

    def __del__(self) -> None:
        self.close()

    def _alive(self) -> SimInode:
        if self._generation != self._disk.generation:
            raise SimCrash(
                f"{self.path}: the handle was opened in generation {self._generation}, "
                f"this is {self._disk.generation}"
            )
        self._disk._check_power()
        if not self._open:
            raise os_error(errno.EBADF, self.path)
        return self._inode


class _SimLock:
    __slots__ = ("_disk", "_inode")

    def __init__(self, disk: SimDisk, inode: SimInode) -> None:
        self._disk = disk
        self._inode: SimInode | None = inode

    def release(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None:
            self._disk._unlock(inode)


def _outcome(failure: OSError | SimCrash) -> str:
    if isinstance(failure, SimCrash):
        return "power lost"
    return errno.errorcode.get(failure.errno or 0, str(failure))


def _is_inside(directory: Directory | None, ancestor: Directory) -> bool:
    while directory is not None:
        if directory is ancestor:
            return True
        directory = directory.parent
    return False
