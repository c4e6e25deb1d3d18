"""`ottla consume --group`: members share the partitions, and a group continues at its offsets."""

from __future__ import annotations

from uuid import uuid4

import pytest

from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine, Ended
from tests.support.waiting import wait_until


@pytest.fixture
def group() -> str:
    return uuid4().hex[:16]


@pytest.mark.witness
@pytest.mark.slow
def test_a_group_goes_on_behind_what_was_shown(ottla: CommandLine, topic: str, group: str) -> None:
    ottla.ok("produce", topic, "-p", "0", "a", "b", "c", "d")
    read = ("consume", topic, "--group", group)
    begin = (*read, "--from-beginning")
    assert ottla.ok(*begin, "-n", "3").out.split() == ["a", "b", "c"]
    assert ottla.ok(*begin, "-n", "1").out.split() == ["d"]
    assert ottla.ok(*begin, "--idle", "1").out.split() == []
    # The group has an offset also where nothing was read yet.
    ottla.ok("produce", topic, "-p", "1", "e")
    assert ottla.ok(*read, "-n", "1").out.split() == ["e"]
    assert ottla.ok(*read, "--idle", "1").out.split() == []


@pytest.mark.slow
def test_a_group_without_a_coordinator_says_why_in_time() -> None:
    """The default replication factor of __consumer_offsets, 3, on one node."""
    with LocalNode({"offsets.topic.replication.factor": 3}) as node:
        ottla = CommandLine(node.bootstrap_servers)
        ottla.ok("topics", "create", "orders")
        tries: list[Ended] = []

        def says_why() -> bool:
            tries.append(ottla("consume", "orders", "--group", "g", "--timeout", "3"))
            return tries[-1].status == 1 and "__consumer_offsets could not be created yet" in tries[-1].err

        # 3 if the node does not answer in that time at all.
        wait_until(says_why)
        assert {each.status for each in tries} <= {1, 3}


@pytest.mark.slow
def test_what_did_not_match_has_been_read_all_the_same(ottla: CommandLine, topic: str, group: str) -> None:
    ottla.ok("produce", topic, "-p", "0", "apple", "pear", "plum", "peach")
    read = ("consume", topic, "--group", group, "--from-beginning")
    assert ottla.ok(*read, "--grep", "^pe", "-n", "1").out.split() == ["pear"]
    assert ottla.ok(*read, "-n", "2").out.split() == ["plum", "peach"]
    assert ottla.ok(*read, "--idle", "1").out.split() == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--from", "-10"], "ottla groups reset-offsets"),
        (["--exit"], "--count and --idle"),
        (["--until", "end"], "--count and --idle"),
        (["--partitions", "0"], "--count and --idle"),
    ],
)
def test_a_group_decides_itself_what_is_read(offline: CommandLine, words: list[str], problem: str) -> None:
    ended = offline("consume", "orders", "--group", "g", *words)
    assert ended.status == 2
    assert problem in ended.err
