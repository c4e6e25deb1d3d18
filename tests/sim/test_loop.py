"""The simulated loop and network: virtual time, processes that end for good, bytes in TCP's order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.runtime.network import HostNotFound
from ottla.runtime.runtime import Runtime
from ottla.sim.loop import SimDeadlock
from ottla.sim.network import SimNetwork
from ottla.sim.world import SimMachine, World

Body = Callable[[], Coroutine[Any, Any, None]]


async def forever(_: Runtime) -> None:
    await asyncio.get_running_loop().create_future()


def live(world: World, body: Body) -> World:
    world.run(body())
    assert world.violations == []
    return world


class TestTime:
    def test_a_year_takes_no_time(self) -> None:
        world = World(1)

        async def body() -> None:
            await asyncio.sleep(365 * 24 * 3600)

        assert live(world, body).loop.time() == 365 * 24 * 3600

    def test_timers_fire_in_order_and_timeouts_work(self) -> None:
        world = World(1)
        seen: list[object] = []

        async def body() -> None:
            loop = asyncio.get_running_loop()
            for delay in (3.0, 1.0, 2.0):
                loop.call_later(delay, seen.append, delay)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.5):
                    await asyncio.sleep(10)
            seen.append("timeout")
            await asyncio.sleep(1)

        live(world, body)
        assert seen == [1.0, 2.0, "timeout", 3.0]

    def test_when_all_wait_for_ever_it_is_told(self) -> None:
        world = World(1)

        async def body() -> None:
            await asyncio.get_running_loop().create_future()

        with pytest.raises(SimDeadlock):
            world.run(body())


class TestProcesses:
    def machine(self, world: World, seen: list[str], *, name: str = "m") -> SimMachine:
        async def main(runtime: Runtime) -> None:
            try:
                for number in range(1000):
                    seen.append(f"{name}{number}")
                    await asyncio.sleep(1)
            finally:
                seen.append("cleaned up")
                with_disk = runtime.disk.exists("/")
                seen.append(f"disk {with_disk}")

        return world.machine(name, main)

    def test_a_killed_process_never_runs_again(self) -> None:
        world = World(1)
        seen: list[str] = []
        machine = self.machine(world, seen)

        async def body() -> None:
            machine.boot()
            await asyncio.sleep(2.5)
            machine.kill(power_loss=False)
            before = [entry for entry in seen if entry.startswith("m")]
            await asyncio.sleep(10)
            assert [entry for entry in seen if entry.startswith("m")] == before == ["m0", "m1", "m2"]

        live(world, body)

    @pytest.mark.parametrize("steps", [0, 1])
    def test_a_task_that_failed_right_before_the_kill_is_no_error_of_the_run(self, steps: int) -> None:
        """What waited for it was killed before it could look at the error."""
        world = World(1)
        failing: list[asyncio.Task[None]] = []

        async def fails() -> None:
            raise OSError("on purpose")

        async def main(_: Runtime) -> None:
            failing.append(asyncio.get_running_loop().create_task(fails()))
            await asyncio.wait(failing)

        machine = world.machine("one", main)

        async def body() -> None:
            machine.boot()
            process = machine.process
            assert process is not None

            def kill_it() -> None:
                nonlocal steps
                if failing and failing[0].done():
                    if steps:
                        steps -= 1
                        return
                    process.after_step = None
                    machine.kill(power_loss=False)
                    failing.clear()

            process.after_step = kill_it
            await asyncio.sleep(1)
            gc.collect()

        live(world, body)
        assert not machine.is_up

    def test_what_a_killed_process_had_not_begun_leaves_no_coroutine_behind(
        self, recwarn: pytest.WarningsRecorder
    ) -> None:
        world = World(1)

        async def outer(inner: Coroutine[Any, Any, None]) -> None:
            await inner

        async def start_and_end(runtime: Runtime) -> None:
            asyncio.ensure_future(outer(outer(forever(runtime))))  # noqa: RUF006 - the process ends first
            machine.kill(power_loss=False)
            await forever(runtime)

        machine = world.machine("m", start_and_end)

        async def body() -> None:
            machine.boot()
            await asyncio.sleep(1)

        live(world, body)
        gc.collect()
        assert [each for each in recwarn if "never awaited" in str(each.message)] == []

    def test_a_paused_process_goes_on_where_it_was(self) -> None:
        world = World(1)
        seen: list[str] = []
        machine = self.machine(world, seen)

        async def body() -> None:
            machine.boot()
            await asyncio.sleep(1.5)
            machine.pause()
            await asyncio.sleep(50)
            assert seen == ["m0", "m1"]
            machine.resume()
            await asyncio.sleep(0.1)
            assert seen == ["m0", "m1", "m2"]

        live(world, body)

    def test_what_was_not_synced_survives_a_kill_and_may_not_survive_a_power_loss(self) -> None:
        lost = 0
        for seed in range(20):
            world = World(seed)

            async def write(runtime: Runtime) -> None:
                file = runtime.disk.open("/f", create=True)
                file.pwrite(b"x", 0)
                await forever(runtime)

            machine = world.machine("m", write)

            async def body(machine: SimMachine = machine) -> None:
                machine.boot()
                await asyncio.sleep(1)
                machine.kill(power_loss=False)
                assert machine.disk.contents() == {"/f": b"x"}
                machine.disk.crash()

            live(world, body)
            lost += machine.disk.contents() != {"/f": b"x"}
        assert 0 < lost < 20

    def test_one_seed_one_history(self) -> None:
        def history(seed: int) -> list[str]:
            world = World(seed)
            seen: list[str] = []
            machines = [self.machine(world, seen, name=name) for name in "abc"]

            async def body() -> None:
                for machine in machines:
                    machine.boot()
                await asyncio.sleep(5)

            live(world, body)
            return seen

        assert history(1) == history(1)
        assert len({tuple(history(seed)) for seed in range(5)}) > 1


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


class Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = bytearray()
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class TestNetwork:
    def echo(self, world: World) -> SimMachine:
        async def main(runtime: Runtime) -> None:
            await runtime.network.listen(Echo, "", 7)
            await forever(runtime)

        return world.machine("echo", main)

    def client(self, world: World) -> SimNetwork:
        return SimNetwork(world.fabric, "client", world.loop.world)

    def talk(
        self, seed: int, body: Callable[[World, SimMachine, SimNetwork], Coroutine[Any, Any, None]]
    ) -> None:
        world = World(seed)
        machine = self.echo(world)
        machine.boot()
        live(world, lambda: body(world, machine, self.client(world)))

    @pytest.mark.parametrize("seed", range(5))
    def test_bytes_arrive_in_order(self, seed: int) -> None:
        async def body(world: World, machine: SimMachine, network: SimNetwork) -> None:
            await asyncio.sleep(0.1)
            transport, protocol = await network.connect(Collect, "echo", 7)
            sent = bytes(range(256)) * 40
            for at in range(0, len(sent), 100):
                transport.write(sent[at : at + 100])
            await asyncio.sleep(5)
            assert protocol.data == sent

        self.talk(seed, body)

    def test_who_is_not_there_refuses_and_who_does_not_exist_is_not_found(self) -> None:
        async def body(world: World, machine: SimMachine, network: SimNetwork) -> None:
            await asyncio.sleep(0.1)
            with pytest.raises(ConnectionRefusedError):
                await network.connect(Collect, "echo", 8)
            with pytest.raises(HostNotFound):
                await network.connect(Collect, "unknown", 7)
            machine.kill(power_loss=False)
            with pytest.raises(ConnectionRefusedError):
                await network.connect(Collect, "echo", 7)

        self.talk(1, body)

    def test_a_cut_link_holds_bytes_back_and_lets_them_through_when_it_is_whole(self) -> None:
        async def body(world: World, machine: SimMachine, network: SimNetwork) -> None:
            await asyncio.sleep(0.1)
            transport, protocol = await network.connect(Collect, "echo", 7)
            world.fabric.cut("client", "echo")
            transport.write(b"late")
            await asyncio.sleep(60)
            assert protocol.data == b""
            with pytest.raises(TimeoutError):
                await network.connect(Collect, "echo", 7, timeout_ms=1000)
            world.fabric.heal()
            await asyncio.sleep(1)
            assert protocol.data == b"late"

        self.talk(1, body)

    def test_one_direction_can_be_cut(self) -> None:
        async def body(world: World, machine: SimMachine, network: SimNetwork) -> None:
            await asyncio.sleep(0.1)
            transport, protocol = await network.connect(Collect, "echo", 7)
            world.fabric.cut("echo", "client")
            transport.write(b"heard and not answered")
            await asyncio.sleep(60)
            assert protocol.data == b""
            world.fabric.mend("echo", "client")
            await asyncio.sleep(1)
            assert protocol.data == b"heard and not answered"

        self.talk(1, body)

    def test_a_killed_process_resets_its_connections(self) -> None:
        async def body(world: World, machine: SimMachine, network: SimNetwork) -> None:
            await asyncio.sleep(0.1)
            _, protocol = await network.connect(Collect, "echo", 7)
            machine.kill(power_loss=False)
            await asyncio.sleep(1)
            assert isinstance(protocol.lost[0], ConnectionResetError)

        self.talk(1, body)

    def test_a_machine_without_power_says_nothing_until_it_is_back(self) -> None:
        async def body(world: World, machine: SimMachine, network: SimNetwork) -> None:
            await asyncio.sleep(0.1)
            transport, protocol = await network.connect(Collect, "echo", 7)
            machine.kill(power_loss=True)
            transport.write(b"are you there?")
            await asyncio.sleep(60)
            assert protocol.lost == []
            machine.boot()
            transport.write(b"and now?")
            await asyncio.sleep(1)
            assert isinstance(protocol.lost[0], ConnectionResetError)

        self.talk(1, body)

    def test_a_severed_connection_ends_on_both_sides(self) -> None:
        async def body(world: World, machine: SimMachine, network: SimNetwork) -> None:
            await asyncio.sleep(0.1)
            _, protocol = await network.connect(Collect, "echo", 7)
            [connection] = world.fabric.connections()
            world.fabric.sever(connection)
            await asyncio.sleep(1)
            assert len(protocol.lost) == 1
            assert world.fabric.connections() == []

        self.talk(1, body)

    def test_a_port_belongs_to_one(self) -> None:
        async def body(world: World, machine: SimMachine, network: SimNetwork) -> None:
            listener = await network.listen(Echo, "", 0)
            with pytest.raises(OSError, match="in use"):
                await network.listen(Echo, "", listener.port)
            await listener.close()
            await network.listen(Echo, "", listener.port)

        self.talk(1, body)
