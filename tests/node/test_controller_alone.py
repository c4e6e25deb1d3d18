"""A controller without a broker imports nothing of a broker, and serves other nodes."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Starts a controller as a quorum of one, and prints what is imported once it is ready.
START = """
import asyncio, sys, tempfile
from ottla.metadata.log.bootstrap_metadata import format_directory
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.runtime.runtime import Runtime
from ottla.testing.cluster_plan import free_ports

async def main(directory):
    runtime, (port,) = Runtime.real(), free_ports(1)
    format_directory(runtime.disk, runtime.random, runtime.clock, directory, cluster_id="c" * 22, node_id=9)
    node = Node(runtime, NodeConfig({
        "process.roles": "controller", "node.id": "9", "log.dirs": directory, "http.listener": "",
        "listeners": f"CONTROLLER://127.0.0.1:{port}", "controller.quorum.voters": f"9@127.0.0.1:{port}",
    }))
    await node.start()
    assert node.broker is None and 9 in node.image.cluster.controllers
    print(*sys.modules)
    await node.stop()
    runtime.close()

with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(directory))
"""
OF_BROKERS = (
    "ottla.coordinator",
    "ottla.node.coordinators",
    "ottla.node.fetch",
    "ottla.node.remote",
    "ottla.node.share",
    "ottla.node.tables",
    "ottla.node.telemetry",
    "ottla.remote",
    "ottla.replication",
    "ottla.node.cluster.broker_lifecycle",
    "ottla.node.cluster.replication",
    "ottla.node.server.broker_server",
    "ottla.node.server.metadata_publisher",
)


@pytest.mark.slow
def test_a_controller_alone_imports_nothing_of_a_broker() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split()
    assert "ottla.node.server.controller_server" in modules
    assert [name for name in modules if name.startswith(OF_BROKERS)] == []
