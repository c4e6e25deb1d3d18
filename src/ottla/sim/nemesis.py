"""The nemesis: draws faults, injects them, removes them after a while, and counts them.

The faults of a run are numbered, and each has random numbers of its own: what one does, and when, does not
depend on whether those before were injected. So a run can be repeated with some of its faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ottla.sim.world import SimMachine, World


@dataclass(frozen=True, slots=True)
class NemesisConfig:
    """The kinds of faults to inject, how often on average, and for how long at most."""

    interval_s: float = 1.0
    longest_s: float = 6.0
    # How many machines may be down at the same time; None: any number.
    max_down: int | None = None
    # How likely a machine is to be killed right after it has done something that matters, by what it did.
    ambush: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=lambda: FAULTS)
    # How often a fault is of a kind that the run has not had: a short run has many kinds then.
    new: float = 0.0
    # The numbers of the faults to inject, of those that are drawn; None: all. `AMBUSHES` stands for ambushes.
    only: tuple[int, ...] | None = None


AMBUSHES: Final = 0

# A fault with such a weight is to happen all the time, and is never one that the run has had enough of.
_ALL_THE_TIME: Final = 20

# How long a machine that was paused or cut off is not counted on.
_STEADY_AFTER_S: Final = 1.0

FAULTS: Mapping[str, int] = {
    "kill a process": 4,
    "kill it after some steps": 4,
    "power loss": 4,
    "power loss inside a write": 4,
    "kill all": 1,
    "pause a process": 3,
    "cut one link": 3,
    "cut one direction": 3,
    "isolate a machine": 3,
    "split the network": 3,
    "slow link": 2,
    "slow disk": 2,
    "sever connections": 3,
    "clock jump": 2,
}


class Nemesis:
    """Injects faults into the machines that `targets` returns.

    `may_end` decides whether a machine may lose its power, or its process may be killed; if it forbids the
    former, the latter is tried. `may_fall_silent` decides whether a machine may be paused or cut off. `more`
    are faults beyond those of any machine.
    """

    def __init__(
        self,
        world: World,
        config: NemesisConfig,
        targets: Callable[[], Sequence[SimMachine]],
        *,
        may_end: Callable[[SimMachine, bool], bool] = lambda _machine, _power_loss: True,
        may_fall_silent: Callable[[SimMachine], bool] = lambda _machine: True,
        more: Mapping[str, Callable[[SimMachine], None]] | None = None,
    ) -> None:
        self._world = world
        self._config = config
        self._targets = targets
        self._may_end = may_end
        self._may_fall_silent = may_fall_silent
        # How many pauses and broken links a machine has now, and when the last one ended.
        self._disturbances: Counter[str] = Counter()
        self._disturbed_until: dict[str, float] = {}
        # The random numbers of the fault that is injected now.
        self.random = Random(f"{world.seed}/nemesis")
        self._ambushes = Random(f"{world.seed}/ambushes")
        # How many faults were drawn.
        self.drawn = 0
        self._stopped = False
        self._faults: Mapping[str, Callable[[SimMachine], None]] = {
            "kill a process": lambda machine: self._kill(machine, power_loss=False),
            "kill it after some steps": self._kill_later,
            "power loss": lambda machine: self._kill(machine, power_loss=True),
            "power loss inside a write": self._crash_disk,
            "kill all": lambda _: self._kill_all(),
            "power loss everywhere": lambda _: self._lose_all_power(),
            "pause a process": self._pause,
            "cut one link": lambda machine: self._cut(machine, self._other(machine), both=True),
            "cut one direction": lambda machine: self._cut(machine, self._other(machine), both=False),
            "isolate a machine": self._isolate,
            "split the network": lambda _: self._split(),
            "slow link": self._slow_link,
            "slow disk": self._slow_disk,
            "sever connections": lambda _: self._sever(),
            "clock jump": self._clock_jump,
            "clock drift": self._clock_drift,
            **(more or {}),
        }

    def _ambush(self, what: str, machine: SimMachine) -> None:
        """Kill a machine right after it has done something, and boot it again soon."""
        process = machine.process
        if process is None or self._ambushes.random() >= self._config.ambush.get(what, 0.0):
            return
        power_loss = self._ambushes.random() < 0.7

        def strike() -> None:
            if machine.process is not process or not self._may_go_down() or self._stopped:
                return
            if self._end(machine, f"ambush: {what}", power_loss=power_loss):
                delay = self._ambushes.random() * 0.3
                loop.call_later(delay, reboot, context=loop.world.context)

        def reboot() -> None:
            if not machine.is_up:
                machine.boot()

        loop = self._world.loop
        loop.call_later(self._ambushes.random() * 0.02, strike, context=loop.world.context)

    async def run(self, duration_s: float) -> None:
        """Inject faults for this long."""
        loop, only = self._world.loop, self._config.only
        if only is None or AMBUSHES in only:
            self._world.on_event = self._ambush
        end = loop.time() + duration_s
        names = [name for name, weight in self._config.weights.items() for _ in range(weight)]
        schedule = Random(f"{self._world.seed}/faults")
        had: set[str] = set()
        while True:
            await asyncio.sleep(schedule.expovariate(1.0 / self._config.interval_s))
            if loop.time() >= end:
                return
            self.drawn += 1
            new = [name for name in names if name not in had] if self._config.new else []
            name = schedule.choice(new if new and schedule.random() < self._config.new else names)
            if self._config.weights[name] < _ALL_THE_TIME:
                had.add(name)
            place = schedule.random()
            targets = self._targets()
            # A fault of a feature that was taken away has nothing to happen to.
            inject = self._faults.get(name)
            if targets and inject is not None and (only is None or self.drawn in only):
                self.random = Random(f"{self._world.seed}/fault/{self.drawn}")
                inject(targets[int(place * len(targets))])

    def stop(self) -> None:
        """Remove all faults: restore all links, resume and boot all machines."""
        world = self._world
        world.on_event = None
        world.trace.add("nemesis", "stops: all faults are removed")
        world.fabric.heal()
        self._stopped = True
        for machine in world.machines.values():
            machine.disk.spare()
            machine.resume()
            if machine.pool is not None:
                machine.pool.slowness_ms = 3.0
            if not machine.is_up:
                machine.boot()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    # Faults

    def count(self, what: str, detail: str = "") -> None:
        """Count a fault and add it to the trace."""
        self._world.coverage[what] += 1
        self._world.trace.add("nemesis", f"{what} {detail}".rstrip())

    def undo_later(self, undo: Callable[[], None]) -> None:
        """Remove a fault after a while."""
        self._world.loop.call_later(
            self.random.random() * self._config.longest_s, undo, context=self._world.loop.world.context
        )

    def _may_go_down(self) -> bool:
        limit = self._config.max_down
        down = sum(not machine.is_up for machine in self._world.machines.values())
        return limit is None or down < limit

    def _end(self, machine: SimMachine, what: str, *, power_loss: bool) -> bool:
        """End a process in this way, or in one that loses less; False if neither is allowed."""
        if power_loss and not self._may_end(machine, True):
            power_loss = False
        if not power_loss and not self._may_end(machine, False):
            return False
        self.count(what if power_loss or what != "power loss" else "kill a process", machine.name)
        machine.kill(power_loss=power_loss)
        return True

    def _reboot_later(self, machine: SimMachine) -> None:
        self.undo_later(lambda: None if machine.is_up else machine.boot())

    def _kill(self, machine: SimMachine, *, power_loss: bool) -> None:
        what = "power loss" if power_loss else "kill a process"
        if machine.is_up and self._may_go_down() and self._end(machine, what, power_loss=power_loss):
            self._reboot_later(machine)

    def _kill_later(self, machine: SimMachine) -> None:
        """Kill a process after a random number of its steps."""
        process = machine.process
        if process is None or not self._may_go_down():
            return
        last = process.steps + self.random.randrange(1, 200)
        power_loss = self.random.random() < 0.5
        before = process.after_step

        def after_step() -> None:
            if before is not None:
                before()
            if process.steps >= last and machine.process is process and not self._stopped:
                process.after_step = before
                if self._end(machine, "kill it after some steps", power_loss=power_loss):
                    self._reboot_later(machine)

        process.after_step = after_step

    def _crash_disk(self, machine: SimMachine) -> None:
        if machine.is_up and self._may_go_down() and self._may_end(machine, True):
            machine.disk.crash_after(self.random.randrange(0, 12))
            machine.on_power_loss = lambda: self._reboot_later(machine)
            self._world.trace.add("nemesis", f"power loss inside a write, soon: {machine.name}")

    def _kill_all(self) -> None:
        if self._config.max_down is not None:
            return
        self.count("kill all")
        power_loss = self.random.random() < 0.5
        for machine in self._targets():
            if machine.is_up and self._end(machine, "killed with all", power_loss=power_loss):
                self._reboot_later(machine)

    def _lose_all_power(self) -> None:
        """Have all machines lose their power in the same moment, as in a data center without any."""
        self.count("power loss everywhere")
        for machine in self._targets():
            if machine.is_up and self._end(machine, "lost power with all", power_loss=True):
                self._reboot_later(machine)

    def is_steady(self, machine: SimMachine) -> bool:
        """Whether it is neither paused nor cut off from another target, and has not been for a while."""
        calm_s = self._world.loop.time() - self._disturbed_until.get(machine.name, -_STEADY_AFTER_S)
        return not self._disturbances[machine.name] and calm_s >= _STEADY_AFTER_S

    def _disturb(self, *machines: SimMachine) -> Callable[[], None]:
        """Count a disturbance of these machines, until the returned function is called."""
        names = [machine.name for machine in machines]
        self._disturbances.update(names)

        def undo() -> None:
            self._disturbances.subtract(names)
            self._disturbed_until.update(dict.fromkeys(names, self._world.loop.time()))

        return undo

    def _pause(self, machine: SimMachine) -> None:
        process = machine.process
        if process is not None and not process.paused and self._may_fall_silent(machine):
            self.count("pause a process", machine.name)
            machine.pause()
            calm = self._disturb(machine)

            def undo() -> None:
                machine.resume()
                calm()

            self.undo_later(undo)

    def _other(self, machine: SimMachine) -> SimMachine:
        others = [each for each in self._targets() if each is not machine]
        return self.random.choice(others) if others else machine

    def _cut(self, one: SimMachine, other: SimMachine, *, both: bool) -> None:
        if one is other or not (self._may_fall_silent(one) and self._may_fall_silent(other)):
            return
        self.count("cut one link" if both else "cut one direction", f"{one.name} {other.name}")
        pairs = [(one.name, other.name)] + ([(other.name, one.name)] if both else [])
        self._cut_pairs(pairs, self._disturb(one, other))

    def _cut_pairs(self, pairs: Sequence[tuple[str, str]], calm: Callable[[], None]) -> None:
        fabric = self._world.fabric
        for pair in pairs:
            fabric.cut(*pair)

        def undo() -> None:
            for pair in pairs:
                fabric.mend(*pair)
            calm()

        self.undo_later(undo)

    def _isolate(self, machine: SimMachine) -> None:
        others = [each.name for each in self._world.machines.values() if each is not machine]
        if not self._may_fall_silent(machine):
            return
        self.count("isolate a machine", machine.name)
        pairs = [pair for name in others for pair in ((name, machine.name), (machine.name, name))]
        self._cut_pairs(pairs, self._disturb(machine))

    def _split(self) -> None:
        targets = self._targets()
        names = [machine.name for machine in targets]
        self.random.shuffle(names)
        at = self.random.randrange(0, len(names) + 1)
        left, right = names[:at], names[at:]
        if left and right and all(map(self._may_fall_silent, targets)):
            self.count("split the network", f"{' '.join(left)} | {' '.join(right)}")
            pairs = [pair for a in left for b in right for pair in ((a, b), (b, a))]
            self._cut_pairs(pairs, self._disturb(*targets))

    def _slow_link(self, machine: SimMachine) -> None:
        other = self._other(machine)
        if other is machine or not (self._may_fall_silent(machine) and self._may_fall_silent(other)):
            return
        delay_ms = self.random.choice((50.0, 300.0, 1500.0))
        self.count("slow link", f"{machine.name} {other.name} {delay_ms:.0f} ms")
        fabric, pair = self._world.fabric, (machine.name, other.name)
        fabric.slow(*pair, delay_ms)
        calm = self._disturb(machine, other)

        def undo() -> None:
            fabric.mend(*pair)
            calm()

        self.undo_later(undo)

    def _slow_disk(self, machine: SimMachine) -> None:
        pool = machine.pool
        if pool is None:
            return
        pool.slowness_ms = self.random.choice((50.0, 400.0, 2500.0))
        self.count("slow disk", f"{machine.name} {pool.slowness_ms:.0f} ms")

        def undo() -> None:
            pool.slowness_ms = 3.0

        self.undo_later(undo)

    def _sever(self) -> None:
        connections = self._world.fabric.connections()
        if connections:
            chosen = self.random.sample(connections, self.random.randrange(1, len(connections) + 1))
            self.count("sever connections", f"{len(chosen)} of {len(connections)}")
            for connection in chosen:
                self._world.fabric.sever(connection)

    def _clock_jump(self, machine: SimMachine) -> None:
        jump_ms = self.random.choice((-3_600_000, -5_000, 5_000, 86_400_000))
        self.count("clock jump", f"{machine.name} {jump_ms} ms")
        machine.clock.jump_ms(jump_ms)

    def _clock_drift(self, machine: SimMachine) -> None:
        before = machine.clock.rate
        machine.clock.rate = self.random.choice((0.7, 0.9, 1.1, 1.4))
        self.count("clock drift", f"{machine.name} x{machine.clock.rate}")

        def undo() -> None:
            machine.clock.rate = before

        self.undo_later(undo)
