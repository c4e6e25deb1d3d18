"""The memory that the metadata of classic members take, over all groups of a broker.

A member's metadata stay as long as it does, also when its connection is gone, and only those of the protocol
that its group selects have ever to fit in a record. So what is large is counted, and refused beyond a limit;
what is small, as nearly all are, is always let in.

Invariant: `held_bytes` is the sum of what members hold that exist.
"""

from __future__ import annotations

from typing import Final
from weakref import ref

from ottla.coordinator.group.classic.classic_group import ClassicGroupMember, Protocols

# Metadata up to this are not counted.
SMALL_BYTES: Final = 4 * 1024


def size_of(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class MemberMemory:
    """What large members hold, until they are gone."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: Final[dict[ref[ClassicGroupMember], int]] = {}

    def may_hold(self, protocols: Protocols, member: ClassicGroupMember | None = None) -> bool:
        """Whether a new member, or this one instead of what it has, may bring these."""
        size = size_of(protocols)
        if size <= SMALL_BYTES:
            return True
        known = 0 if member is None else self._held.get(ref(member), 0)
        return self.held_bytes - known + size <= self.limit_bytes

    def hold(self, member: ClassicGroupMember) -> None:
        """Count what a member has now."""
        self._release(ref(member))
        size = size_of(member.protocols)
        if size > SMALL_BYTES:
            self._held[ref(member, self._release)] = size
            self.held_bytes += size

    def _release(self, member: ref[ClassicGroupMember]) -> None:
        self.held_bytes -= self._held.pop(member, 0)
        assert self.held_bytes >= 0, self.held_bytes
