"""Faults that a test injects into a simulated disk, and the trace of the operations on it."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class SimCrash(BaseException):
    """The machine lost power. Not an `Exception`, so that no handler in the code under test catches it."""


class Op(StrEnum):
    OPEN = "open"
    CREATE = "create"
    READ = "read"
    WRITE = "write"
    TRUNCATE = "truncate"
    SYNC = "sync"
    LIST_DIR = "list_dir"
    MAKE_DIR = "make_dir"
    RENAME = "rename"
    UNLINK = "unlink"
    REMOVE_DIR = "remove_dir"
    SYNC_DIR = "sync_dir"
    SET_MTIME = "set_mtime"
    LOCK = "lock"
    STAT = "stat"


# Operations that change nothing. A crash in one of them leaves what a crash before the next change would
# leave, so they are not counted and do not take part in `SimDisk.crash_after`.
READ_ONLY = frozenset((Op.OPEN, Op.READ, Op.LIST_DIR, Op.STAT))


class DiskOperation(NamedTuple):
    """One call of a disk. `number` counts the changes so far, including this one if it is a change."""

    number: int
    op: Op
    path: str
    offset: int = 0
    size: int = 0
    target: str = ""
    outcome: str = ""

    def __str__(self) -> str:
        detail = f" -> {self.target}" if self.target else ""
        if self.op in (Op.READ, Op.WRITE):
            detail = f" {self.size} bytes at {self.offset}"
        elif self.op is Op.TRUNCATE:
            detail = f" to {self.size}"
        return (
            f"{self.number:6} {self.op:10} {self.path}{detail}{f'  [{self.outcome}]' if self.outcome else ''}"
        )


@dataclass(slots=True)
class Fault:
    """Makes operations fail with `error`: those of the kinds in `ops` (None: all) on paths below `prefix`.

    The first `skip` matches succeed; the next `times` fail (None: all, until the fault is removed). A failing
    write may write any prefix of its data, a failing sync may make any part of the file durable.
    """

    error: int
    prefix: str = ""
    ops: frozenset[Op] | None = None
    skip: int = 0
    times: int | None = 1

    def strikes(self, operation: DiskOperation) -> bool:
        if self.times == 0 or (self.ops is not None and operation.op not in self.ops):
            return False
        if not any(path and path.startswith(self.prefix) for path in (operation.path, operation.target)):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True

    def make(self, path: str) -> OSError:
        return OSError(self.error, os.strerror(self.error), path)


class DiskTrace:
    """The last operations, oldest first. Two runs from one seed have equal traces."""

    __slots__ = ("_entries",)

    def __init__(self, limit: int) -> None:
        self._entries: deque[DiskOperation] = deque(maxlen=limit)

    def add(self, operation: DiskOperation) -> None:
        self._entries.append(operation)

    def entries(self) -> list[DiskOperation]:
        return list(self._entries)

    def __str__(self) -> str:
        return "\n".join(map(str, self._entries))
