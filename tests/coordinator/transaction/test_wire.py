"""Transactions by single requests: version 2, two-phase commits, ends that are under way, hanging ones."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.node.config.coordinator_settings import transaction_config
from ottla.node.config.node_config import NodeConfig
from ottla.node.coordinators.transaction_marker_channel_manager import TransactionMarkerChannelManager
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.testing.local_node import LocalNode
from tests.support.wire import WireClient

from .wire_producer import WireProducer

DEADLINE_S = 60.0
# A transaction begins as its first record is written, and is to outlive that write.
TIMEOUT_MS = 500
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
    "transaction.two.phase.commit.enable": True,
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(SETTINGS) as running:
        yield running


@pytest.fixture
def wire(node: LocalNode) -> Iterator[WireProducer]:
    wire = WireProducer(node.bootstrap_servers, f"txn-{next(_numbers)}")
    wire.make_topic()
    wire.find()
    yield wire
    wire.client.close()


def test_writing_adds_the_partition_and_ending_moves_the_epoch(wire: WireProducer) -> None:
    me = wire.begin()
    assert wire.write(me, b"one") is ErrorCode.NONE
    assert wire.write(me, b"two", partition=1) is ErrorCode.NONE
    ended = wire.end(me)
    assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, me.id, me.epoch + 1)
    wire.await_state("CompleteCommit")
    assert (wire.read(0), wire.read(1)) == (([b"one"], 0), ([b"two"], 0))
    # Late messages of the first transaction never get into another one.
    assert wire.write(me, b"late", sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    again = ProducerIdAndEpoch(ended.producer_id, ended.producer_epoch)
    assert wire.write(again, b"three") is ErrorCode.NONE
    assert wire.write(me, b"late", sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert wire.end(me).error_code == ErrorCode.PRODUCER_FENCED
    assert wire.end(again, commit=False).error_code == 0
    wire.await_state("CompleteAbort")
    assert wire.read(0) == ([b"one"], 1)


def test_a_commit_that_comes_after_the_timeout_is_fenced(wire: WireProducer) -> None:
    me = wire.begin(transaction_timeout_ms=TIMEOUT_MS)
    assert wire.write(me, b"too slow") is ErrorCode.NONE
    wire.await_state("CompleteAbort")
    assert wire.end(me).error_code == ErrorCode.PRODUCER_FENCED
    aborted = wire.end(me, commit=False)  # an abort is what has happened
    assert (aborted.error_code, aborted.producer_epoch) == (0, me.epoch + 1)
    assert wire.read() == ([], 1)


class Gate:
    """Holds all markers of one transactional id back until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.open = threading.Event()
        write = TransactionMarkerChannelManager.write

        def held(
            self_: TransactionMarkerChannelManager, marker: Any, partitions: frozenset[TopicPartition]
        ) -> Any:
            if marker.transactional_id == name and not self.open.is_set():
                return dict.fromkeys(partitions, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return write(self_, marker, partitions)

        patch.setattr(TransactionMarkerChannelManager, "write", held)


def test_nothing_begins_while_the_last_transaction_is_being_ended(
    wire: WireProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, wire.name)
    me = wire.begin()
    assert wire.write(me, b"one") is ErrorCode.NONE
    ended = wire.end(me)
    assert (ended.error_code, wire.state()) == (0, "PrepareCommit")
    after = ProducerIdAndEpoch(ended.producer_id, ended.producer_epoch)
    assert wire.write(after, b"two") is ErrorCode.CONCURRENT_TRANSACTIONS
    assert wire.end(after, commit=False).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert wire.end(me).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert wire.read() == ([], 0)
    gate.open.set()
    wire.await_state("CompleteCommit")
    assert wire.write(after, b"two") is ErrorCode.NONE
    assert wire.read() == ([b"one"], 0)


@pytest.mark.slow
def test_markers_are_driven_again_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["commit", "abort"]
    with LocalNode(SETTINGS, data_dir=str(tmp_path)) as node:
        for name in names:
            wire = WireProducer(node.bootstrap_servers, name)
            wire.make_topic()
            wire.find()
            Gate(monkeypatch, name)
            me = wire.begin()
            assert wire.write(me, name.encode()) is ErrorCode.NONE
            assert wire.end(me, commit=name == "commit").error_code == 0
            assert wire.state().startswith("Prepare")
            wire.client.close()
    monkeypatch.undo()
    with LocalNode(SETTINGS, data_dir=str(tmp_path)) as node:
        for name, state, seen in (("commit", "CompleteCommit", [b"commit"]), ("abort", "CompleteAbort", [])):
            wire = WireProducer(node.bootstrap_servers, name)
            wire.find()
            wire.await_state(state)
            assert wire.read()[0] == seen
            wire.client.close()


def test_a_transaction_whose_topic_is_deleted_ends(wire: WireProducer) -> None:
    me = wire.begin()
    assert wire.write(me, b"gone") is ErrorCode.NONE
    delete = DeleteTopicsRequest(topics=[DeleteTopicState(name=wire.topic)], timeout_ms=10_000)
    assert wire.client.get(delete, 6, DeleteTopicsResponse).responses[0].error_code == 0
    assert wire.end(me).error_code == 0
    wire.await_state("CompleteCommit")


def test_epochs_run_over_to_new_producer_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three epochs an id, so that it happens: to ends, to timeouts and to new producers."""

    def tiny(config: NodeConfig) -> TransactionConfig:
        return replace(transaction_config(config), max_epoch=3)

    monkeypatch.setattr("ottla.node.config.coordinator_settings.transaction_config", tiny)
    with LocalNode(SETTINGS) as node:
        wire = WireProducer(node.bootstrap_servers, "txn")
        wire.make_topic()
        wire.find()
        me = wire.begin()
        seen, values = [me], []
        for number in range(7):
            value = b"%d" % number
            assert wire.write(me, value) is ErrorCode.NONE
            ended = wire.end(me, commit=number != 3)
            assert ended.error_code == 0
            me = ProducerIdAndEpoch(ended.producer_id, ended.producer_epoch)
            seen.append(me)
            values += [value] if number != 3 else []
            wire.await_state("CompleteAbort" if number == 3 else "CompleteCommit")
        assert [each.epoch for each in seen] == [0, 1, 2, 0, 1, 2, 0, 1]
        assert len({each.id for each in seen}) == 3
        assert wire.read() == (values, 1)
        while (me := wire.begin(transaction_timeout_ms=TIMEOUT_MS)).epoch != 2:
            pass
        assert wire.write(me, b"too slow") is ErrorCode.NONE
        wire.await_state("CompleteAbort")
        after = wire.end(me, commit=False)
        assert (after.error_code, after.producer_epoch) == (0, 0)
        assert after.producer_id > me.id
        assert wire.read() == (values, 2)
        wire.client.close()


def test_verification_can_be_switched_off_for_version_1() -> None:
    """As in Kafka: then a write may open a transaction that its coordinator does not know."""
    for enabled, expected in ((True, ErrorCode.INVALID_TXN_STATE), (False, ErrorCode.NONE)):
        with LocalNode({"transaction.partition.verification.enable": enabled}) as node:
            wire = WireProducer(node.bootstrap_servers, "txn")
            wire.make_topic()
            wire.find()
            me = wire.begin()
            assert wire.write(me, b"not added", version=10) is expected
            # With version 2 the partition is added in any case.
            assert wire.write(me, b"added", partition=1) is ErrorCode.NONE
            assert wire.state() == "Ongoing"
            wire.client.close()


# Two-phase commit


def test_version_6_of_init_producer_id_is_announced(node: LocalNode) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    with WireClient(node.bootstrap_servers) as client:
        answer = client.get(request, 4, ApiVersionsResponse)
    assert {key.api_key: key.max_version for key in answer.api_keys}[InitProducerIdRequest.API_KEY] == 6


def test_two_phase_commits_have_to_be_allowed() -> None:
    with LocalNode() as strict:
        wire = WireProducer(strict.bootstrap_servers, "txn")
        wire.find()
        refused = wire.init(enable_2pc=True)
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        wire.client.close()


@pytest.mark.slow
def test_a_prepared_transaction_outlives_the_node_and_its_producer(tmp_path: Path) -> None:
    with LocalNode(SETTINGS, data_dir=str(tmp_path)) as node:
        wire = WireProducer(node.bootstrap_servers, "txn")
        wire.make_topic()
        wire.find()
        writer = wire.begin(enable_2pc=True, transaction_timeout_ms=1)
        assert wire.write(writer, b"prepared") is ErrorCode.NONE
        wire.client.close()
    with LocalNode(SETTINGS, data_dir=str(tmp_path)) as node:
        wire = WireProducer(node.bootstrap_servers, "txn")
        wire.find()
        kept = wire.init(enable_2pc=True, keep_prepared_txn=True)
        assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == writer
        assert (kept.producer_id, kept.producer_epoch) == (writer.id, writer.epoch + 1)
        assert (wire.state(), wire.read()) == ("Ongoing", ([], 0))
        me = ProducerIdAndEpoch(kept.producer_id, kept.producer_epoch)
        assert wire.end(writer).error_code == ErrorCode.PRODUCER_FENCED
        ended = wire.end(me)
        assert ended.error_code == 0
        wire.await_state("CompleteCommit")
        assert wire.read() == ([b"prepared"], 0)
        # The next transaction of the one who took over.
        after = ProducerIdAndEpoch(ended.producer_id, ended.producer_epoch)
        assert wire.write(after, b"next") is ErrorCode.NONE
        assert wire.end(after).error_code == 0
        wire.await_state("CompleteCommit")
        assert wire.read() == ([b"prepared", b"next"], 0)
        wire.client.close()


def test_a_driver_ends_what_tasks_have_prepared(wire: WireProducer) -> None:
    """By id and epoch alone, and as often as it likes."""
    task = wire.begin(enable_2pc=True)
    assert wire.write(task, b"rows") is ErrorCode.NONE
    for _ in range(3):
        deadline = time.monotonic() + DEADLINE_S
        while (ended := wire.end(task)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            assert time.monotonic() < deadline
        assert (ended.error_code, ended.producer_epoch) == (0, task.epoch + 1)
    assert wire.read() == ([b"rows"], 0)


# Hanging transactions


def test_a_hanging_transaction_can_be_found_and_aborted(wire: WireProducer) -> None:
    me = wire.begin()
    assert wire.write(me, b"hangs") is ErrorCode.NONE
    listed = wire.client.get(
        ListTransactionsRequest(transactional_id_pattern=wire.name, state_filters=["Ongoing"]),
        2,
        ListTransactionsResponse,
    )
    assert [each.transactional_id for each in listed.transaction_states] == [wire.name]
    describe = DescribeProducersRequest(topics=[TopicRequest(name=wire.topic, partition_indexes=[0])])
    found = (
        wire.client.get(describe, 0, DescribeProducersResponse).topics[0].partitions[0].active_producers[0]
    )
    assert (found.producer_id, found.producer_epoch, found.current_txn_start_offset) == (me.id, me.epoch, 0)
    marker = WritableTxnMarker(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        transaction_result=False,
        coordinator_epoch=max(0, found.coordinator_epoch),
        topics=[WritableTxnMarkerTopic(name=wire.topic, partition_indexes=[0])],
    )
    marked = wire.client.get(WriteTxnMarkersRequest(markers=[marker]), 1, WriteTxnMarkersResponse)
    assert marked.markers[0].topics[0].partitions[0].error_code == 0
    assert wire.read() == ([], 1)
    after = wire.client.get(describe, 0, DescribeProducersResponse)
    assert after.topics[0].partitions[0].active_producers[0].current_txn_start_offset == -1


def test_markers_that_make_no_sense_are_refused(wire: WireProducer) -> None:
    marker = WritableTxnMarker(
        producer_id=-1,
        producer_epoch=-1,
        topics=[WritableTxnMarkerTopic(name=wire.topic, partition_indexes=[0, 7])],
    )
    answer = wire.client.get(WriteTxnMarkersRequest(markers=[marker]), 2, WriteTxnMarkersResponse)
    codes = [each.error_code for each in answer.markers[0].topics[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2
