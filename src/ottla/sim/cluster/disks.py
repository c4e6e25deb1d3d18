"""Disks that fill up, fail as a whole or fail once; and the operator who starts a node again where one of its
directories went offline and the disk is well by now.

A node that found no room must go on by itself once there is some. One that met an error may only end, or take
the directory offline, until somebody has looked at the disk.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence

from ottla.sim.cluster.member import ClusterMember
from ottla.sim.disk import Op
from ottla.sim.nemesis import Nemesis
from ottla.sim.world import Machine, World

__all__ = ["BadDisks"]

_WHOLE_DISK_BYTES = 1 << 50
# How much room is left on a disk that is about to be full.
_ROOM_BYTES = (0, 4_096, 40_000)
_FAILING_ONCE = (Op.READ, Op.WRITE, Op.SYNC, Op.CREATE, Op.RENAME, Op.SYNC_DIR)
_OPERATOR_LOOKS_EVERY_S = 0.5
# How long after the last harm the operator still looks: what failed at the last moment is told a bit later.
_OPERATOR_STAYS_S = 5.0


class BadDisks:
    """``restart`` stops a node and starts it again, if that may be."""

    def __init__(
        self,
        world: World,
        members: Mapping[str, ClusterMember],
        directories: Sequence[str],
        restart: Callable[[ClusterMember], bool],
    ) -> None:
        self._world = world
        self._members = members
        self._directories = directories
        self._restart = restart
        self._healed_at: float | None = None
        self.nemesis: Nemesis  # set by who makes both

    @property
    def deeds(self) -> Mapping[str, Callable[[Machine], None]]:
        return {"full disk": self._fill, "failing directory": self._break, "disk error": self._fail_once}

    def heal(self) -> None:
        """All disks are well and have room from now on."""
        for member in self._members.values():
            member.machine.disk.heal()
            member.machine.disk.limit(_WHOLE_DISK_BYTES)
            member.troubles.clear()
        self._healed_at = self._world.loop.time()

    async def operate(self) -> None:
        """The operator at work."""
        while self._healed_at is None or self._world.loop.time() < self._healed_at + _OPERATOR_STAYS_S:
            await asyncio.sleep(_OPERATOR_LOOKS_EVERY_S)
            for member in self._members.values():
                if member.needs_operator and self._restart(member):
                    self._world.coverage["started again after a disk failed"] += 1

    def _fill(self, machine: Machine) -> None:
        disk, random = machine.disk, self._world.random
        usage = disk.usage("/")
        room = random.randrange(0, random.choice(_ROOM_BYTES) + 1)
        disk.limit(usage.total_bytes - usage.free_bytes + room)
        self._trouble(machine, "full disk", f"{room} bytes are left", lambda: disk.limit(_WHOLE_DISK_BYTES))

    def _break(self, machine: Machine) -> None:
        path = self._world.random.choice(self._directories)
        fault = machine.disk.fail(errno.EIO, prefix=path, times=None)
        self._trouble(machine, "failing directory", path, lambda: machine.disk.heal(fault))

    def _fail_once(self, machine: Machine) -> None:
        random = self._world.random
        path, op = random.choice(self._directories), random.choice(_FAILING_ONCE)
        fault = machine.disk.fail(errno.EIO, prefix=path, ops=[op], skip=random.randrange(0, 20))
        self._trouble(machine, "disk error", f"soon, {op} in {path}", lambda: machine.disk.heal(fault))

    def _trouble(self, machine: Machine, what: str, detail: str, undo: Callable[[], None]) -> None:
        end = self._members[machine.name].trouble()
        self.nemesis.did(what, f"{machine.name} {detail}")

        def undone() -> None:
            undo()
            self._world.trace.add("nemesis", f"{what} no more: {machine.name}")
            end()

        self.nemesis.later(undone)
