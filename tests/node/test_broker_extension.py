"""What is optional attaches to a broker by `BrokerExtension`, and a broker serves without it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Starts a broker whose only extension writes down what it is called with, and uses it by a client.
START = """
import asyncio, json, sys, tempfile
from ottla.node.api.broker_extension import BrokerExtension, creatable_topic
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.runtime.runtime import Runtime

calls = []

class Recorder(BrokerExtension):
    def __init__(self, broker):
        assert broker.replicas is not None and broker.services.cluster_id

    async def prepare(self, image):
        calls.append("prepare")

    def apply_replicas(self, image, changes):
        calls.append("replicas")

    def apply_metadata(self, image, delta):
        calls.append("first metadata" if delta is None else "metadata")

    def start(self):
        calls.append("start")

    async def close(self):
        calls.append("close")

    def internal_topic(self, name):
        return creatable_topic(name, 3, 1, {"retention.ms": "-1"}) if name == "own" else None

    def topic_status(self, topic):
        return {"own.status": f"{topic} is fine"}

async def main(directory):
    from ottla import Admin, Producer
    runtime = Runtime.real()
    config = NodeConfig({
        "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": directory, "http.listener": "http://127.0.0.1:0",
    })
    node = Node(runtime, config, extensions=(Recorder,), has_standard_extensions=False)
    await node.start()
    started = list(calls)
    at = f"127.0.0.1:{node.client_endpoints()[0].port}"
    async with Producer(at) as producer:
        await producer.send("own", b"value")
    async with Admin(at) as admin:
        described = await admin.configs.describe_topics(["own"], keys=["own.status", "retention.ms"])
        partitions = len((await admin.topics.describe("own")).partitions)
    modules = [name for name in sys.modules if name.startswith("ottla.")]
    await node.stop()
    runtime.close()
    print(json.dumps({
        "started": started, "all": calls, "modules": modules, "partitions": partitions,
        "status": {name: entry.value for name, entry in described["own"].items()},
    }))

with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(directory))
"""

OPTIONAL = (
    *("ottla.node.remote", "ottla.node.tables", "ottla.node.telemetry", "ottla.node.registry"),
    *("ottla.remote", "ottla.tables", "ottla.registry", "ottla.console"),
)


@pytest.mark.slow
def test_a_broker_serves_with_the_extensions_that_it_is_given() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    # It gets ready before it has replicas, and works once the broker may lead.
    first = [call for call in said["started"] if call != "metadata"]
    assert first == ["prepare", "first metadata", "start"]
    assert "replicas" in said["all"]
    assert said["all"][-1] == "close"
    # The topic is made as its extension wants it, and those who ask for a status by its name see it.
    assert said["partitions"] == 3
    assert said["status"] == {"retention.ms": "-1", "own.status": "own is fine"}
    # What the broker is made without is not even imported.
    assert [name for name in said["modules"] if name.startswith(OPTIONAL)] == []
