"""The event loop, signals and the facts of the process; and that importing the runtime stays cheap."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys

import pytest

from ottla.runtime import loop, process
from ottla.runtime.pool import InlinePool
from ottla.runtime.runtime import Runtime

DEADLINE_S = 60


def test_the_loop_is_uvloop_where_it_is_installed() -> None:
    async def module_of_the_loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert loop.run(module_of_the_loop()).startswith("uvloop")


def test_the_loop_is_asyncios_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def module_of_the_loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert loop.run(module_of_the_loop()).startswith("asyncio")


def test_what_main_leaves_running_is_cancelled() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("cancelled")

    async def main() -> int:
        left_behind = asyncio.ensure_future(forever())
        await asyncio.sleep(0)
        assert not left_behind.done()
        return 7

    assert loop.run(main()) == 7
    assert ended == ["cancelled"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_termination_signals_reach_the_loop_and_only_while_asked_for(name: str) -> None:
    number = getattr(signal, name)
    # A run in the background may have been started with the signal ignored.
    before = signal.signal(number, signal.SIG_DFL)

    async def main() -> str:
        arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        undo = process.on_termination(arrived.set_result)
        os.kill(os.getpid(), number)
        async with asyncio.timeout(DEADLINE_S):
            await arrived
        undo()
        return arrived.result()

    assert loop.run(main()) == name
    # After the handler is removed, the system's own handling applies again.
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)
    signal.signal(number, before)


def test_the_facts_of_the_process() -> None:
    assert process.pid() == os.getpid()
    assert 1 <= process.cpu_count() <= (os.cpu_count() or 1)
    assert process.cpu_ns() > 0
    assert process.environment()["PATH"] == os.environ["PATH"]
    assert 1 << 20 < process.resident_bytes() < 1 << 40


@pytest.mark.slow
def test_open_files_are_counted() -> None:
    """In a process of its own: nodes of other tests open and close files in theirs."""
    code = (
        "from ottla.runtime import process; from ottla.runtime.disk import RealDisk; "
        "before = process.open_files(); "
        "file = RealDisk().open('/dev/null'); during = process.open_files(); file.close(); "
        "print(during - before, process.open_files() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 0\n"


def test_the_limit_of_open_files_is_raised_as_far_as_allowed() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, limits[1]), limits[1]))
        raised = process.raise_open_file_limit()
        assert raised > 512 or raised == limits[1]
        assert process.open_file_limit() == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.slow
def test_halting_ends_the_process_without_cleaning_up() -> None:
    code = (
        "import atexit; from ottla.runtime import process; atexit.register(print, 'cleaned'); process.halt(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (3, b"")


def test_the_real_runtime_has_every_door_and_can_be_closed() -> None:
    runtime = Runtime.real(pool_workers=1)

    async def main() -> bool:
        return await runtime.pool.run(runtime.disk.exists, "/")

    assert loop.run(main())
    assert runtime.clock.wall_ms() > 0
    assert runtime.random.uuid() != runtime.random.uuid()
    assert runtime.network.host_name()
    runtime.close()


def test_a_runtime_is_put_together_from_any_doors() -> None:
    real = Runtime.real()
    mixed = Runtime(real.clock, real.random, real.disk, InlinePool(), real.network)
    mixed.close()
    real.close()


@pytest.mark.slow
def test_the_runtime_imports_little() -> None:
    """A node is to be ready in half a second; what it stands on must not use that up."""
    code = "import asyncio, sys; old = set(sys.modules); import ottla.runtime; print(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    heavy = {
        "uvloop",
        "multiprocessing",
        "email",
        "http",
        "urllib",
        "json",
        "unittest",
        "xml",
        "numpy",
        "pyarrow",
    }
    assert "ottla" in imported
    assert not imported & heavy


def test_what_was_started_with_nohup_outlives_its_terminal() -> None:
    async def main() -> bool:
        hung_up: list[str] = []
        undo = process.on_termination(hung_up.append)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        undo()
        return not hung_up

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert asyncio.run(main())
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_status_request_calls_back_and_is_ignored_at_the_end() -> None:
    async def main() -> None:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        undo = process.on_status_request(lambda: arrived.set_result(None))
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(arrived, DEADLINE_S)
        undo()
        # Without a handler it would end the process.
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.getsignal(signal.SIGUSR1)
    try:
        loop.run(main())
    finally:
        signal.signal(signal.SIGUSR1, before)
