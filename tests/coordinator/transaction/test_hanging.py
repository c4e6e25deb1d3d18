"""A hanging transaction: open in a partition, while no coordinator knows that it has to end it there.

A late write could cause it on Kafka's brokers before 3.6, and can on a node that does not verify first writes
with the coordinator. Readers of committed data are held back until an operator finds it and ends it: with
Kafka's own tool, or with ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine
from tests.support.java_driver import JavaDriver

from .wire_producer import WireProducer

COMMAND = "org.apache.kafka.tools.TransactionsCommand"
HOUR_MS = 3_600_000


@pytest.fixture
def node() -> Iterator[LocalNode]:
    with LocalNode({"transaction.partition.verification.enable": False}) as running:
        yield running


@pytest.fixture
def wire(node: LocalNode) -> Iterator[WireProducer]:
    """A producer whose transaction is committed in partition 1 and hangs in partition 0, at offset 0."""
    wire = WireProducer(node.bootstrap_servers, "hung")
    wire.make_topic()
    wire.find()
    me = wire.begin()
    assert wire.write(me, b"known", partition=1, age_ms=HOUR_MS) is ErrorCode.NONE
    assert wire.write(me, b"late", version=10, age_ms=HOUR_MS) is ErrorCode.NONE
    assert wire.end(me, version=4).error_code == ErrorCode.NONE
    wire.await_state("CompleteCommit")
    assert wire.read(1) == ([b"known"], 0)
    yield wire
    wire.client.close()


def _next_transaction(wire: WireProducer) -> None:
    """The next producer can write and commit again, also in the partition in which a transaction hung."""
    me = wire.begin()
    for partition in (0, 1):
        assert wire.write(me, b"next", partition=partition) is ErrorCode.NONE
    assert wire.end(me).error_code == ErrorCode.NONE
    wire.await_state("CompleteCommit")


def test_our_command_finds_and_aborts_it(node: LocalNode, wire: WireProducer) -> None:
    ottla = CommandLine(node.bootstrap_servers)
    assert ottla.ok("transactions", "find-hanging", "--longer-than", "90", "--json").json == []
    (found,) = ottla.ok("transactions", "find-hanging", "--json").json
    assert (found["topic"], found["partition"], found["start_offset"]) == (wire.topic, 0, 0)
    assert ottla.ok("transactions", "find-hanging", wire.topic, "--json").json == [found]
    assert wire.read() == ([], 0)
    ended = ottla.ok("transactions", "abort", f"{wire.topic}:0", "--start-offset", "0", "--yes", "--json")
    assert json.loads(ended.out)["producer_id"] == found["producer_id"]
    assert ottla.ok("transactions", "find-hanging", "--json").json == []
    assert wire.read() == ([], 1)
    _next_transaction(wire)
    assert wire.read() == ([b"next"], 1)
    assert wire.read(1) == ([b"known", b"next"], 0)


@pytest.mark.kafka
def test_the_tool_of_kafka_finds_and_aborts_it(
    node: LocalNode, wire: WireProducer, java_driver: JavaDriver
) -> None:
    def tool(*args: str) -> str:
        return java_driver.tool(COMMAND, "--bootstrap-server", node.bootstrap_servers, *args).out

    row = rf"^{wire.topic}\s+0\s+\d+\s+\d+\s+-1\s+0\s"
    (broker_id,) = {
        broker for line in tool("list").splitlines() for broker in re.findall(r"^hung\s+(\d+)\s", line)
    }
    for where in (
        ["--broker-id", broker_id],
        ["--topic", wire.topic],
        ["--topic", wire.topic, "--partition", "0"],
    ):
        found = tool("find-hanging", *where)
        assert re.search(row, found, re.MULTILINE), found
    assert not re.search(row, tool("find-hanging", "--topic", wire.topic, "--partition", "1"), re.MULTILINE)
    tool("abort", "--topic", wire.topic, "--partition", "0", "--start-offset", "0")
    assert not re.search(row, tool("find-hanging", "--topic", wire.topic), re.MULTILINE)
    assert wire.read() == ([], 1)
    _next_transaction(wire)
    assert wire.read() == ([b"next"], 1)
