"""The checker of share groups finds each kind of violation, and none where the protocol leaves room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.node.share.share_partition import AcquiredRange, RecordState
from ottla.protocol.coordinator_records import encode_key, encode_value
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import SharePartitionKey
from ottla.protocol.share import AcknowledgeType
from ottla.protocol.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
)
from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch
from ottla.sim.cluster.history import PartitionHistory
from ottla.sim.cluster.share_checker import SHARE_GROUP, SentAcknowledgement, ShareChecker, ShareGroupTerms
from ottla.sim.world import World

TOPIC_ID = b"the id of orders"
KEY = SharePartitionKey(SHARE_GROUP, TOPIC_ID, 0)
ACCEPT, RELEASE, REJECT, RENEW = (AcknowledgeType(number) for number in (1, 2, 3, 4))
AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
LOCK_MS, LIMIT = 1_000, 3


class _Leader:
    """A share partition on a broker, once loaded."""

    key = KEY


class ShareCheckerHarness:
    """Ten committed records, a leader that has loaded their state, and members with sessions."""

    def __init__(self) -> None:
        self._world = World(1)
        history = PartitionHistory("orders-0")
        data = build_batch([(0, None, b"%d" % n) for n in range(10)], base_offset=0, leader_epoch=0)
        for position, header in iter_batches(data):
            history.on_committed(data, position, header, "node 1")
        self.checker = ShareChecker(self._world, {(TOPIC_ID, 0): history}, lambda: None)
        self.checker.terms = ShareGroupTerms(LOCK_MS, LIMIT, False, 2, 10)
        self._sessions: dict[str, Any] = {}
        self.leaders: list[Any] = []
        self._leader: Any = None
        self.now_ms = 0
        self.snapshot(start=0)
        self.load()

    @property
    def violation(self) -> str | None:
        return next(iter(self._world.violations), None)

    # The coordinator

    def snapshot(self, *batches: tuple[int, int, int, int], start: int, state_epoch: int = 1) -> None:
        value = ShareSnapshotValue(
            state_epoch=state_epoch, start_offset=start, state_batches=[_batch(each) for each in batches]
        )
        self._commit(ShareSnapshotKey(group_id=SHARE_GROUP, topic_id=TOPIC_ID, partition=0), value)

    def update(self, *batches: tuple[int, int, int, int], start: int = -1) -> None:
        value = ShareUpdateValue(start_offset=start, state_batches=[_batch(each) for each in batches])
        self._commit(ShareUpdateKey(group_id=SHARE_GROUP, topic_id=TOPIC_ID, partition=0), value)

    def _commit(self, key: Any, value: Any) -> None:
        record: Any = SimpleNamespace(key=encode_key(key), value=encode_value(value, 0))
        self.checker.on_state_record(record)

    # The leader

    def load(self) -> None:
        self.leaders.append(_Leader())
        self._leader = self.leaders[-1]
        self.checker.on_loaded(self._leader, self.now_ms)

    def acquire(self, member: str, first: int, last: int, count: int = 1) -> None:
        session = self._sessions.setdefault(member, object())
        ranges = [AcquiredRange(first, last, count)]
        self.checker.on_acquired(self._leader, member, session, self._sessions.get, ranges, self.now_ms)

    def wake(self, leader: int) -> None:
        """Go on with a leader that others have followed, which does not know that."""
        self._leader = self.leaders[leader]

    def end_session(self, member: str) -> None:
        del self._sessions[member]

    def take_back(self, first: int, last: int) -> None:
        self.checker.on_undelivered(self._leader, [AcquiredRange(first, last, 1)])

    # Members

    def acknowledge(
        self, member: str, type: AcknowledgeType, *offsets: int, count: int = 1
    ) -> SentAcknowledgement:
        sent = SentAcknowledgement(
            KEY, member, dict.fromkeys(offsets, type), dict.fromkeys(offsets, count), self.now_ms
        )
        self.checker.on_acknowledging(sent)
        return sent

    def answer(self, sent: SentAcknowledgement, error: ErrorCode | None = ErrorCode.NONE) -> None:
        self.checker.on_answered(sent, error)

    def verdict(self) -> str | None:
        return next(self.checker.verdict([(TOPIC_ID, 0)]), None)


def _batch(each: tuple[int, int, int, int]) -> StateBatch:
    first, last, state, count = each
    return StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)


@pytest.fixture
def harness() -> ShareCheckerHarness:
    return ShareCheckerHarness()


class TestAcknowledgements:
    def test_an_answer_before_the_state_is_committed_is_found(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 4)
        sent = harness.acknowledge("a", ACCEPT, 0, 1)
        harness.update((0, 0, ACKNOWLEDGED, 1))
        harness.answer(sent)
        assert "orders-0 1 is acknowledged as ACCEPT" in (harness.violation or "")

    def test_an_error_promises_nothing(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 4)
        harness.answer(harness.acknowledge("a", ACCEPT, 0), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        harness.answer(harness.acknowledge("a", ACCEPT, 1), None)
        assert harness.violation is None

    @pytest.mark.parametrize("type", [ACCEPT, REJECT])
    def test_what_is_done_is_not_delivered_again(
        self, harness: ShareCheckerHarness, type: AcknowledgeType
    ) -> None:
        harness.acquire("a", 0, 4)
        sent = harness.acknowledge("a", type, 0)
        harness.update((0, 0, ARCHIVED, 1))
        harness.answer(sent)
        harness.acquire("b", 0, 0, 2)
        assert f"is delivered to b, and the {type.name} of a was answered" in (harness.violation or "")

    def test_a_leader_that_another_has_followed_may_not_know_it(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 0)
        harness.load()
        harness.acquire("b", 0, 0)
        sent = harness.acknowledge("b", ACCEPT, 0)
        harness.update((0, 0, ACKNOWLEDGED, 1))
        harness.answer(sent)
        harness.wake(0)
        harness.now_ms = LOCK_MS
        harness.acquire("c", 0, 0, 2)
        assert harness.violation is None

    def test_what_it_has_answered_itself_it_knows(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 0)
        sent = harness.acknowledge("a", ACCEPT, 0)
        harness.update((0, 0, ACKNOWLEDGED, 1))
        harness.answer(sent)
        harness.load()
        harness.wake(0)
        harness.acquire("b", 0, 0, 2)
        assert "is delivered to b" in (harness.violation or "")

    def test_nor_by_a_leader_that_has_loaded_the_state(self, harness: ShareCheckerHarness) -> None:
        harness.update((0, 0, ACKNOWLEDGED, 1))
        harness.load()
        harness.acquire("b", 0, 0)
        assert "was done when the leader took over" in (harness.violation or "")

    def test_a_release_is_persisted_with_its_count(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 4)
        sent = harness.acknowledge("a", RELEASE, 0)
        harness.answer(sent)
        assert "is acknowledged as RELEASE, and persisted is None" in (harness.violation or "")


class TestHolders:
    def test_two_members_hold_a_record(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 4)
        harness.now_ms = LOCK_MS - 10
        harness.acquire("b", 4, 4, 2)
        assert "is delivered to b, and a holds it for another 10 ms" in (harness.violation or "")

    def test_an_expired_lock_holds_nothing(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 4)
        harness.now_ms = LOCK_MS
        harness.acquire("b", 4, 4, 2)
        assert harness.violation is None

    def test_a_renewed_lock_does(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 4)
        harness.now_ms = LOCK_MS - 10
        harness.answer(harness.acknowledge("a", RENEW, 4))
        harness.now_ms = LOCK_MS
        harness.acquire("b", 3, 3, 2)
        assert harness.violation is None
        harness.acquire("b", 4, 4, 2)
        assert "a holds it" in (harness.violation or "")

    def test_a_member_that_acknowledges_or_ends_its_session_lets_go(
        self, harness: ShareCheckerHarness
    ) -> None:
        harness.acquire("a", 0, 4)
        harness.acknowledge("a", RELEASE, 0)
        harness.acquire("b", 0, 0, 2)
        harness.end_session("a")
        harness.acquire("b", 1, 1, 2)
        assert harness.violation is None

    def test_another_leader_does_not_know_the_holders(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 4)
        harness.load()
        harness.acquire("b", 0, 4)
        assert harness.violation is None


class TestCounts:
    def test_each_delivery_counts_one(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 0)
        harness.now_ms = LOCK_MS
        harness.acquire("a", 0, 0)
        assert "has the delivery count 1, and had 1 before" in (harness.violation or "")

    def test_another_leader_goes_on_from_what_was_persisted(self, harness: ShareCheckerHarness) -> None:
        harness.update((0, 0, AVAILABLE, 2))
        harness.load()
        harness.acquire("a", 1, 1)
        harness.acquire("a", 0, 0, 3)
        assert harness.violation is None

    def test_and_not_from_the_beginning(self, harness: ShareCheckerHarness) -> None:
        harness.update((0, 0, AVAILABLE, 2))
        harness.load()
        harness.acquire("a", 0, 0)
        assert "has the delivery count 1, and had 2 before" in (harness.violation or "")

    def test_the_limit_holds(self, harness: ShareCheckerHarness) -> None:
        harness.update((0, 0, AVAILABLE, LIMIT))
        harness.load()
        harness.acquire("a", 0, 0, LIMIT + 1)
        assert f"the limit is {LIMIT}" in (harness.violation or "")

    def test_what_was_not_sent_after_all_does_not_count(self, harness: ShareCheckerHarness) -> None:
        harness.acquire("a", 0, 0)
        harness.take_back(0, 0)
        harness.acquire("b", 0, 0)
        assert harness.violation is None


class TestState:
    def test_the_start_offset_does_not_pass_a_record(self, harness: ShareCheckerHarness) -> None:
        harness.update((0, 0, ACKNOWLEDGED, 1), (1, 1, AVAILABLE, 1))
        harness.update(start=1)
        assert harness.violation is None
        harness.update(start=2)
        assert "1 is not done, and the start offset moves from 1 to 2" in (harness.violation or "")

    def test_unless_it_was_delivered_as_often_as_is_allowed(self, harness: ShareCheckerHarness) -> None:
        harness.update((0, 0, AVAILABLE, LIMIT - 1))
        harness.load()
        harness.acquire("a", 0, 0, LIMIT)
        harness.update(start=1)
        assert harness.violation is None

    def test_it_does_not_go_back(self, harness: ShareCheckerHarness) -> None:
        harness.update((0, 3, ACKNOWLEDGED, 1))
        harness.update(start=4)
        harness.update(start=2)
        assert "is the start offset, which was 4 before" in (harness.violation or "")

    def test_a_snapshot_has_all_that_was_persisted(self, harness: ShareCheckerHarness) -> None:
        harness.update((1, 1, ACKNOWLEDGED, 1))
        harness.snapshot((1, 1, ACKNOWLEDGED, 1), start=0)
        assert harness.violation is None
        harness.snapshot(start=0)
        assert "has the state None in a snapshot" in (harness.violation or "")


class TestRecords:
    def test_records_are_complete_in_order_and_as_they_were_committed(
        self, harness: ShareCheckerHarness
    ) -> None:
        ranges = [AcquiredRange(0, 1, 1)]
        harness.checker.on_delivered(KEY, "a", ranges, [(0, b"0"), (1, b"1")])
        assert harness.violation is None

    @pytest.mark.parametrize(
        ("values", "text"),
        [
            ([(0, b"0")], "is delivered to a as None"),
            ([(0, b"0"), (1, b"2")], "as b'2'"),
            ([(1, b"1"), (0, b"0")], "out of order"),
        ],
    )
    def test_and_not_otherwise(
        self, harness: ShareCheckerHarness, values: list[tuple[int, bytes | None]], text: str
    ) -> None:
        harness.checker.on_delivered(KEY, "a", [AcquiredRange(0, 1, 1)], values)
        assert text in (harness.violation or "")


class TestVerdict:
    def test_each_record_is_done_at_the_end(self, harness: ShareCheckerHarness) -> None:
        assert "is not done at the end" in (harness.verdict() or "")

    def test_as_a_member_accepted_it(self, harness: ShareCheckerHarness) -> None:
        harness.update((0, 9, ACKNOWLEDGED, 1))
        assert "no member has accepted or rejected it" in (harness.verdict() or "")
        refused = harness.acknowledge("a", ACCEPT, *range(10))
        harness.answer(refused, ErrorCode.INVALID_RECORD_STATE)
        assert "no member has accepted or rejected it" in (harness.verdict() or "")
        harness.acknowledge("a", ACCEPT, *range(10))
        assert harness.verdict() is None

    def test_or_as_it_was_delivered_too_often(self, harness: ShareCheckerHarness) -> None:
        harness.update((0, 9, AVAILABLE, LIMIT - 1))
        harness.load()
        harness.acquire("a", 0, 9, LIMIT)
        assert harness.verdict() is None


class TestRetries:
    @pytest.fixture
    def waiting(self, harness: ShareCheckerHarness) -> ShareCheckerHarness:
        harness.checker.terms = ShareGroupTerms(LOCK_MS, LIMIT, False, 2, 10, retry_backoff_ms=500)
        harness.acquire("a", 0, 0)
        sent = harness.acknowledge("a", RELEASE, 0)
        harness.update((0, 0, AVAILABLE, 1))
        harness.answer(sent)
        return harness

    def test_one_that_comes_too_soon_is_found(self, waiting: ShareCheckerHarness) -> None:
        waiting.now_ms = 499
        waiting.acquire("b", 0, 0, 2)
        assert "orders-0 0 is delivered again after 499 ms" in (waiting.violation or "")

    def test_one_in_time_is_none(self, waiting: ShareCheckerHarness) -> None:
        waiting.now_ms = 500
        waiting.acquire("b", 0, 0, 2)
        assert waiting.violation is None

    def test_one_that_came_before_the_answer_is_found(self, harness: ShareCheckerHarness) -> None:
        harness.checker.terms = ShareGroupTerms(LOCK_MS, LIMIT, False, 2, 10, retry_backoff_ms=500)
        harness.acquire("a", 0, 0)
        sent = harness.acknowledge("a", RELEASE, 0)
        harness.update((0, 0, AVAILABLE, 1))
        harness.acquire("b", 0, 0, 2)
        harness.answer(sent)
        assert "orders-0 0 is delivered again after 0 ms" in (harness.violation or "")

    def test_a_new_leader_that_does_not_wait_is_found(self, waiting: ShareCheckerHarness) -> None:
        waiting.now_ms = 10_000
        waiting.load()
        waiting.now_ms += 499
        waiting.acquire("b", 0, 0, 2)
        assert "orders-0 0 is delivered again after 499 ms" in (waiting.violation or "")
