"""Open files, few at a time: a `LazyFile` opens when it is used and may be closed whenever others need the
room.

A node holds many more files than a process may open. So every file of a partition is a `LazyFile`;
`FileHandles` keeps the most recently used ones open and lets go of the others. Letting go means dropping the
reference: a thread that is reading keeps the descriptor alive until it is done, and so no descriptor is ever
closed, and its number given to another file, under a reader.

Where the process has no descriptor left, whoever else took them, the files that are open here make room.
"""

from __future__ import annotations

import errno
from collections import OrderedDict

from ottla.runtime.disk import Disk, File

DEFAULT_CAPACITY = 2048

_NO_HANDLES = frozenset({errno.EMFILE, errno.ENFILE})


def is_lack_of_handles(error: OSError) -> bool:
    """True if the process, or the machine, has too many files open: nothing was done, and the disk is
    sound.
    """
    return error.errno in _NO_HANDLES


class FileHandles:
    """The open files of a node, least recently used first; never more than `capacity` of them."""

    __slots__ = ("_open", "capacity", "disk")

    def __init__(self, disk: Disk, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"a node needs at least one open file, got a capacity of {capacity}")
        self.disk = disk
        self.capacity = capacity
        self._open: OrderedDict[LazyFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, path: str, *, create: bool = False) -> File:
        try:
            return self.disk.open(path, create=create)
        except OSError as error:
            if not is_lack_of_handles(error):
                raise
        while self._open:
            self._open.popitem(last=False)[0].forget()
        return self.disk.open(path, create=create)

    def opened(self, lazy: LazyFile) -> None:
        self._open[lazy] = None
        while len(self._open) > self.capacity:
            oldest, _ = self._open.popitem(last=False)
            oldest.forget()

    def used(self, lazy: LazyFile) -> None:
        try:
            self._open.move_to_end(lazy)
        except KeyError:
            return  # closed between two steps of another thread: the caller still holds its file

    def closed(self, lazy: LazyFile) -> None:
        self._open.pop(lazy, None)


class LazyFile:
    """A file by its path, opened by `get` and closed when `FileHandles` wants the room or `release` is
    called.
    """

    __slots__ = ("_file", "_handles", "path")

    def __init__(self, handles: FileHandles, path: str) -> None:
        self._handles = handles
        self._file: File | None = None
        self.path = path

    def get(self) -> File:
        """The open file. Keep it no longer than one operation takes."""
        file = self._file
        if file is None:
            file = self._file = self._handles.open(self.path)
            self._handles.opened(self)
        else:
            self._handles.used(self)
        return file

    def create(self) -> File:
        """Make the file, empty, whatever was there before."""
        self.release()
        file = self._handles.open(self.path, create=True)
        if file.size():
            file.truncate(0)
        self._file = file
        self._handles.opened(self)
        return file

    def release(self) -> None:
        """Let go of the open file, if it is open."""
        if self._file is not None:
            self._handles.closed(self)
            self._file = None

    def forget(self) -> None:
        self._file = None
