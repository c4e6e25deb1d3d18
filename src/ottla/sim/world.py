"""Machines on a simulated network, from one seed: boot, kill, pause, power loss.

A machine keeps its disk and its clock when it boots again. A process sees nothing of the simulator but the
`Runtime` that it is booted with, so the code that runs here is the code that runs in production.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.runtime import invariants
from ottla.runtime.object_store import ObjectStore, ObjectStoreSettings
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.sim.clock import LoopClock
from ottla.sim.disk import SimDisk
from ottla.sim.loop import Process, SimLoop
from ottla.sim.network import Fabric, SimNetwork
from ottla.sim.trace import Trace, TraceHandler

T = TypeVar("T")
Main = Callable[[Runtime], Coroutine[Any, Any, None]]


class SimPool:
    """The pool of a simulated process: a call takes virtual time, up to `slowness_ms` before and after it
    runs.

    The call itself runs at one moment. A process that is killed before that moment has not made the call.
    """

    def __init__(self, seed: str, *, slowness_ms: float = 3.0) -> None:
        self._random = random.Random(f"{seed}/pool")
        self.slowness_ms = slowness_ms

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(self._random.random() * self.slowness_ms / 1000)
        result = fn(*args)
        await asyncio.sleep(self._random.random() * self.slowness_ms / 1000)
        return result

    def close(self) -> None:
        """Do nothing: there are no threads."""


class SimMachine:
    """A machine of the simulated network: its disk, its clock, and the process that runs on it."""

    def __init__(self, world: World, name: str, main: Main) -> None:
        self._world = world
        self.name = name
        self.main = main
        clock = random.Random(f"{world.seed}/{name}/clock")  # the same, whatever other machines there are
        rate = 1.0 + (clock.random() - 0.5) * 0.04
        wall_ms = 1_700_000_000_000 + clock.randrange(-3_600_000, 3_600_000)
        self.clock = LoopClock(lambda: world.loop.now_ns, wall_ms=wall_ms, rate=rate)
        self.disk = SimDisk(f"{world.seed}/{name}", clock=self.clock, trace_limit=1)
        self.process: Process | None = None
        self.pool: SimPool | None = None
        self.boots = 0
        # Called when the power is lost inside a write.
        self.on_power_loss: Callable[[], None] | None = None
        # Called before its process ends, so that a checker can read its state once more.
        self.on_end: Callable[[], None] | None = None

    @property
    def is_up(self) -> bool:
        return self.process is not None and not self.process.dead

    def boot(self) -> None:
        assert not self.is_up, f"{self.name} runs already"
        self.boots += 1
        world, seed = self._world, f"{self._world.seed}/{self.name}/{self.boots}"
        process = self.process = Process(self.name)
        process.after_step = self._after_step
        world.loop.add(process)
        world.fabric.bring_up(world.fabric.host(self.name), process)
        self.pool = SimPool(seed)
        network = SimNetwork(world.fabric, self.name, process)
        runtime = Runtime(
            self.clock,
            SeededRandom(seed),
            self.disk,
            self.pool,
            network,
            None if world.zookeeper is None else world.zookeeper(network),
            world.object_store,
        )
        world.trace.add(self.name, f"boots, number {self.boots}")
        world.loop.spawn(process, self._run(runtime), f"main of {self.name}")

    async def _run(self, runtime: Runtime) -> None:
        process = self.process
        try:
            await self.main(runtime)
        except (Exception, asyncio.CancelledError) as error:
            if process is not None and not process.dead:  # a killed process may fail as it likes
                self._world.report_failure(self.name, error)

    def _after_step(self) -> None:
        if self.disk.is_down:
            self._world.coverage["power loss inside a write"] += 1
            self.kill(power_loss=True)
            if self.on_power_loss is not None:
                self.on_power_loss()

    def kill(self, *, power_loss: bool) -> None:
        """End its process at this moment; with `power_loss` its disk may lose what was not synced."""
        if self.process is None:
            return
        if self.on_end is not None:
            self.on_end()
        process, self.process = self.process, None
        world = self._world
        world.trace.add(self.name, "loses power" if power_loss else "is killed")
        world.fabric.take_down(world.fabric.host(self.name), silently=power_loss)
        # Before its coroutines are closed, so that their clean-up reaches no file. A disk that has failed
        # to sync is remounted when it is repaired, and loses its page cache with that.
        if power_loss or self.disk.cache_lies:
            self.disk.crash()
        else:
            self.disk.kill()
        world.log_handler.is_muted = True
        world.loop.kill(process)
        world.log_handler.is_muted = False

    def pause(self) -> None:
        if self.process is not None:
            self._world.trace.add(self.name, "is paused")
            self.process.paused = True

    def resume(self) -> None:
        if self.process is not None and self.process.paused:
            self._world.trace.add(self.name, "goes on")
            self.process.paused = False


class World:
    """One run of the simulator: its machines, their network, the trace and the violations."""

    def __init__(self, seed: int | str, *, max_steps: int = 20_000_000) -> None:
        invariants.check_thoroughly()
        self.seed = seed
        self.loop = SimLoop(seed, max_steps=max_steps)  # type: ignore[abstract]  # no sockets, no signals
        self.fabric = Fabric(self.loop, seed)
        self.random = random.Random(f"{seed}/world")
        self.trace = Trace(self.loop.time)
        self.machines: dict[str, SimMachine] = {}
        # Gives a machine what it opens sessions with ZooKeeper with; None where there is none.
        self.zookeeper: Callable[[SimNetwork], Any] | None = None
        # Opens the object store that machines share; None where there is none.
        self.object_store: Callable[[ObjectStoreSettings], ObjectStore] | None = None
        # How often each kind of fault was injected.
        self.coverage: Counter[str] = Counter()
        self.log_handler = TraceHandler(self.trace)
        # Called with what a machine has just done, for faults that strike at such moments.
        self.on_event: Callable[[str, SimMachine], None] | None = None
        # Of the whole run once it is over: its trace, steps, messages and what was written to disks.
        self.fingerprint = ""
        # The guarantees that were broken: the first one is the cause.
        self.violations: list[str] = []

    def machine(self, name: str, main: Main) -> SimMachine:
        """Add a machine, without booting it."""
        machine = self.machines[name] = SimMachine(self, name, main)
        self.fabric.host(name)
        return machine

    def event(self, what: str, machine: SimMachine) -> None:
        if self.on_event is not None:
            self.on_event(what, machine)

    def report_violation(self, text: str) -> None:
        """Record that a guarantee is broken, and end the run."""
        self.trace.add("checker", f"VIOLATION: {text}")
        self.violations.append(text)
        self.loop.stop()

    def report_failure(self, who: str, error: BaseException) -> None:
        """Record that a process failed in a way that no fault explains."""
        self.report_violation(f"{who} failed: {''.join(traceback.format_exception(error))}")

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run to the end of `main` or to the first violation."""
        handler = self.log_handler
        logger = logging.getLogger("ottla")
        level, propagate = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        # Garbage is collected between steps only, at the same ones in every run: the clean-up of a killed
        # coroutine must not run at other moments in another run, and its errors do not matter.
        collects = gc.isenabled()
        gc.disable()
        # The collection at the end walks what is of this run. What was there before it is frozen, and thawed
        # afterwards unless the caller keeps frozen objects of its own.
        thaws = gc.get_freeze_count() == 0
        gc.freeze()
        unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            task = self.loop.create_task(main, name="world")
            task.add_done_callback(lambda _: self.loop.stop())
            self.loop.run_forever()
            if task.done() and not task.cancelled() and task.exception() is not None and not self.violations:
                raise task.exception()  # type: ignore[misc]
            self._check_loop_errors()
        finally:
            self.trace.is_over = True
            self.fingerprint = self._fingerprint()
            with self.loop.running():
                for machine in self.machines.values():
                    machine.kill(power_loss=True)
                self.loop.close()
                gc.collect()
            if thaws:
                gc.unfreeze()
            if collects:
                gc.enable()
            sys.unraisablehook = unraisable
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate

    def _fingerprint(self) -> str:
        disks = zlib.crc32(repr([machine.disk.digest for machine in self.machines.values()]).encode())
        return f"{self.trace.fingerprint}-{self.loop.digest:08x}-{self.fabric.digest:08x}-{disks:08x}"

    def _check_loop_errors(self) -> None:
        for who, context in self.loop.errors:
            error = context.get("exception")
            text = "".join(traceback.format_exception(error)) if error is not None else ""
            self.violations.append(f"{who}: {context.get('message')}\n{text}")
