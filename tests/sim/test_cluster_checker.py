"""The checker and the verdict of a cluster run find each kind of violation."""

from __future__ import annotations

import pytest

from ottla.protocol.names import TopicPartition
from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.sim.clock import LoopClock
from ottla.sim.cluster.checker import ClusterChecker
from ottla.sim.cluster.history import Mismatch, PartitionHistory
from ottla.sim.cluster.journal import (
    ClientTransaction,
    GroupHistory,
    Journal,
    OffsetCommit,
    OperationState,
    SentRecord,
    copy_of,
    original_of,
)
from ottla.sim.cluster.verdict import verdict
from ottla.sim.world import World

TOPIC = "orders"


def commit(history: PartitionHistory, data: bytes) -> None:
    for position, header in iter_batches(data):
        history.on_committed(data, position, header, "node 1")


def plain(*values: bytes, at: int, epoch: int = 0) -> bytes:
    return build_batch([(0, None, value) for value in values], base_offset=at, leader_epoch=epoch)


def transactional(*values: bytes, at: int, producer: int = 7) -> bytes:
    return build_batch(
        [(0, None, value) for value in values],
        base_offset=at,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(kind: ControlType, at: int, producer: int = 7) -> bytes:
    return build_end_transaction_marker(
        EndTransactionMarker(kind, 0),
        producer_id=producer,
        producer_epoch=0,
        timestamp=0,
        leader_epoch=0,
        base_offset=at,
    )


class TestHistory:
    def test_two_replicas_may_not_differ(self) -> None:
        history = PartitionHistory("orders-0")
        commit(history, plain(b"a", at=0))
        commit(history, plain(b"a", at=0))
        with pytest.raises(Mismatch, match=r"where .* was committed"):
            commit(history, plain(b"b", at=0))

    def test_nor_in_the_epoch_of_a_batch(self) -> None:
        history = PartitionHistory("orders-0")
        commit(history, plain(b"a", at=0, epoch=1))
        with pytest.raises(Mismatch):
            commit(history, plain(b"a", at=0, epoch=2))

    def test_nor_may_a_batch_begin_inside_of_another(self) -> None:
        history = PartitionHistory("orders-0")
        commit(history, plain(b"a", b"b", at=0))
        with pytest.raises(Mismatch, match="begins where none did"):
            commit(history, plain(b"b", at=1))

    def test_a_transaction_is_visible_once_it_is_committed(self) -> None:
        history = PartitionHistory("orders-0")
        commit(history, transactional(b"a", at=0) + plain(b"b", at=1))
        assert (history.last_stable_offset, history.visible()) == (0, [])
        commit(history, marker(ControlType.COMMIT, at=2))
        assert (history.last_stable_offset, [entry.value for entry in history.visible()]) == (3, [b"a", b"b"])

    def test_and_never_if_it_is_aborted(self) -> None:
        history = PartitionHistory("orders-0")
        commit(history, transactional(b"a", at=0) + marker(ControlType.ABORT, at=1) + plain(b"b", at=2))
        assert [entry.value for entry in history.visible()] == [b"b"]


class CheckerHarness:
    """A checker with one partition, and a journal."""

    def __init__(self) -> None:
        self.world = World(1)
        self.checker = ClusterChecker(self.world)
        self.journal = Journal()
        self.history = self.checker._by_name[TopicPartition(TOPIC, 0)] = PartitionHistory("orders-0")

    def sent(
        self, value: bytes, number: int = 0, *, acks: int = -1, state: OperationState = OperationState.DONE
    ) -> SentRecord:
        record = SentRecord(TOPIC, 0, value, acks, True, "session", number, state)
        self.journal.sent.append(record)
        return record

    def verdict(self, committed: dict[tuple[str, int], int] | None = None) -> str | None:
        return next(verdict(self.checker, self.journal, {"group": committed or {}}), None)


@pytest.fixture
def harness() -> CheckerHarness:
    return CheckerHarness()


class TestVerdict:
    def test_an_acknowledged_record_is_missed(self, harness: CheckerHarness) -> None:
        harness.sent(b"a")
        assert "are lost" in (harness.verdict() or "")

    def test_one_that_failed_is_not(self, harness: CheckerHarness) -> None:
        harness.sent(b"a", state=OperationState.FAILED)
        assert harness.verdict() is None

    def test_with_acks_1_a_new_leader_explains_the_loss(self, harness: CheckerHarness) -> None:
        harness.sent(b"a", acks=1).leader_epoch = 3
        assert harness.verdict() is None, "the newest epoch is another"
        harness.journal.sent[0].leader_epoch = -1
        assert "acks=1" in (harness.verdict() or "")

    def test_a_record_is_duplicated(self, harness: CheckerHarness) -> None:
        harness.sent(b"a")
        commit(harness.history, plain(b"a", at=0) + plain(b"a", at=1))
        assert "duplicated" in (harness.verdict() or "")

    def test_records_of_a_session_are_out_of_order(self, harness: CheckerHarness) -> None:
        harness.sent(b"a", 0)
        harness.sent(b"b", 1)
        commit(harness.history, plain(b"b", b"a", at=0))
        assert "comes after" in (harness.verdict() or "")

    @pytest.mark.parametrize(
        ("state", "text"),
        [
            (OperationState.DONE, "are missing"),
            (OperationState.FAILED, "it was aborted"),
            (OperationState.UNKNOWN, "is torn"),
        ],
    )
    def test_half_a_transaction_is_visible(
        self, harness: CheckerHarness, state: OperationState, text: str
    ) -> None:
        records = [harness.sent(b"a", 0), harness.sent(b"b", 1, state=OperationState.OPEN)]
        harness.journal.transactions.append(ClientTransaction("t", records, state))
        commit(harness.history, transactional(b"a", at=0) + marker(ControlType.COMMIT, at=1))
        assert text in (harness.verdict() or "")

    def test_a_group_has_forgotten_what_was_confirmed(self, harness: CheckerHarness) -> None:
        group = harness.journal.groups["group"] = GroupHistory("group", (TOPIC,))
        group.commits[TOPIC, 0].append(OffsetCommit(5, OperationState.DONE))
        assert "5 was confirmed" in (harness.verdict({(TOPIC, 0): 3}) or "")
        assert "lost its confirmed offset" in (harness.verdict() or "")
        group.commits[TOPIC, 0].append(OffsetCommit(3, OperationState.UNKNOWN))
        assert harness.verdict({(TOPIC, 0): 3}) is None, "a commit without a response may be executed late"

    def test_a_group_went_past_a_record(self, harness: CheckerHarness) -> None:
        group = harness.journal.groups["group"] = GroupHistory("group", (TOPIC,))
        commit(harness.history, plain(b"a", b"b", at=0))
        group.read[TOPIC, 0] = {0}
        assert "that it has not read" in (harness.verdict({(TOPIC, 0): 2}) or "")
        assert harness.verdict({(TOPIC, 0): 1}) is None

    def test_a_copy_is_made_twice(self, harness: CheckerHarness) -> None:
        group = harness.journal.groups["group"] = GroupHistory("group", (TOPIC,), True, copies_to="copies")
        commit(harness.history, plain(b"a", at=0))
        group.read[TOPIC, 0] = {0}
        copies = harness.checker._by_name[TopicPartition("copies", 0)] = PartitionHistory("copies-0")
        commit(copies, plain(copy_of(group, b"a", "t1"), at=0))
        assert harness.verdict({(TOPIC, 0): 1}) is None
        commit(copies, plain(copy_of(group, b"a", "t2"), at=1))
        assert "copied 2 times" in (harness.verdict({(TOPIC, 0): 1}) or "")


def test_a_copy_knows_its_original() -> None:
    group = GroupHistory("copy-classic", (TOPIC,))
    assert original_of(group, copy_of(group, b"a in b", "t")) == b"a in b"
    assert original_of(GroupHistory("other", (TOPIC,)), copy_of(group, b"a", "t")) is None


def test_a_clock_that_begins_to_drift_does_not_jump() -> None:
    now_ns = 10**9
    clock = LoopClock(lambda: now_ns, wall_ms=0)
    clock.rate = 2.0
    assert clock.monotonic_ns() == 10**9
    now_ns += 10**6
    assert clock.monotonic_ns() == 10**9 + 2 * 10**6
    clock.rate = 0.5
    assert clock.monotonic_ns() == 10**9 + 2 * 10**6
