"""The names of a simulated disk, and which of the unsynced changes to them a crash may keep.

A change (create, mkdir, rename, unlink, rmdir) is visible at once, and durable when every directory whose
names it changed has been synced since. Syncing a file does not make its name durable, and syncing a directory
does not make the directory's own name durable: POSIX guarantees neither. A crash keeps any set of the other
changes that a file system could leave:

- Changes of one name survive in their order, and a rename survives whole or not at all.
- A removed directory was empty: its removal survives only with all earlier changes inside it.
- Nothing survives inside a directory whose creation did not, and so a file is never moved into one.
- Moves of directories survive in their order, as one may depend on where another went.

Invariant: every file that had a durable name, and was not unlinked or replaced since, is still there under
its old or a newer name.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from ottla.sim.disk_content import Change, Content, Truncate, Write, survive

# A kernel writes back by itself after a while. So does this disk, oldest first, to keep memory bounded.
_MAX_PENDING_CHANGES = 4096
_NAME_MAX_BYTES = 255


class SimInode:
    """A file, independently of its names.

    Invariant: `durable` with `pending` applied equals `live`, unless a sync has failed since: then what the
    disk kept of the changes before it was drawn at that moment, and `live` still shows them.
    """

    __slots__ = (
        "anchored",
        "durable",
        "durable_mtime_ms",
        "handles",
        "linked",
        "live",
        "mtime_ms",
        "pending",
        "volume",
    )

    def __init__(self, mtime_ms: int, volume: str) -> None:
        self.live = Content()
        self.durable = Content()
        self.pending: list[Change] = []
        self.mtime_ms = mtime_ms
        self.durable_mtime_ms = mtime_ms
        self.volume = volume
        self.handles = 0
        self.linked = True
        # Whether it has a durable name: then a crash must not lose it.
        self.anchored = False

    def change(self, change: Change, now_ms: int) -> None:
        self.live.apply(change)
        self.mtime_ms = now_ms
        self.pending.append(change)
        if len(self.pending) > _MAX_PENDING_CHANGES:
            self._write_back(_MAX_PENDING_CHANGES // 2)

    def write(self, data: bytes, offset: int, now_ms: int) -> None:
        self.change(Write(offset, data), now_ms)

    def truncate(self, size: int, now_ms: int) -> None:
        self.change(Truncate(size), now_ms)

    def sync(self) -> None:
        self._write_back(len(self.pending))
        self.durable_mtime_ms = self.mtime_ms

    def fail_sync(self, source: random.Random, sector_bytes: int) -> None:
        """Do what a kernel does with pages that it could not write: keep some, and drop the others."""
        self.durable = survive(self.durable, self.pending, source, sector_bytes).copy()
        self.pending.clear()

    def survivor(self, source: random.Random, sector_bytes: int) -> SimInode:
        content = survive(self.durable, self.pending, source, sector_bytes)
        mtime_ms = source.choice((self.durable_mtime_ms, self.mtime_ms))
        return self._synced_copy(content, mtime_ms)

    def with_unsynced(self) -> SimInode:
        """A copy with every change on the disk."""
        content = self.durable.copy()
        for change in self.pending:
            content.apply(change)
        return self._synced_copy(content, self.mtime_ms)

    def without_unsynced(self) -> SimInode:
        """A copy without any unsynced change."""
        return self._synced_copy(self.durable, self.durable_mtime_ms)

    def _synced_copy(self, content: Content, mtime_ms: int) -> SimInode:
        inode = SimInode(mtime_ms, self.volume)
        inode.live = content.copy()
        inode.durable = content.copy()
        inode.anchored = True
        return inode

    def _write_back(self, count: int) -> None:
        for change in self.pending[:count]:
            self.durable.apply(change)
        del self.pending[:count]


class Directory:
    """A directory: the names that the program sees, and those that are durable."""

    __slots__ = ("anchored", "creation", "durable", "live", "mtime_ms", "newest", "parent")

    def __init__(self, mtime_ms: int, parent: Directory | None) -> None:
        self.live: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.mtime_ms = mtime_ms
        self.parent = parent
        self.anchored = False
        # The unsynced change that made this directory, if it is still unsynced.
        self.creation: NameChange | None = None
        # For each name its newest unsynced change.
        self.newest: dict[str, NameChange] = {}


Node: TypeAlias = SimInode | Directory
CopyInode: TypeAlias = Callable[[SimInode], SimInode]


@dataclass(slots=True, eq=False)
class NameChange:
    """One atomic change of one or two names; `edits` hold the node of each afterwards (None: removed)."""

    edits: tuple[tuple[Directory, str, Node | None], ...]
    # Unsynced changes that this one depends on.
    requires: list[NameChange]
    # Unsynced creations of the directories whose names it changes: without one, it does not survive a crash
    # either.
    within: list[NameChange]
    # Directories that are still to be synced.
    unsynced: list[Directory] = field(default_factory=list)
    # For a rename: what is moved, and the unsynced creations of the directories above its new name. A node
    # that had a durable name keeps one, and takes them along.
    moved: Node | None = None
    above: list[NameChange] = field(default_factory=list)
    durable: bool = False


class Tree:
    """All names, from the root."""

    __slots__ = ("_last_move", "_pending", "root")

    def __init__(self, mtime_ms: int) -> None:
        self.root = Directory(mtime_ms, None)
        self._pending: list[NameChange] = []
        self._last_move: NameChange | None = None

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for name in split(path):
            if not isinstance(node, Directory) or name not in node.live:
                return None
            node = node.live[name]
        return node

    def find_durable(self, path: str) -> SimInode | None:
        """The file that has this name for good."""
        node: Node | None = self.root
        for name in split(path):
            node = node.durable.get(name) if isinstance(node, Directory) else None
        return node if isinstance(node, SimInode) else None

    def get(self, path: str) -> Node:
        node = self.locate(path)[2]
        if node is None:
            raise os_error(errno.ENOENT, path)
        return node

    def get_dir(self, path: str) -> Directory:
        node = self.get(path)
        if not isinstance(node, Directory):
            raise os_error(errno.ENOTDIR, path)
        return node

    def locate(self, path: str) -> tuple[Directory, str, Node | None]:
        """The directory that holds the last name of a path, that name, and its node.

        The root is its own directory, with an empty name.
        """
        parts = split(path)
        if not parts:
            return self.root, "", self.root
        directory = self.root
        for parent in parts[:-1]:
            node = directory.live.get(parent)
            if node is None:
                raise os_error(errno.ENOENT, path)
            if not isinstance(node, Directory):
                raise os_error(errno.ENOTDIR, path)
            directory = node
        name = parts[-1]
        if len(name.encode()) > _NAME_MAX_BYTES:
            raise os_error(errno.ENAMETOOLONG, path)
        return directory, name, directory.live.get(name)

    def link(self, directory: Directory, name: str, node: Node, now_ms: int) -> None:
        change = self._change(((directory, name, node),), now_ms)
        if isinstance(node, Directory):
            node.creation = change

    def unlink(self, directory: Directory, name: str, now_ms: int) -> None:
        node = directory.live[name]
        emptied = self._inside(node) if isinstance(node, Directory) else []
        self._change(((directory, name, None),), now_ms, emptied)

    def rename(self, source: tuple[Directory, str], target: tuple[Directory, str], now_ms: int) -> None:
        node = source[0].live[source[1]]
        replaced = target[0].live.get(target[1])
        requires = self._inside(replaced) if isinstance(replaced, Directory) else []
        above = _creations_above(target[0])
        moved = isinstance(node, Directory) and source[0] is not target[0]
        if moved and self._last_move is not None:
            requires.append(self._last_move)
        change = self._change(((*source, None), (*target, node)), now_ms, requires)
        change.moved, change.above = node, above
        if isinstance(node, Directory):
            node.parent = target[0]
        if moved:
            self._last_move = change

    def sync(self, directory: Directory) -> None:
        for change in self._pending:
            if directory in change.unsynced:
                change.unsynced.remove(directory)
        self._make_durable([change for change in self._pending if not change.unsynced])

    def sync_all(self) -> None:
        self._write_back(len(self._pending))
        for _, inode in self.files():
            inode.sync()

    def files(self) -> Iterator[tuple[str, SimInode]]:
        """Every file that the program sees, by path, in order."""
        return _walk(self.root, "", durable=False)

    def durable_files(self) -> Iterator[tuple[str, SimInode]]:
        """Every file with a durable name."""
        return _walk(self.root, "", durable=True)

    def survivor(self, source: random.Random, sector_bytes: int) -> Tree:
        """A copy of what one crash leaves, in which everything is durable."""
        mood = source.choice(("killed", "forgetful", "mixed", "mixed", "mixed", "mixed", "mixed", "mixed"))
        # A killed process loses nothing that the kernel has; a forgetful disk loses all that it may.
        if mood == "killed":
            return self._copy(self._pending, lambda inode: inode.with_unsynced())
        if mood == "forgetful":
            return self._copy([], lambda inode: inode.without_unsynced())
        return self._copy(self._draw(source), lambda inode: inode.survivor(source, sector_bytes))

    def _draw(self, source: random.Random) -> list[NameChange]:
        if source.random() < 0.5:
            return self._pending[: source.randrange(len(self._pending) + 1)]
        chance = source.random()
        kept: list[NameChange] = []
        lost: set[int] = set()
        for change in self._pending:
            needed = [*change.requires, *change.within]
            if any(id(need) in lost for need in needed) or source.random() >= chance:
                lost.add(id(change))
            else:
                kept.append(change)
        return kept

    def _copy(self, kept: list[NameChange], copy_inode: CopyInode) -> Tree:
        names: dict[int, dict[str, Node]] = {}
        for change in kept:
            for directory, name, node in change.edits:
                edited = names.setdefault(id(directory), directory.durable.copy())
                _set(edited, name, node)
        tree = Tree(self.root.mtime_ms)
        todo = [(self.root, tree.root)]
        while todo:
            old, new = todo.pop()
            for name, node in sorted(names.get(id(old), old.durable).items()):
                if isinstance(node, Directory):
                    child = Directory(node.mtime_ms, new)
                    child.anchored = True
                    todo.append((node, child))
                    new.live[name] = child
                else:
                    new.live[name] = copy_inode(node)
            new.durable = new.live.copy()
        return tree

    def _change(
        self,
        edits: tuple[tuple[Directory, str, Node | None], ...],
        now_ms: int,
        requires: list[NameChange] | None = None,
    ) -> NameChange:
        change = NameChange(edits, requires or [], [])
        for directory, name, node in edits:
            earlier = directory.newest.get(name)
            if earlier is not None:
                change.requires.append(earlier)
            if directory.creation is not None:
                change.within.append(directory.creation)
            if directory not in change.unsynced:
                change.unsynced.append(directory)
            directory.newest[name] = change
            directory.mtime_ms = now_ms
            _set(directory.live, name, node)
        self._pending.append(change)
        if len(self._pending) > _MAX_PENDING_CHANGES:
            self._write_back(_MAX_PENDING_CHANGES // 2)
        return change

    def _write_back(self, count: int) -> None:
        self._make_durable(self._pending[:count])

    def _inside(self, directory: Directory) -> list[NameChange]:
        return [change for change in self._pending if any(edit[0] is directory for edit in change.edits)]

    def _make_durable(self, changes: list[NameChange]) -> None:
        """Apply changes to the durable names, each after those that it requires."""
        todo = changes[::-1]
        while todo:
            current = todo[-1]
            needed = [need for need in current.requires if not need.durable]
            if current.moved is not None and current.moved.anchored:
                needed += [need for need in current.above if not need.durable]
            if needed:
                todo.extend(needed)
                continue
            todo.pop()
            if not current.durable:
                self._apply_durably(current)
        for change in self._pending:
            if change.durable:
                for _, _, node in change.edits:
                    if node is not None:
                        node.anchored = True
        self._pending = [change for change in self._pending if not change.durable]

    def _apply_durably(self, change: NameChange) -> None:
        change.durable = True
        for directory, name, node in change.edits:
            _set(directory.durable, name, node)
            if directory.newest.get(name) is change:
                del directory.newest[name]
            if isinstance(node, Directory) and node.creation is change:
                node.creation = None
        if self._last_move is change:
            self._last_move = None
        # A durable change holds no other back, and long chains of changes must not be kept in memory.
        change.requires, change.within, change.above = [], [], []


def _creations_above(directory: Directory | None) -> list[NameChange]:
    found: list[NameChange] = []
    while directory is not None:
        if directory.creation is not None:
            found.append(directory.creation)
        directory = directory.parent
    return found


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        del names[name]
    else:
        names[name] = node


def _walk(directory: Directory, path: str, *, durable: bool) -> Iterator[tuple[str, SimInode]]:
    for name, node in sorted((directory.durable if durable else directory.live).items()):
        if isinstance(node, Directory):
            yield from _walk(node, f"{path}/{name}", durable=durable)
        else:
            yield f"{path}/{name}", node


def normal(path: str) -> str:
    """The path from the root, without doubled or trailing slashes. Relative paths begin at the root."""
    return posixpath.normpath("/" + path.lstrip("/"))


def split(path: str) -> list[str]:
    if not path:
        raise os_error(errno.ENOENT, path)
    return [part for part in normal(path).split("/") if part]


def os_error(number: int, path: str, target: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path, None, target)
