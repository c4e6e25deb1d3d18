"""The queue of the page docs/clients/queues.md works as it stands, but for the address."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine

PAGE = Path(__file__).parents[2] / "docs" / "clients" / "queues.md"
DEADLINE_S = 120.0


@pytest.mark.slow
async def test_tasks_are_done_or_end_in_the_dead_letter_topic(ottla_for_clients: LocalNode) -> None:
    servers = ottla_for_clients.bootstrap_servers
    commands = "".join(re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.S | re.M))
    line = CommandLine(servers)
    for command in commands.splitlines():
        await asyncio.to_thread(line.ok, *shlex.split(command.removeprefix("$ ottla ")))
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    code = code.replace("localhost:9092", servers)
    code = code.replace("    print(", '    if task == "bad":\n        raise ValueError("bad")\n    print(', 1)
    async with Producer(servers) as producer:
        for task in (b'"good"', b'"bad"', b"not JSON"):
            await producer.send("tasks", task)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", code, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert worker.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            assert await worker.stdout.readline() == b"working on good\n"
            errors: dict[bytes | None, bytes | None] = {}
            async with Consumer[bytes, bytes](servers, auto_offset_reset="earliest") as dead:
                dead.assign([("dead-letters", index) for index in range(3)])
                async for letter in dead:
                    errors[letter.value] = dict(letter.headers)["error"]
                    if len(errors) == 2:
                        break
            worker.send_signal(signal.SIGINT)  # as Ctrl-C does
            assert await worker.wait() == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    async with Admin(servers) as admin:
        assert (await admin.groups.describe("workers")).members == ()
    assert errors.pop(b'"bad"') == b"ValueError('bad')"
    assert b"JSONDecodeError" in (errors.pop(b"not JSON") or b"")
