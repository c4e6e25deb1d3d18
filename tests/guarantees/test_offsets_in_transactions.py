"""Offsets that are part of a transaction: they count when it is committed, and never otherwise.

The transaction's coordinator, the group's coordinator and the markers in `__consumer_offsets` work together
here as they do in a node, also over a restart between the decision and its markers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.node.coordinators.transaction_marker_channel_manager import TransactionMarkerChannelManager
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.testing.local_node import LocalNode
from tests.guarantees.raw_producer import RawProducer, committed_offset, read_all, until
from tests.support.wire import WireClient

UNSTABLE = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
NONE = ErrorCode.NONE


class World:
    """A node, a connection, and an input and an output topic under the test's name."""

    def __init__(self, node: LocalNode, name: str) -> None:
        self.address = node.bootstrap_servers
        self.wire = WireClient(self.address)
        self.name = self.group = name
        self.input = f"{name}-in"
        self.output = f"{name}-out"
        self._producers: list[RawProducer] = []

    def create(self) -> None:
        topics = [
            CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
            for topic in (self.input, self.output)
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=60_000)
        answer = self.wire.get(request, 7, CreateTopicsResponse)
        assert [each.error_code for each in answer.topics] == [0, 0]
        self.output_id = next(each.topic_id for each in answer.topics if each.name == self.output)

    def producer(self, suffix: str = "") -> RawProducer:
        producer = RawProducer(self.address, self.name + suffix)
        self._producers.append(producer)
        producer.init()
        return producer

    def offset(self, *, stable: bool = False) -> tuple[ErrorCode, int]:
        return committed_offset(self.wire, self.group, self.input, require_stable=stable)

    def settled_offset(self) -> int:
        """The stable offset, when the markers have come."""
        return until("a stable offset", lambda: self.offset(stable=True), lambda each: each != UNSTABLE)[1]

    def close(self) -> None:
        self.wire.close()
        for producer in self._producers:
            producer.close()


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as running:
        yield running


@pytest.fixture
def world(node: LocalNode, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(node, request.node.name)
    world.create()
    yield world
    world.close()


def test_offsets_count_when_the_transaction_is_committed(world: World) -> None:
    producer = world.producer()
    assert producer.produce(world.output, world.output_id, b"one") is NONE
    assert producer.send_offset(world.group, world.input, 5) is NONE
    assert world.offset() == (NONE, -1)
    assert world.offset(stable=True) == UNSTABLE
    assert producer.end(commit=True) is NONE
    assert world.settled_offset() == 5
    assert world.offset() == (NONE, 5)
    until(
        "the end in the output",
        lambda: read_all(world.wire, world.output_id, committed=True),
        lambda values: values == [b"one"],
    )


def test_offsets_of_an_aborted_transaction_never_count(world: World) -> None:
    producer = world.producer()
    assert producer.send_offset(world.group, world.input, 5) is NONE
    assert producer.end(commit=True) is NONE
    assert world.settled_offset() == 5
    assert producer.produce(world.output, world.output_id, b"never") is NONE
    assert producer.send_offset(world.group, world.input, 9) is NONE
    assert world.offset() == (NONE, 5)
    assert world.offset(stable=True) == UNSTABLE
    assert producer.end(commit=False) is NONE
    assert world.settled_offset() == 5
    assert read_all(world.wire, world.output_id, committed=True) == []
    assert read_all(world.wire, world.output_id) == [b"never"]


def test_of_two_transactions_with_offsets_each_counts_by_itself(world: World) -> None:
    one, two = world.producer("-1"), world.producer("-2")
    assert one.send_offset(world.group, world.input, 3) is NONE
    assert two.send_offset(world.group, world.input, 7) is NONE
    assert one.end(commit=True) is NONE
    until("the first one's offset", world.offset, lambda each: each == (NONE, 3))
    assert world.offset(stable=True) == UNSTABLE
    assert two.end(commit=False) is NONE
    assert world.settled_offset() == 3


def test_a_producer_that_was_replaced_can_neither_add_offsets_nor_commit_them(world: World) -> None:
    old = world.producer()
    assert old.send_offset(world.group, world.input, 5) is NONE
    new = world.producer()  # with the same transactional id: what the old one had open is aborted
    assert world.settled_offset() == -1
    assert old.send_offset(world.group, world.input, 6) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert new.send_offset(world.group, world.input, 2) is NONE
    assert new.end(commit=True) is NONE
    assert world.settled_offset() == 2


def test_offsets_of_a_member_that_is_not_in_the_group_are_refused(world: World) -> None:
    producer = world.producer()
    stranger = producer.send_offset(
        world.group, world.input, 5, generation_id_or_member_epoch=1, member_id="stranger"
    )
    assert stranger is ErrorCode.ILLEGAL_GENERATION
    assert producer.end(commit=False) is NONE
    assert world.settled_offset() == -1


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_markers_are_written_after_a_restart_if_they_were_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """The decision is in the log when EndTxn is answered; the node dies before a marker is anywhere."""
    with monkeypatch.context() as patch:
        patch.setattr(
            TransactionMarkerChannelManager,
            "write",
            lambda _, marker, partitions: dict.fromkeys(partitions, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        )
        with LocalNode(data_dir=str(tmp_path)) as node:
            world = World(node, "restarted")
            world.create()
            producer = world.producer()
            assert producer.produce(world.output, world.output_id, b"one") is NONE
            assert producer.send_offset(world.group, world.input, 5) is NONE
            assert producer.end(commit=commit) is NONE
            assert world.offset(stable=True) == UNSTABLE
            assert read_all(world.wire, world.output_id, committed=True) == []
            world.close()
    with LocalNode(data_dir=str(tmp_path)) as node:
        again = World(node, "restarted")
        assert again.settled_offset() == (5 if commit else -1)
        until(
            "the end in the output",
            lambda: read_all(again.wire, world.output_id, committed=True),
            lambda values: values == ([b"one"] if commit else []),
        )
        assert read_all(again.wire, world.output_id) == [b"one"]
        producer = again.producer()
        assert producer.send_offset(again.group, again.input, 8) is NONE
        assert producer.end(commit=True) is NONE
        assert again.settled_offset() == 8
        again.close()


def test_an_open_transaction_outlives_a_restart(tmp_path: Path) -> None:
    with LocalNode(data_dir=str(tmp_path)) as node:
        world = World(node, "open")
        world.create()
        producer = world.producer()
        assert producer.produce(world.output, world.output_id, b"one") is NONE
        assert producer.send_offset(world.group, world.input, 5) is NONE
        world.close()
    with LocalNode(data_dir=str(tmp_path)) as node:
        again = World(node, "open")
        assert again.offset(stable=True) == UNSTABLE
        assert again.offset() == (NONE, -1)
        resumed = RawProducer(again.address, "open")
        resumed.id, resumed.epoch = producer.id, producer.epoch
        until("the end", lambda: resumed.end(commit=True), lambda code: code is NONE)
        assert again.settled_offset() == 5
        until(
            "the end in the output",
            lambda: read_all(again.wire, world.output_id, committed=True),
            lambda values: values == [b"one"],
        )
        resumed.close()
        again.close()


def test_an_operator_sees_where_the_offsets_of_a_transaction_are(world: World) -> None:
    producer = world.producer()
    assert producer.send_offset(world.group, world.input, 5) is NONE
    request = DescribeTransactionsRequest(transactional_ids=[producer.transactional_id])
    (described,) = world.wire.get(request, 0, DescribeTransactionsResponse).transaction_states
    assert described.transaction_state == "Ongoing"
    assert [(each.topic, len(each.partitions)) for each in described.topics] == [("__consumer_offsets", 1)]
    assert producer.end(commit=False) is NONE
