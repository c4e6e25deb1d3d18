"""What can be done to a cluster beyond what any machine can suffer: restarts, bad disks, and clients that die
or fall asleep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from ottla.sim.cluster.checker import ClusterChecker
from ottla.sim.cluster.disks import BadDisks
from ottla.sim.cluster.member import ClusterMember
from ottla.sim.nemesis import Nemesis, NemesisConfig
from ottla.sim.world import Machine, World

__all__ = ["Harm"]


class Harm:
    def __init__(
        self,
        world: World,
        config: NemesisConfig,
        members: Sequence[ClusterMember],
        checker: ClusterChecker,
        *,
        synced: bool,
        directories: Sequence[str],
    ) -> None:
        self._world = world
        self._members = {member.machine.name: member for member in members}
        self._checker = checker
        self._synced = synced
        self._disks = BadDisks(world, self._members, directories, self._stop)
        self._rolling = False
        self.clients: list[Machine] = []
        deeds: Mapping[str, Callable[[Machine], None]] = {
            "stop and start": self._restart,
            "rolling restart": lambda _: self._roll(),
            "kill a client": lambda _: self._kill_client(),
            "pause a client": lambda _: self._pause_client(),
            **self._disks.deeds,
        }
        self.nemesis = Nemesis(
            world,
            config,
            lambda: [member.machine for member in members],
            may_end=self._may_end,
            more=deeds,
        )
        self._disks.nemesis = self.nemesis

    async def run(self, seconds: float) -> None:
        """Do harm for so long."""
        self._spawn(self._disks.operate(), "operator")
        await self.nemesis.run(seconds)

    def stop(self) -> None:
        """Take everything back."""
        self._disks.heal()
        self.nemesis.stop()

    def _spawn(self, what: Coroutine[Any, Any, None], name: str) -> None:
        loop = self._world.loop
        loop.create_task(what, name=name, context=loop.world.context.copy())

    def _may_end(self, machine: Machine, power_loss: bool) -> bool:
        member = self._members[machine.name]
        if self._synced:
            return True
        for each in self._members.values():
            each.look_at_metadata()
        if not self._checker.may_end(member.id, power_loss=power_loss):
            return False
        self._checker.ended(member.id, power_loss=power_loss)
        return True

    def _stop(self, member: ClusterMember) -> bool:
        """Ask a node to stop and start again. It hands over to whoever is in sync as far as the controller
        knows, and they may have lost their power a moment ago: so that, too, must leave somebody.
        """
        may = member.is_awake and self._may_end(member.machine, power_loss=False)
        if may:
            member.restart()
        return may

    def _restart(self, machine: Machine) -> None:
        member = self._members[machine.name]
        if member.is_ready and self._stop(member):
            self.nemesis.did("stop and start", machine.name)

    def _roll(self) -> None:
        if not self._rolling:
            self._rolling = True
            self.nemesis.did("rolling restart")
            self._spawn(self._roll_all(), "rolling restart")

    async def _roll_all(self) -> None:
        """One after the other, each once the one before is back, or has not come back for long."""
        for member in self._members.values():
            lives = member.machine.lives
            for _ in range(40):
                if self._stop(member):
                    break
                await asyncio.sleep(0.25)
            for _ in range(40):
                await asyncio.sleep(0.25)
                if member.machine.lives > lives and member.is_ready:
                    break
        self._rolling = False

    def _kill_client(self) -> None:
        up = [machine for machine in self.clients if machine.is_up]
        if up:
            machine = self._world.random.choice(up)
            self.nemesis.did("kill a client", machine.name)
            machine.kill(power_loss=self._world.random.random() < 0.3)
            self.nemesis.later(lambda: None if machine.is_up else machine.boot())

    def _pause_client(self) -> None:
        up = [machine for machine in self.clients if machine.process is not None]
        if up:
            machine = self._world.random.choice(up)
            self.nemesis.did("pause a client", machine.name)
            machine.pause()
            self.nemesis.later(machine.resume)
