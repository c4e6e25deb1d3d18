"""Clients where programs end, fork, or have loops of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import ottla
from tests.support.waiting import until


async def test_a_client_belongs_to_the_loop_that_started_it(servers: str, topic: str) -> None:
    """As when a fixture for all tests meets a loop for each test."""

    def on_another_loop(call: object) -> str:
        with pytest.raises(RuntimeError) as raised:
            asyncio.run(call())
        return str(raised.value)

    async with ottla.Producer(servers) as producer, ottla.Consumer(servers) as consumer:
        consumer.assign([(topic, 0)])
        for call in (lambda: producer.send(topic, b"x"), producer.flush, producer.close):
            assert "the producer was started on another" in await asyncio.to_thread(on_another_loop, call)
        for call in (consumer.poll, consumer.close):
            assert "the consumer was started on another" in await asyncio.to_thread(on_another_loop, call)
        assert (await producer.send(topic, b"x", partition=0)).offset == 0


@pytest.mark.slow
async def test_a_forked_child_makes_clients_of_its_own(
    ottla_for_clients: ottla.LocalNode, fresh_name: str
) -> None:
    """As a worker of gunicorn or Celery does whose parent had imported the application."""
    program = f"""
import asyncio, os, sys
import ottla, ottla.blocking

servers, topic = {ottla_for_clients.bootstrap_servers!r}, {fresh_name!r}
blocking = ottla.blocking.Producer(servers)
blocking.start()
loop = asyncio.new_event_loop()
producer = ottla.Producer(servers)
loop.run_until_complete(producer.start())
if not os.fork():
    for call in (lambda: asyncio.run(producer.send(topic, b"x")), lambda: blocking.send(topic, b"x")):
        try:
            call()
        except RuntimeError as error:
            print(error)
    del producer, blocking
    with ottla.blocking.Producer(servers) as own:
        print(own.send(topic, b"of the child", partition=0).offset)
    sys.exit(0)
os.wait()
loop.run_until_complete(producer.send(topic, b"of the parent"))
blocking.send(topic, b"of the parent")
loop.run_until_complete(producer.close())
loop.close()
blocking.close()
"""
    done = await run(program)
    first, second, third = done.stdout.splitlines()
    assert "before a fork" in first
    assert "does not survive a fork" in second
    assert third == "0"
    assert "not closed" not in done.stderr
    assert "not delivered" not in done.stderr
    assert (await ottla.read_topic(ottla_for_clients.bootstrap_servers, fresh_name)).num_rows == 3


@pytest.mark.slow
async def test_a_program_that_ends_says_what_was_not_sent(
    ottla_for_clients: ottla.LocalNode, fresh_name: str
) -> None:
    program = f"""
import os, sys
from ottla.blocking import Producer

servers = {ottla_for_clients.bootstrap_servers!r}
producer = Producer(servers, linger_ms=3_600_000, delivery_timeout_ms=7_200_000)
producer.start()
for n in range(3):
    producer.send_nowait({fresh_name!r}, b"x", partition=0)
if not os.fork():
    sys.exit(0)  # what the parent has is no business of the child
os.wait()
"""
    done = await run(program)
    assert "not closed when the process ended, with records that are not delivered: 3," in done.stderr
    assert done.stderr.count("not delivered") == 1


@pytest.mark.slow
async def test_closing_in_time_says_what_was_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    async with ottla.LocalNode() as node:
        producer = ottla.Producer(node.bootstrap_servers)
        await producer.start()
        await producer.send("orders", b"delivered")
    handles = [producer.send_nowait("orders", b"x") for _ in range(5)]
    await producer.close(timeout_ms=50)
    assert "the producer was closed with records that are not delivered: 5," in caplog.text
    assert all(handle.done() for handle in handles)


async def test_a_scope_of_anyio_that_is_cancelled_leaves_no_tasks(servers: str, topic: str) -> None:
    """Such a scope cancels again and again, also what closes a client."""
    before = running_tasks()
    with anyio.CancelScope() as scope:
        async with (
            ottla.Producer(servers) as producer,
            ottla.Consumer(servers, group_id=topic) as consumer,
            ottla.ShareConsumer(servers, group_id=f"{topic}-share") as shared,
        ):
            await producer.send(topic, b"x")
            consumer.subscribe(topic)
            shared.subscribe(topic)
            scope.cancel()
            await consumer.poll(timeout_ms=None)
    assert scope.cancelled_caught
    await until(lambda: set(running_tasks()) <= set(before))


@pytest.mark.slow
async def test_tests_of_users_by_anyio_and_by_pytest_asyncio(
    ottla_for_clients: ottla.LocalNode, fresh_name: str, tmp_path: Path
) -> None:
    (tmp_path / "test_of_a_user.py").write_text(f"""
import ottla, pytest

servers, topic = {ottla_for_clients.bootstrap_servers!r}, {fresh_name!r}

async def sends():
    async with ottla.Producer(servers) as producer:
        await producer.send(topic, b"x", partition=0)
    async with ottla.Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert await consumer.poll(timeout_ms=60_000)

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_by_anyio():
    await sends()

@pytest.mark.asyncio
async def test_by_pytest_asyncio():
    await sends()
""")
    done = await run(
        f"import pytest, sys; sys.exit(pytest.main([{str(tmp_path)!r}, '-q', '-p', 'no:cacheprovider']))",
        "-W",
        "error::ResourceWarning",
        cwd=tmp_path,
    )
    assert "2 passed" in done.stdout


def running_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("ottla-")]


async def run(program: str, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", program]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=240, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
