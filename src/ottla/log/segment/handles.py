"""A bounded number of open files: a `LazyFile` opens when it is used and may be closed to make room for
others.

A node holds many more files than a process may open. So every file of a partition is a `LazyFile`;
`FileHandles` keeps the most recently used ones open and drops the others. Only the reference is dropped: a
thread that is reading keeps the descriptor alive until it is done, and so no descriptor is ever closed, and
its number given to another file, under a reader.

A file with writes that are not synced yet (`LazyFile.for_write`) is not dropped like that. The kernel reports
a failed write-back only to descriptors that were open at that time, or that are opened before the kernel has
dropped the file from its cache; a sync of a file that was closed and opened again may succeed while records
are lost. So such a file stays open until it was synced. Only where there are too many of them the oldest is
synced on the spot, and if that fails, the file keeps the error: its next `sync` raises it.

Where the process has no descriptor left, also because of other parts of the process, files that are open here
make room.
"""

from __future__ import annotations

import errno
from collections import OrderedDict

from ottla.runtime.disk import Disk, File

DEFAULT_CAPACITY = 2048
DEFAULT_UNSYNCED_CAPACITY = 8192

_PLENTY = 8192

_NO_HANDLES = frozenset({errno.EMFILE, errno.ENFILE})


def is_lack_of_handles(error: OSError) -> bool:
    """True if the process, or the machine, has too many files open: nothing was done, and the disk is
    sound.
    """
    return error.errno in _NO_HANDLES


def shares(limit: int) -> tuple[int, int]:
    """Return how many of the descriptors of a process are for the files of a node, and how many besides for
    those that are not synced. Where they are few, connections and other parts of the process come first.
    """
    return (limit // 8, limit // 4) if limit < _PLENTY else (DEFAULT_CAPACITY, limit // 2)


class FileHandles:
    """The open files of a node, least recently used first: at most `capacity` of them, and besides at most
    `unsynced_capacity` with writes that are not synced.
    """

    __slots__ = ("_open", "_unsynced", "capacity", "disk", "unsynced_capacity")

    def __init__(
        self,
        disk: Disk,
        capacity: int = DEFAULT_CAPACITY,
        unsynced_capacity: int = DEFAULT_UNSYNCED_CAPACITY,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a node needs at least one open file, got a capacity of {capacity}")
        self.disk = disk
        self.capacity = capacity
        self.unsynced_capacity = unsynced_capacity
        self._open: OrderedDict[LazyFile, None] = OrderedDict()
        # Files that were written to; also some, for a while, that have been synced since.
        self._unsynced: OrderedDict[LazyFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._unsynced)

    def open(self, path: str, *, create: bool = False) -> File:
        try:
            return self.disk.open(path, create=create)
        except OSError as error:
            if not is_lack_of_handles(error):
                raise
        if self._open:
            self._make_room(0)
        elif self._unsynced:
            self._let_go_of_unsynced()
        return self.disk.open(path, create=create)

    def on_opened(self, lazy: LazyFile) -> None:
        self._open[lazy] = None
        if len(self._open) > self.capacity:
            self._make_room(self.capacity)

    def _make_room(self, capacity: int) -> None:
        """Drop files, the oldest first, until `capacity` are left."""
        while len(self._open) > capacity and (oldest := _take_oldest(self._open)) is not None:
            if oldest.is_synced:
                oldest.forget()
            else:
                self._unsynced[oldest] = None  # written to in another thread, while this one looked

    def on_used(self, lazy: LazyFile) -> None:
        try:
            self._open.move_to_end(lazy)
        except KeyError:
            return  # closed between two steps of another thread: the caller still holds its file

    def on_written(self, lazy: LazyFile) -> None:
        """Note that the file was written to and must not be closed from now on."""
        self._open.pop(lazy, None)
        self._unsynced[lazy] = None
        while len(self._unsynced) > self.unsynced_capacity:
            self._let_go_of_unsynced()

    def on_synced(self, lazy: LazyFile) -> None:
        """Note that the file was synced and may be closed."""
        if lazy in self._unsynced and lazy.is_open:
            self.on_opened(lazy)
        self._unsynced.pop(lazy, None)

    def _let_go_of_unsynced(self) -> None:
        oldest = _take_oldest(self._unsynced)
        if oldest is not None:
            oldest.sync_and_forget()

    def on_closed(self, lazy: LazyFile) -> None:
        self._open.pop(lazy, None)
        self._unsynced.pop(lazy, None)


def _take_oldest(files: OrderedDict[LazyFile, None]) -> LazyFile | None:
    try:
        return files.popitem(last=False)[0]
    except KeyError:
        return None  # another thread took the last one


class LazyFile:
    """A file by its path, opened by `get` and closed when `FileHandles` wants the room or `release` is
    called.
    """

    __slots__ = (
        "_failure",
        "_file",
        "_handles",
        "_known",
        "_synced",
        "_written",
        "is_new",
        "next_path",
        "path",
    )

    def __init__(self, handles: FileHandles, path: str) -> None:
        self._handles = handles
        self._file: File | None = None
        self.path = path
        # Set before the file gets another name: a thread that opens it meanwhile finds it under one of them.
        self.next_path: str | None = None
        # How often it was opened to be written to, and how many of these times a sync has covered.
        self._written = 0
        self._synced = 0
        # True if the disk had all of the file, empty or not, before the first of those that are not covered.
        self._known = False
        # True if it was made by `create`, and there was nothing before. An empty file is only a name.
        self.is_new = False
        # The error of a sync that no caller has seen yet.
        self._failure: OSError | None = None

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def is_synced(self) -> bool:
        """True if nothing was written by `for_write` since the last sync."""
        return self._synced == self._written

    def get(self) -> File:
        """The open file. Keep it no longer than one operation takes."""
        file = self._file
        if file is None:
            file = self._file = self._open()
            self._handles.on_opened(self)
        elif self._written == self._synced:  # otherwise it stays open anyway
            self._handles.on_used(self)
        return file

    def _open(self) -> File:
        try:
            return self._handles.open(self.path)
        except FileNotFoundError:
            if self.next_path is None:
                raise
            return self._handles.open(self.next_path)

    def for_write(self) -> File:
        """The open file, which stays open until it was synced: for contents that cannot be rebuilt."""
        file = self.get()
        first = self._synced == self._written
        self._written += 1
        if first:
            self._handles.on_written(self)
        return file

    def sync(self) -> None:
        """Make what was written durable, if it is not. OSError also where an earlier attempt has failed."""
        if self._failure is not None:
            raise self._failure
        if self._known and self._synced == self._written:
            return
        covered = self._written
        self.get().sync()
        self._known = True
        self._synced = max(self._synced, covered)
        if self._synced == self._written:
            self._handles.on_synced(self)

    def create(self) -> File:
        """Create the file, or empty the one that exists."""
        self.release()
        file = self._handles.open(self.path, create=True)
        self.is_new = self._known = not file.size()
        if not self.is_new:
            file.truncate(0)
        self._file = file
        self._handles.on_opened(self)
        return file

    def release(self) -> None:
        """Drop the open file, if it is open; its unsynced writes are no longer wanted."""
        if self._file is not None:
            self._handles.on_closed(self)
            self._file = None
        if self._synced != self._written:
            self._synced, self._known = self._written, False

    def forget(self) -> None:
        self._file = None

    def sync_and_forget(self) -> None:
        """Sync and drop the file to make room. If the sync fails, the next `sync` raises the error."""
        file, covered = self._file, self._written
        if file is not None:
            try:
                file.sync()
                self._known = True
                self._synced = max(self._synced, covered)
            except OSError as error:
                self._failure = error
            self._file = None
