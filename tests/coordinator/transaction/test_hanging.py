"""A transaction that hangs: open in a partition, and no coordinator knows that it has to end it there.

A write that came late could do this to Kafka's brokers before 3.6, and it can to a node that is told not to
ask before a first write. Readers of committed data are held back for ever, so somebody has to find and end
it by hand: with Kafka's own tool, or with ours.
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

from .talk import Talk

COMMAND = "org.apache.kafka.tools.TransactionsCommand"
HOUR_MS = 3_600_000


@pytest.fixture
def node() -> Iterator[LocalNode]:
    with LocalNode({"transaction.partition.verification.enable": False}) as running:
        yield running


@pytest.fixture
def talk(node: LocalNode) -> Iterator[Talk]:
    """A producer whose transaction is committed in partition 1 and hangs in partition 0, at offset 0."""
    talk = Talk(node.bootstrap_servers, "hung")
    talk.make_topic()
    talk.find()
    me = talk.begin()
    assert talk.write(me, b"known", partition=1, age_ms=HOUR_MS) is ErrorCode.NONE
    assert talk.write(me, b"late", version=10, age_ms=HOUR_MS) is ErrorCode.NONE
    assert talk.end(me, version=4).error_code == ErrorCode.NONE
    talk.await_state("CompleteCommit")
    assert talk.read(1) == ([b"known"], 0)
    yield talk
    talk.client.close()


def _next_transaction(talk: Talk) -> None:
    """Whoever comes next can write and commit again, in the partition too in which one hung."""
    me = talk.begin()
    for partition in (0, 1):
        assert talk.write(me, b"next", partition=partition) is ErrorCode.NONE
    assert talk.end(me).error_code == ErrorCode.NONE
    talk.await_state("CompleteCommit")


def test_our_command_finds_and_aborts_it(node: LocalNode, talk: Talk) -> None:
    ottla = CommandLine(node.bootstrap_servers)
    assert ottla.ok("transactions", "find-hanging", "--longer-than", "90", "--json").json == []
    (found,) = ottla.ok("transactions", "find-hanging", "--json").json
    assert (found["topic"], found["partition"], found["start_offset"]) == (talk.topic, 0, 0)
    assert ottla.ok("transactions", "find-hanging", talk.topic, "--json").json == [found]
    assert talk.read() == ([], 0)
    ended = ottla.ok("transactions", "abort", f"{talk.topic}:0", "--start-offset", "0", "--yes", "--json")
    assert json.loads(ended.out)["producer_id"] == found["producer_id"]
    assert ottla.ok("transactions", "find-hanging", "--json").json == []
    assert talk.read() == ([], 1)
    _next_transaction(talk)
    assert talk.read() == ([b"next"], 1)
    assert talk.read(1) == ([b"known", b"next"], 0)


@pytest.mark.kafka
def test_the_tool_of_kafka_finds_and_aborts_it(node: LocalNode, talk: Talk, java_driver: JavaDriver) -> None:
    def tool(*args: str) -> str:
        return java_driver.tool(COMMAND, "--bootstrap-server", node.bootstrap_servers, *args).out

    row = rf"^{talk.topic}\s+0\s+\d+\s+\d+\s+-1\s+0\s"
    (broker_id,) = {
        broker for line in tool("list").splitlines() for broker in re.findall(r"^hung\s+(\d+)\s", line)
    }
    for where in (
        ["--broker-id", broker_id],
        ["--topic", talk.topic],
        ["--topic", talk.topic, "--partition", "0"],
    ):
        found = tool("find-hanging", *where)
        assert re.search(row, found, re.MULTILINE), found
    assert not re.search(row, tool("find-hanging", "--topic", talk.topic, "--partition", "1"), re.MULTILINE)
    tool("abort", "--topic", talk.topic, "--partition", "0", "--start-offset", "0")
    assert not re.search(row, tool("find-hanging", "--topic", talk.topic), re.MULTILINE)
    assert talk.read() == ([], 1)
    _next_transaction(talk)
    assert talk.read() == ([b"next"], 1)
