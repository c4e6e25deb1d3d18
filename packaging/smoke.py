"""Run by the Python of an environment that has Ottla installed: a node starts, and records go in and out.

    python packaging/smoke.py [OTHER-PYTHON ...]

Each other Python is of an environment whose Ottla has no compiled kernel: its clients talk to the same node.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("ottla"))
NODE = "OTTLA_SMOKE_NODE"
RECORDS = 100


def main() -> None:
    began = time.monotonic()
    address = os.environ.get(NODE)
    if address is not None:
        warnings.simplefilter("ignore", RuntimeWarning)
        asyncio.run(use_clients(address))
        print(f"clients without a compiled kernel: {RECORDS} records in {time.monotonic() - began:.1f} s")
        return
    with tempfile.TemporaryDirectory() as directory:
        start = [
            COMMAND,
            "start",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            directory,
            "--set",
            "http.listener=",
        ]
        with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as node:
            try:
                assert node.stdout is not None
                ready = node.stdout.readline().strip()
                found = re.search(r"127\.0\.0\.1:\d+", ready)
                assert found, ready
                use_commands(found[0])
                print(f"{ready}; first record after {time.monotonic() - began:.1f} s", flush=True)
                asyncio.run(use_clients(found[0]))
                for other in sys.argv[1:]:
                    subprocess.run([other, __file__], env={**os.environ, NODE: found[0]}, check=True)
            finally:
                node.terminate()
        assert node.returncode == 0, node.returncode


def use_commands(address: str) -> None:
    def ottla(*arguments: str, given: str | None = None) -> str:
        command = [COMMAND, *arguments, "--bootstrap-server", address]
        return subprocess.run(command, input=given, check=True, stdout=subprocess.PIPE, text=True).stdout

    ottla("topics", "create", "orders", "--partitions", "3")
    ottla("produce", "orders", given="hello\n")
    assert ottla("consume", "orders", "--from-beginning", "--count", "1") == "hello\n"


async def use_clients(address: str) -> None:
    import ottla

    topic = f"smoke-{os.getpid()}"  # which the node creates
    async with ottla.Producer(address, compression_type="lz4") as producer:
        for number in range(RECORDS):
            await producer.send(topic, b"%d" % number, key=b"key", headers=[("number", b"%d" % number)])
    async with ottla.Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        seen: list[bytes | None] = []
        while len(seen) < RECORDS:
            seen += [record.value for record in await consumer.poll()]
    assert seen == [b"%d" % number for number in range(RECORDS)], seen


if __name__ == "__main__":
    main()
