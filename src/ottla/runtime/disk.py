"""Files: the operations that the log and the metadata store need of a disk, and the real disk.

The contract is the one POSIX gives and no more. A write is visible at once and durable only after
`File.sync`; a create, rename or unlink is durable only after `Disk.sync_dir` of the directory that holds
the name. Once a `sync` has failed, nothing written since the last good one may be relied on, even if a
later `sync` succeeds: kernels drop dirty pages that they could not write. `ottla.sim.disk.SimDisk` keeps the
same contract and exercises every freedom that it leaves.

A read of bytes that are not in the page cache waits for the disk, and blocks the thread meanwhile. Within
`with waiting(False)` such a read raises `NotInMemory` instead; the caller loads the bytes in another thread
and reads again.

Paths are plain strings with `/`. Errors are the `OSError` family, with the path in `filename`. A `File` may
be used from several threads, as it holds no position, but must not be closed while another thread is inside a
call.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import posixpath
import stat
import struct
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparisonT

if sys.platform != "win32":
    import fcntl


Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The size of the file system that holds a path, and what an unprivileged process may still use of it."""

    total_bytes: int
    free_bytes: int


_OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_out_of_space(error: OSError) -> bool:
    """True if the disk, or a quota, has no room left: the one I/O error after which a disk is still sound."""
    return error.errno in _OUT_OF_SPACE


class _Patience(threading.local):
    waits = True


_patience = _Patience()


class waiting:
    """Set, within the block, whether reads of this thread may wait for the disk."""

    __slots__ = ("_before", "_waits")

    def __init__(self, waits: bool) -> None:
        self._waits = waits
        self._before = True

    def __enter__(self) -> None:
        self._before = _patience.waits
        _patience.waits = self._waits

    def __exit__(self, *_: object) -> None:
        _patience.waits = self._before


class NotInMemory(Exception):
    """A read would have waited for the disk."""

    LOAD_BYTES = 1024 * 1024

    def __init__(self, file: _RealFile, size: int, offset: int) -> None:
        super().__init__(f"{file.path}: {size} bytes at {offset} are not in memory")
        self._file = file
        # Whole blocks: a search in an index, or a walk from batch to batch, reads what is near next.
        self._begin = offset - offset % self.LOAD_BYTES
        self._end = -(-(offset + size) // self.LOAD_BYTES) * self.LOAD_BYTES

    def load(self) -> None:
        """Read the bytes into the page cache. Call it in a thread that may wait."""
        self._file.load(self._begin, self._end)


class File(Protocol):
    @property
    def path(self) -> str:
        """The path that it was opened with; a later rename does not change it."""
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of `data` at `offset`; after an OSError any prefix of it may be in the file."""
        ...

    def truncate(self, size: int) -> None:
        """Set the length of the file; bytes that it gains read as zeros."""
        ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """Return once everything written so far, and the length, would survive a power cut."""
        ...

    def fileno(self) -> int:
        """The descriptor, for `mmap` and `sendfile`; a simulated file raises OSError."""
        ...

    def close(self) -> None:
        """Close the handle without a sync. Closing twice is harmless."""
        ...


class Lock(Protocol):
    def release(self) -> None:
        """Release the lock. The lock file stays. Releasing twice is harmless."""
        ...


class Disk(Protocol):
    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True
    ) -> File:
        """Open a file. `create` creates a missing one; `exclusive` creates it, and fails if it exists."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None: ...

    def list_dir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a directory, for this user only, and its missing parents. It may exist already."""
        ...

    def is_private(self, path: str) -> bool:
        """Whether users of this machine who are not in the group of a directory cannot use it."""
        ...

    def rename(self, src: str, dst: str) -> None:
        """Atomically rename `src` to `dst`, replacing what is there.

        It is durable after `sync_dir` of both parents.
        """
        ...

    def unlink(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_dir(self, path: str) -> None:
        """Return once the names in this directory would survive a power cut."""
        ...

    def lock(self, path: str) -> Lock:
        """Lock the file `path` exclusively; BlockingIOError if it is locked. A missing file is created."""
        ...

    def usage(self, path: str) -> DiskUsage: ...


# os.pread and os.pwrite take at most this much at once on Linux, and macOS refuses 2 GiB and more.
_MAX_TRANSFER_BYTES = 0x7FFF_F000
_RECENT_BYTES = 1024 * 1024
_NEVER = 1 << 63
_COPIED_BYTES = 1024 * 1024


class _RealFile:
    __slots__ = ("_fd", "_recent", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path
        # This handle has written the bytes from here on recently, so they are in the page cache.
        self._recent = _NEVER

    def pread(self, size: int, offset: int) -> bytes:
        try:
            if not _patience.waits and size and offset < self._recent:
                self._check_in_memory(size, offset)
            data = os.pread(self._fd, min(size, _MAX_TRANSFER_BYTES), offset)
            if len(data) == size or not data:
                return data
            return self._pread_rest(data, size, offset)
        except OSError as error:
            raise self._with_path(error) from None

    def _check_in_memory(self, size: int, offset: int) -> None:
        """Raise NotInMemory if the read would wait. Checks both ends: read-ahead loads what is between."""
        try:
            _peek(self._fd, offset + size - 1)
            if size > _READ_AHEAD_BYTES:
                _peek(self._fd, offset)
        except BlockingIOError:
            raise NotInMemory(self, size, offset) from None
        except OSError as error:
            if error.errno not in (
                errno.EOPNOTSUPP,
                errno.EINVAL,
            ):  # the file system does not support RWF_NOWAIT
                raise

    def is_in_memory(self, size: int, offset: int) -> bool:
        """Whether some of these bytes are in the page cache, as far as that can be found out."""
        try:
            for at in range(offset, offset + size, _READ_AHEAD_BYTES):
                with contextlib.suppress(BlockingIOError):
                    _peek(self._fd, at)
                    return True
        except OSError:
            return True
        return False

    def load(self, begin: int, end: int) -> None:
        """Wait until these bytes are in the page cache, without copying them."""
        fd = self.fileno()
        _begin_to_load(fd, begin, end - begin)
        for offset in range(begin, end, _READ_AHEAD_BYTES):
            if not os.pread(fd, 1, offset):
                break

    def _pread_rest(self, data: bytes, size: int, offset: int) -> bytes:
        parts = [data]
        done = len(data)
        while done < size:
            data = os.pread(self._fd, min(size - done, _MAX_TRANSFER_BYTES), offset + done)
            if not data:
                break
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def pwrite(self, data: Buffer, offset: int) -> None:
        try:
            done = os.pwrite(self._fd, data, offset)
            total = len(data) if isinstance(data, bytes | bytearray) else data.nbytes
            if done < total:
                self._pwrite_rest(data, done, offset)
            if self._recent == _NEVER:
                self._recent = offset
            elif offset + total - self._recent > 2 * _RECENT_BYTES:
                self._recent = offset + total - _RECENT_BYTES
        except OSError as error:
            raise self._with_path(error) from None

    def _pwrite_rest(self, data: Buffer, done: int, offset: int) -> None:
        with memoryview(data).cast("B") as rest:
            while done < len(rest):
                with rest[done : done + _MAX_TRANSFER_BYTES] as part:
                    written = os.pwrite(self._fd, part, offset + done)
                if written == 0:
                    raise OSError(errno.EIO, "the disk took no bytes")
                done += written

    def copy_range_from(self, source: _RealFile, offset: int, size: int) -> int | None:
        """Have the kernel copy these bytes of another file to the same place here; return how many it has
        copied, or None if it cannot: between some file systems, which old kernels say in several ways, or
        because one of the disks fails. Which of them, it does not say; a read and a write do.
        """
        try:
            return _copy_in_kernel(source.fileno(), self.fileno(), min(size, _MAX_TRANSFER_BYTES), offset)
        except OSError:
            return None

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._with_path(error) from None

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise self._with_path(error) from None

    def sync(self) -> None:
        try:
            _sync_data(self.fileno())
        except OSError as error:
            raise self._with_path(error) from None

    def fileno(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<file {self.path!r} {'closed' if self._fd < 0 else f'fd {self._fd}'}>"

    def _with_path(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, self.path)


_READ_AHEAD_BYTES = 128 * 1024
_scratch = [bytearray(1)]

if sys.platform == "linux":

    def _peek(fd: int, offset: int) -> None:
        """Read one byte, or raise BlockingIOError if that would wait."""
        os.preadv(fd, _scratch, offset, os.RWF_NOWAIT)

    def _begin_to_load(fd: int, offset: int, size: int) -> None:
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)

    def _drop_cached(fd: int, offset: int = 0, size: int = 0) -> None:
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)

    def _copy_in_kernel(source: int, target: int, size: int, offset: int) -> int:
        return os.copy_file_range(source, target, size, offset, offset)

else:

    def _peek(fd: int, offset: int) -> None:
        """This system has no read that does not wait."""

    def _begin_to_load(fd: int, offset: int, size: int) -> None:
        """This system has no such hint; the reads that follow load the bytes."""

    def _drop_cached(fd: int, offset: int = 0, size: int = 0) -> None:
        """This system has no such hint; it drops what is not used."""

    def _copy_in_kernel(_source: int, _target: int, _size: int, _offset: int) -> int:
        """This system has no such call."""
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


if sys.platform == "darwin":

    def _sync_data(fd: int) -> None:
        # fsync on macOS leaves the data in the drive's own cache; F_FULLFSYNC does not, where it is
        # supported.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:
            os.fsync(fd)

else:
    _sync_data = getattr(os, "fdatasync", os.fsync)  # Windows has fsync alone


# POSIX locks belong to the process: a second attempt by the same process would succeed, and closing any
# descriptor of the file would drop the first. So the process keeps a table of its locks, and does not open a
# file that is in it.
_held_locks: set[tuple[int, int]] = set()
_held_locks_guard = threading.Lock()


def _identity(facts: os.stat_result) -> tuple[int, int]:
    """Identify a file independently of its names; no other file has the same identity while it is open."""
    return facts.st_dev, facts.st_ino


# `struct flock`: type, whence, start, length and process, in an order that depends on the system.
_IS_LINUX = sys.platform == "linux"
_FLOCK = struct.Struct("hhqqi4x" if _IS_LINUX else "qqihh")


def _flock_fields(kind: int, whence: int, pid: int) -> tuple[int, ...]:
    return (kind, whence, 0, 0, pid) if _IS_LINUX else (0, 0, pid, kind, whence)


def _flock_values(fields: tuple[int, ...]) -> tuple[int, int, int]:
    kind, whence, _, _, pid = fields if _IS_LINUX else (*fields[3:], *fields[:3])
    return kind, whence, pid


class _RealLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        with _held_locks_guard:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                _held_locks.discard(_identity(os.fstat(fd)))
                os.close(fd)


def _moved_up(fd: int, lowest: int) -> int:
    """Move a descriptor to a number of at least `lowest`, if the process may have one."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    except OSError:
        return fd
    os.close(fd)
    return moved


# Data are for the user of the process only, whatever its umask says; what exists keeps its mode.
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_OTHERS = 0o007
# `select`, which much code still uses, supports only descriptors below this number.
_BEYOND_SELECT = 1024


class RealDisk:
    """The file systems of this machine.

    A guest in the process of another program leaves the low descriptors to its host, which may use `select`.
    """

    __slots__ = ("_lowest_fd",)

    def __init__(self, *, guest: bool = False) -> None:
        self._lowest_fd = _BEYOND_SELECT if guest else 0

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True
    ) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        fd = os.open(path, flags, _FILE_MODE)
        if fd < self._lowest_fd:
            fd = _moved_up(fd, self._lowest_fd)
        file = _RealFile(fd, path)
        if not writable and stat.S_ISDIR(os.fstat(file.fileno()).st_mode):
            file.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))

    def list_dir(self, path: str) -> list[str]:
        return sorted_in_pieces(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)

    def is_private(self, path: str) -> bool:
        return not os.stat(path).st_mode & _OTHERS

    def rename(self, src: str, dst: str) -> None:
        os.replace(src, dst)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock:
        # A POSIX lock over the whole file is what Apache Kafka takes on its `.lock`, so the two exclude
        # each other.
        with _held_locks_guard:
            if os.path.exists(path) and _identity(os.stat(path)) in _held_locks:
                raise BlockingIOError(errno.EAGAIN, "this process has already locked it", path)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(fd)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise BlockingIOError(errno.EAGAIN, "another process has locked it", path) from None
                raise OSError(error.errno, error.strerror, path) from None
            _held_locks.add(_identity(os.fstat(fd)))
            return _RealLock(fd)

    def locked_by(self, path: str) -> int | None:
        """The pid of the process that holds the lock of `path`, or None. Does not lock it meanwhile."""
        with _held_locks_guard:
            try:
                # Closing any descriptor of a file drops the locks of its process: do not open our own.
                if _identity(os.stat(path)) in _held_locks:
                    return os.getpid()
                # To ask for a lock needs no permission to write, and the file system may be read-only.
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                wanted = _FLOCK.pack(*_flock_fields(fcntl.F_WRLCK, os.SEEK_SET, 0))
                kind, _, pid = _flock_values(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, wanted)))
            finally:
                os.close(fd)
            return None if kind == fcntl.F_UNLCK else pid

    def usage(self, path: str) -> DiskUsage:
        facts = os.statvfs(path)
        return DiskUsage(
            total_bytes=facts.f_blocks * facts.f_frsize, free_bytes=facts.f_bavail * facts.f_frsize
        )


_PIECE: Final = 2_048


def sorted_in_pieces(items: list[SupportsRichComparisonT]) -> list[SupportsRichComparisonT]:
    """Sort a list that may be long, for a thread of the pool: a sort of 300,000 names holds up all threads,
    and with them the event loop, for half a second.
    """
    if len(items) <= _PIECE:
        return sorted(items)
    return list(heapq.merge(*(sorted(items[at : at + _PIECE]) for at in range(0, len(items), _PIECE))))


def read_file(disk: Disk, path: str) -> bytes:
    """Read a whole file. For small files: checkpoints, properties, snapshots."""
    file = disk.open(path, writable=False)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def copy_range(source: File, target: File, offset: int, size: int) -> int:
    """Copy bytes of a file to the same place of another one; return how many there were, fewer than `size` at
    the source's end. Where the system can, they do not pass through this process.
    """
    done = 0
    if isinstance(source, _RealFile) and isinstance(target, _RealFile):
        while done < size and (copied := target.copy_range_from(source, offset + done, size - done)):
            done += copied
    # What the kernel leaves: all, between some file systems, and at the end of the source nothing.
    while done < size and (data := source.pread(min(_COPIED_BYTES, size - done), offset + done)):
        target.pwrite(data, offset + done)
        done += len(data)
    return done


def drop_cached(file: File, offset: int = 0, size: int = 0) -> None:
    """Let the system use the memory in which it keeps this part of the file, or all of it, and is synced."""
    if isinstance(file, _RealFile):
        # A hint: some file systems do not take it.
        with contextlib.suppress(OSError):
            _drop_cached(file.fileno(), offset, size)


def is_in_memory(file: File, size: int, offset: int) -> bool:
    """Whether some of these bytes are in the page cache, as far as that can be found out."""
    return not isinstance(file, _RealFile) or file.is_in_memory(size, offset)


def write_file(disk: Disk, path: str, data: Buffer, *, sync: bool = True) -> None:
    """Replace the file `path` atomically: any reader, also after a crash, finds the old or the new content.

    The new content is written to `path + ".tmp"` first. With `sync=False` a crash may leave either content or
    a torn file: only for files that can be rebuilt.
    """
    temporary = path + ".tmp"
    try:
        file = disk.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
            if sync:
                file.sync()
        finally:
            file.close()
        disk.rename(temporary, path)
    except OSError:
        _discard(disk, temporary)
        raise
    if sync:
        disk.sync_dir(posixpath.dirname(path) or ".")


def _discard(disk: Disk, path: str) -> None:
    """Remove a half-written file. Its own error is dropped: the one that led here is reported."""
    try:
        disk.unlink(path)
    except OSError:
        return


def remove_tree(disk: Disk, path: str) -> None:
    """Remove a file, or a directory with its content, if it exists. Syncs nothing."""
    if not disk.is_dir(path):
        if disk.exists(path):
            disk.unlink(path)
        return
    for name in disk.list_dir(path):
        remove_tree(disk, posixpath.join(path, name))
    disk.remove_dir(path)
