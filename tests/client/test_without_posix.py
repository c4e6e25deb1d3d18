"""Clients use nothing that only POSIX has, so that they can be imported on Windows.

This machine is none: what Windows lacks is taken from the modules of a process.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from ottla import LocalNode

CLIENTS = """
import asyncio, ctypes, inspect, logging, multiprocessing, os, shutil, socket, ssl, subprocess, sys, tempfile
import importlib.metadata, urllib.request
import cramjam

for name in ("fcntl", "grp", "pwd", "resource", "termios", "uvloop"):
    sys.modules[name] = None
for name in ("fdatasync", "fork", "posix_fadvise", "pread", "preadv", "pwrite", "sched_getaffinity"):
    delattr(os, name)
sys.platform = "win32"

import ottla
from ottla.client import admin, share


async def main(address):
    async with ottla.Producer(address) as producer:
        await producer.send("orders", b"hello")
    async with ottla.Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("orders", 0)])
        while not (records := await consumer.poll()):
            pass
    print(records[0].value)


asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
def test_clients_need_no_posix() -> None:
    with LocalNode() as node:
        command = [sys.executable, "-c", CLIENTS, node.bootstrap_servers]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.stdout == "b'hello'\n"
