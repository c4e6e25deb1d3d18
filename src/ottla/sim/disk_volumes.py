"""Room on a simulated disk: how much there is, and on which of its volumes a path lies."""

from __future__ import annotations

from ottla.sim.disk_tree import SimInode, Tree, normal

__all__ = ["Volumes"]


class _Volume:
    __slots__ = ("capacity_bytes", "used_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0


class Volumes:
    """A file counts on the volume that it was made on, by its allocated blocks, until its last name and its
    last handle are gone.
    """

    __slots__ = ("_by_prefix",)

    def __init__(self, capacity_bytes: int) -> None:
        self._by_prefix = {"": _Volume(capacity_bytes)}

    def empty_copy(self) -> Volumes:
        other = Volumes(0)
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
        # A file that had lost its name when the limit was set is not counted, but still given back.
        volume.used_bytes = max(volume.used_bytes + size_bytes, 0)

    def recount(self, tree: Tree) -> None:
        """Begin anew: after a crash, or when a limit has changed."""
        for volume in self._by_prefix.values():
            volume.used_bytes = 0
        for path, inode in tree.files():
            inode.volume = self.of(path)
            self.charge(inode, inode.live.allocated_bytes)
