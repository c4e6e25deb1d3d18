"""The records in delivery to a share group, as their leader keeps them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from ottla.coordinator.share.persister import PersisterStateBatch
from ottla.node.share.share_partition import (
    AcquiredRange,
    LogBatch,
    RecordState,
    ShareGroupSettings,
    SharePartition,
    StateTransition,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.share import AcknowledgeType, ShareAcquireMode

A, B, C = "member-a", "member-b", "member-c"
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
GAP, RENEW = AcknowledgeType.GAP, AcknowledgeType.RENEW
AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
LIMIT = ShareAcquireMode.RECORD_LIMIT


class Ack(NamedTuple):
    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...]


def log_of(*sizes: int, base: int = 0) -> list[LogBatch]:
    """Batches of these many records that follow each other."""
    batches = []
    for size in sizes:
        batches.append(LogBatch(base, base + size - 1))
        base += size
    return batches


class Shared:
    """A share partition over a log, with the calls that tests repeat."""

    def __init__(
        self,
        log: list[LogBatch],
        *,
        start: int = 0,
        state: tuple[PersisterStateBatch, ...] = (),
        settings: ShareGroupSettings | None = None,
    ) -> None:
        self.log = log
        self.share = SharePartition(start, 0, settings or ShareGroupSettings(), state)
        self.now_ms = 0

    def fetch(
        self,
        member: str,
        *,
        most: int = 500,
        batch_size: int = 500,
        mode: ShareAcquireMode = ShareAcquireMode.BATCH_OPTIMIZED,
        aborted: tuple[LogBatch, ...] = (),
    ) -> list[AcquiredRange]:
        offset = self.share.next_fetch_offset()
        found = [each for each in self.log if each.last_offset >= offset]
        acquired = self.share.acquire(member, mode, batch_size, most, offset, found, self.now_ms, aborted)
        self.share.check_invariants()
        return acquired

    def acknowledge(self, member: str, first: int, last: int, *types: int, persisted: bool = True) -> None:
        transition = self.share.acknowledge(member, [Ack(first, last, types)], self.now_ms)
        self.share.check_invariants()
        self.share.complete(transition, persisted=persisted)
        self.share.check_invariants()

    def expire(self) -> list[PersisterStateBatch]:
        released = self.share.expire_locks(self.now_ms)
        self.share.complete_final(released, persisted=True)
        self.share.check_invariants()
        return released.batches


def assert_refused(code: ErrorCode, shared: Shared, member: str, first: int, last: int, *types: int) -> str:
    with pytest.raises(KafkaError) as refused:
        shared.acknowledge(member, first, last, *types)
    assert refused.value.code is code
    shared.share.check_invariants()
    return refused.value.message or ""


def test_batches_are_acquired_whole_and_new_ones_follow() -> None:
    shared = Shared(log_of(10, 10, 10))
    assert shared.fetch(A, most=15) == [(0, 19, 1)]
    assert shared.fetch(B, most=15) == [(20, 29, 1)]
    assert shared.fetch(C) == []
    assert shared.share.in_flight_records == 30
    assert shared.share.acquired_records == 30


def test_acquired_batches_are_divided_by_the_batch_size_at_boundaries_of_the_log() -> None:
    shared = Shared(log_of(4, 4, 4, 4, 4))
    assert shared.fetch(A, batch_size=6) == [(0, 7, 1), (8, 15, 1), (16, 19, 1)]
    without = Shared(log_of(2, 2))
    assert without.fetch(A, batch_size=0) == [(0, 1, 1), (2, 3, 1)]


def test_a_record_limit_is_exact_and_the_rest_of_the_batch_stays_available() -> None:
    shared = Shared(log_of(10))
    assert shared.fetch(A, most=3, mode=LIMIT) == [(0, 2, 1)]
    assert shared.share.next_fetch_offset() == 3
    assert shared.fetch(B, most=3, mode=LIMIT) == [(3, 5, 1)]
    shared.acknowledge(A, 1, 1, RELEASE)
    assert shared.fetch(C, most=2, mode=LIMIT) == [(1, 1, 2), (6, 6, 1)]


def test_the_start_offset_moves_past_what_is_accepted_in_order() -> None:
    shared = Shared(log_of(5, 5, 5))
    shared.fetch(A, most=5)
    shared.fetch(B, most=5)
    shared.fetch(C, most=5)
    shared.acknowledge(B, 5, 9, ACCEPT)
    assert (shared.share.start_offset, shared.share.delivery_complete_count) == (0, 5)
    shared.acknowledge(A, 0, 4, ACCEPT)
    assert (shared.share.start_offset, shared.share.delivery_complete_count) == (10, 0)
    shared.acknowledge(C, 10, 14, REJECT)
    assert (shared.share.start_offset, shared.share.end_offset) == (15, 15)
    assert shared.share.in_flight_records == 0
    assert shared.share.next_deadline_ms is None


def test_a_part_of_a_batch_can_be_acknowledged_and_each_offset_differently() -> None:
    shared = Shared(log_of(6))
    shared.fetch(A)
    shared.acknowledge(A, 0, 1, ACCEPT)
    assert shared.share.start_offset == 2
    shared.acknowledge(A, 2, 5, ACCEPT, RELEASE, REJECT, GAP)
    assert shared.share.start_offset == 3
    assert shared.fetch(B) == [(3, 3, 2)]
    shared.acknowledge(B, 3, 3, ACCEPT)
    assert shared.share.start_offset == 6


def test_only_the_member_that_holds_a_record_can_acknowledge_it() -> None:
    shared = Shared(log_of(5, 5))
    shared.fetch(A, most=5)
    shared.fetch(B, most=5)
    state = ErrorCode.INVALID_RECORD_STATE
    assert "owner" in assert_refused(state, shared, B, 0, 4, ACCEPT)
    assert "owner" in assert_refused(state, shared, A, 0, 9, ACCEPT)
    shared.acknowledge(A, 0, 0, RELEASE)
    assert "not acquired" in assert_refused(state, shared, A, 0, 4, ACCEPT)
    assert "past acquired" in assert_refused(ErrorCode.INVALID_REQUEST, shared, B, 5, 12, ACCEPT)
    assert "past acquired" in assert_refused(ErrorCode.INVALID_REQUEST, shared, B, 11, 12, ACCEPT)
    shared.acknowledge(A, 1, 4, ACCEPT)
    shared.acknowledge(B, 5, 9, ACCEPT)
    assert shared.fetch(C) == [(0, 0, 2)]


def test_an_acknowledgement_that_is_refused_changes_nothing_before_it_either() -> None:
    shared = Shared(log_of(5, 5))
    shared.fetch(A)
    with pytest.raises(KafkaError):
        shared.share.acknowledge(A, [Ack(0, 4, (ACCEPT,)), Ack(20, 24, (ACCEPT,))], 0)
    shared.share.check_invariants()
    assert shared.share.delivery_complete_count == 0
    shared.acknowledge(A, 0, 9, ACCEPT)


def test_what_was_acknowledged_below_the_start_offset_is_no_error() -> None:
    shared = Shared(log_of(5, 5))
    shared.fetch(A)
    shared.acknowledge(A, 0, 9, ACCEPT)
    shared.acknowledge(A, 0, 9, ACCEPT)


def test_a_transition_that_is_not_persisted_is_taken_back() -> None:
    shared = Shared(log_of(5, 5))
    shared.fetch(A, most=5)
    shared.acknowledge(A, 0, 4, ACCEPT, persisted=False)
    assert (shared.share.start_offset, shared.share.delivery_complete_count) == (0, 0)
    shared.acknowledge(A, 2, 3, RELEASE, persisted=False)
    assert shared.fetch(B) == [(5, 9, 1)]
    shared.acknowledge(A, 0, 4, ACCEPT)
    assert shared.share.start_offset == 5


def test_records_in_a_transition_are_neither_available_nor_acknowledged_again() -> None:
    shared = Shared(log_of(5))
    shared.fetch(A)
    transition = shared.share.acknowledge(A, [Ack(1, 2, (RELEASE,))], 0)
    assert shared.fetch(B) == []
    assert_refused(ErrorCode.INVALID_RECORD_STATE, shared, A, 1, 1, ACCEPT)
    shared.share.complete(transition, persisted=True)
    assert shared.fetch(B) == [(1, 2, 2)]


def test_a_lock_that_expires_in_a_transition_counts_when_that_is_taken_back() -> None:
    shared = Shared(log_of(3))
    shared.fetch(A)
    transition = shared.share.acknowledge(A, [Ack(0, 2, (ACCEPT,))], 0)
    shared.now_ms = 30_000
    assert shared.expire() == []
    shared.share.complete(transition, persisted=False)
    shared.share.check_invariants()
    assert shared.fetch(B) == [(0, 2, 2)]


def test_locks_expire_in_order_and_a_renewal_begins_again() -> None:
    shared = Shared(log_of(5, 5))
    shared.fetch(A, most=5)
    shared.now_ms = 10_000
    shared.fetch(B, most=5)
    shared.acknowledge(A, 2, 3, RENEW)
    assert shared.share.next_deadline_ms == 30_000
    shared.now_ms = 30_000
    assert shared.expire() == [(0, 1, AVAILABLE, 1), (4, 4, AVAILABLE, 1)]
    assert shared.share.counts.expired == 3
    shared.now_ms = 35_000
    shared.acknowledge(B, 5, 9, RENEW)
    shared.now_ms = 40_000
    assert shared.expire() == [(2, 3, AVAILABLE, 1)]
    shared.now_ms = 65_000
    assert shared.expire() == [(5, 9, AVAILABLE, 1)]
    assert shared.share.next_deadline_ms is None
    assert_refused(ErrorCode.INVALID_RECORD_STATE, shared, A, 0, 0, ACCEPT)


def test_a_shorter_lock_duration_expires_before_longer_ones_that_are_older() -> None:
    shared = Shared(log_of(5, 5))
    shared.fetch(A, most=5)
    shared.share.settings = ShareGroupSettings(record_lock_duration_ms=1000)
    shared.fetch(B, most=5)
    shared.now_ms = 1000
    assert shared.share.next_deadline_ms == 1000
    assert shared.expire() == [(5, 9, AVAILABLE, 1)]


def test_renewal_can_be_forbidden() -> None:
    shared = Shared(log_of(5), settings=ShareGroupSettings(renew_acknowledge_enable=False))
    shared.fetch(A)
    assert "not enabled" in assert_refused(ErrorCode.INVALID_RECORD_STATE, shared, A, 0, 4, RENEW)
    assert "not enabled" in assert_refused(ErrorCode.INVALID_RECORD_STATE, shared, A, 0, 1, RENEW)


def test_a_record_that_is_released_too_often_is_archived() -> None:
    shared = Shared(log_of(1), settings=ShareGroupSettings(delivery_count_limit=3))
    for delivery in (1, 2, 3):
        assert shared.fetch(A) == [(0, 0, delivery)]
        assert shared.share.start_offset == 0
        shared.acknowledge(A, 0, 0, RELEASE)
    assert shared.share.start_offset == 1
    assert shared.share.counts.archived == 1
    assert shared.fetch(A) == []


def test_archived_records_are_counted_however_their_last_delivery_ends() -> None:
    shared = Shared(log_of(6, 4, 5), settings=ShareGroupSettings(delivery_count_limit=1))
    shared.fetch(A, most=6)
    shared.acknowledge(A, 0, 0, ACCEPT)
    shared.acknowledge(A, 1, 1, REJECT)
    assert shared.share.counts.archived == 0
    shared.acknowledge(A, 2, 2, RELEASE)
    shared.acknowledge(A, 3, 5, RELEASE)
    assert shared.share.counts.archived == 4
    shared.fetch(A, most=4)
    transition = shared.share.release_acquired_records(A)
    shared.share.complete(transition, persisted=False)
    assert shared.share.counts.archived == 4
    shared.share.complete(shared.share.release_acquired_records(A), persisted=True)
    assert shared.share.counts.archived == 8
    shared.fetch(A)
    shared.now_ms = 30_000
    shared.expire()
    assert shared.share.counts.archived == 13


def test_a_batch_that_fails_often_is_delivered_in_smaller_and_smaller_parts() -> None:
    shared = Shared(log_of(8), settings=ShareGroupSettings(delivery_count_limit=5))
    deliveries = []
    for _ in range(60):
        acquired = shared.fetch(A)
        if not acquired:
            break
        deliveries.append(acquired)
        for first, last, _count in acquired:
            for offset in range(first, last + 1):
                # The record at offset 5 is bad: the members that get it fail.
                bad = acquired[0][0] <= 5 <= acquired[-1][1]
                shared.acknowledge(A, offset, offset, RELEASE if bad else ACCEPT)
    assert deliveries[:2] == [[(0, 7, 1)], [(0, 7, 2)]]
    assert deliveries[2] == [(0, 7, 3)] or deliveries[2] == [(0, 3, 3)]
    assert [(5, 5, 5)] in deliveries
    assert shared.share.start_offset == 8


def test_no_more_records_than_allowed_are_in_delivery() -> None:
    settings = ShareGroupSettings(partition_max_record_locks=100)
    shared = Shared(log_of(*[10] * 20), settings=settings)
    assert shared.fetch(A) == [(0, 99, 1)]
    assert not shared.share.can_acquire_records()
    assert shared.fetch(B) == []
    shared.acknowledge(A, 50, 59, RELEASE)
    assert shared.share.can_acquire_records()
    assert shared.fetch(B) == [(50, 59, 2)]
    shared.acknowledge(A, 0, 9, ACCEPT)
    assert shared.fetch(B) == [(100, 109, 1)]


def test_all_that_a_member_holds_is_released_at_once() -> None:
    shared = Shared(log_of(5, 5, 5))
    shared.fetch(A, most=5)
    shared.fetch(B, most=5)
    shared.fetch(A, most=5)
    shared.acknowledge(A, 1, 1, ACCEPT)
    transition = shared.share.release_acquired_records(A)
    assert transition.batches == [(0, 0, AVAILABLE, 1), (2, 4, AVAILABLE, 1), (10, 14, AVAILABLE, 1)]
    shared.share.complete(transition, persisted=True)
    shared.share.check_invariants()
    assert not shared.share.release_acquired_records(A)
    assert shared.fetch(C) == [(0, 0, 2), (2, 4, 2), (10, 14, 2)]


def test_a_release_of_a_session_counts_as_a_delivery() -> None:
    shared = Shared(log_of(1), settings=ShareGroupSettings(delivery_count_limit=2))
    shared.fetch(A)
    shared.share.complete(shared.share.release_acquired_records(A), persisted=True)
    shared.fetch(A)
    shared.share.complete(shared.share.release_acquired_records(A), persisted=True)
    assert shared.share.start_offset == 1


def test_what_was_not_sent_is_taken_back_without_a_delivery() -> None:
    shared = Shared(log_of(5))
    acquired = shared.fetch(A)
    shared.share.release_undelivered(A, acquired)
    shared.share.check_invariants()
    assert shared.fetch(B) == [(0, 4, 1)]


@pytest.mark.parametrize("holder", [A, B])
def test_what_was_not_sent_is_not_taken_from_who_has_it_since_the_lock_expired(holder: str) -> None:
    shared = Shared(log_of(5))
    acquired = shared.fetch(A)
    shared.now_ms = 30_000
    shared.share.expire_locks(shared.now_ms)
    assert shared.fetch(holder) == [(0, 4, 2)]
    shared.share.release_undelivered(A, acquired)
    shared.share.check_invariants()
    assert shared.fetch(C) == []
    assert shared.share.acquired_records == 5


def test_what_was_not_sent_is_not_available_again_below_the_start_of_the_log() -> None:
    shared = Shared(log_of(5, 5, 5))
    acquired = shared.fetch(A, most=5)
    shared.share.update_log_start_offset(8)
    shared.log = shared.log[1:]
    assert shared.fetch(B, most=2) == [(8, 9, 1)]
    shared.share.release_undelivered(A, acquired)
    shared.share.check_invariants()
    # A fetch from an offset that the log has no longer would fail each time.
    assert shared.share.next_fetch_offset() == 10
    shared.acknowledge(B, 8, 9, ACCEPT)
    assert shared.share.start_offset == 10


def test_the_log_start_archives_what_is_available_and_leaves_what_is_held() -> None:
    shared = Shared(log_of(5, 5, 5, 5))
    shared.fetch(A, most=5)
    shared.fetch(B, most=5)
    shared.acknowledge(A, 0, 4, RELEASE)
    shared.share.update_log_start_offset(8)
    shared.share.check_invariants()
    assert shared.share.start_offset == 8
    assert shared.fetch(C, most=5) == [(10, 14, 1)]
    shared.now_ms = 30_000
    assert shared.expire()
    assert shared.fetch(C, most=2) == [(8, 9, 2)]
    shared.share.update_log_start_offset(100)
    shared.share.check_invariants()
    assert shared.share.next_fetch_offset() == 100
    shared.now_ms = 90_000
    shared.expire()
    assert (shared.share.start_offset, shared.share.end_offset) == (100, 100)
    assert shared.share.in_flight_records == 0


def test_records_that_compaction_removed_are_archived() -> None:
    shared = Shared(log_of(5, 5, 5))
    shared.fetch(A, most=5)
    shared.fetch(A, most=5)
    shared.acknowledge(A, 0, 9, RELEASE)
    shared.log = log_of(5, 5, base=5)
    assert shared.fetch(B, most=5) == [(5, 9, 2)]
    assert shared.share.start_offset == 5


def test_aborted_records_are_archived_and_do_not_hold_up_the_start() -> None:
    shared = Shared(log_of(5, 5, 5))
    acquired = shared.fetch(A, aborted=(LogBatch(0, 4), LogBatch(10, 14)))
    assert acquired == [(5, 9, 1)]
    assert shared.share.start_offset == 5
    shared.acknowledge(A, 5, 9, ACCEPT)
    assert shared.share.start_offset == 15
    many = Shared(log_of(*[50] * 100), settings=ShareGroupSettings(partition_max_record_locks=100))
    for _ in range(49):
        assert many.fetch(A, aborted=tuple(many.log[:-2])) == []
    assert many.fetch(A, aborted=tuple(many.log[:-2])) == [(4900, 4999, 1)]


def test_state_that_was_persisted_is_continued_and_gaps_in_it_are_fetched() -> None:
    state = (
        PersisterStateBatch(5, 9, ACKNOWLEDGED, 1),
        PersisterStateBatch(15, 17, AVAILABLE, 2),
        PersisterStateBatch(20, 24, ARCHIVED, 5),
    )
    shared = Shared(log_of(*[10] * 4), start=0, state=state)
    assert (shared.share.start_offset, shared.share.end_offset) == (0, 24)
    assert shared.share.delivery_complete_count == 10
    assert shared.share.next_fetch_offset() == 0
    assert shared.fetch(A, most=3) == [(0, 4, 1)]
    assert shared.share.next_fetch_offset() == 10
    assert shared.fetch(A) == [(10, 14, 1), (15, 17, 3), (18, 19, 1), (25, 39, 1)]
    shared.acknowledge(A, 0, 4, ACCEPT)
    shared.acknowledge(A, 10, 19, ACCEPT)
    assert shared.share.start_offset == 25
    shared.acknowledge(A, 25, 39, ACCEPT)
    assert shared.share.start_offset == 40


def test_the_start_does_not_pass_a_gap_that_was_not_fetched() -> None:
    state = (PersisterStateBatch(0, 4, ACKNOWLEDGED, 1), PersisterStateBatch(8, 9, ACKNOWLEDGED, 1))
    shared = Shared(log_of(10, 10), start=0, state=state)
    assert shared.share.start_offset == 5
    assert shared.fetch(A) == [(5, 7, 1), (10, 19, 1)]
    shared.acknowledge(A, 5, 7, ACCEPT)
    assert shared.share.start_offset == 10


def test_a_gap_without_records_is_passed() -> None:
    state = (PersisterStateBatch(0, 4, ACKNOWLEDGED, 1), PersisterStateBatch(20, 29, ACKNOWLEDGED, 1))
    shared = Shared([LogBatch(0, 4), LogBatch(20, 29), LogBatch(30, 34)], start=0, state=state)
    assert shared.fetch(A) == [(30, 34, 1)]
    assert shared.share.start_offset == 30


def test_a_start_offset_in_the_middle_of_a_batch_is_kept() -> None:
    shared = Shared(log_of(10, 10), start=7)
    assert shared.fetch(A) == [(7, 19, 1)]


def test_contradictory_state_is_refused() -> None:
    for state in (
        (PersisterStateBatch(3, 9, AVAILABLE, 1),),
        (PersisterStateBatch(5, 9, AVAILABLE, 1), PersisterStateBatch(9, 9, ACKNOWLEDGED, 1)),
        (PersisterStateBatch(9, 5, AVAILABLE, 1),),
        (PersisterStateBatch(5, 9, RecordState.ACQUIRED, 1),),
    ):
        with pytest.raises(KafkaError):
            SharePartition(5, 0, ShareGroupSettings(), state)


def test_a_batch_of_many_records_is_released_in_pieces_not_record_by_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces: list[int] = []
    add = StateTransition.add

    def counted(self: StateTransition, *args: Any) -> None:
        pieces.append(args[2] - args[1] + 1)
        add(self, *args)

    records = 300_000
    shared = Shared(log_of(records))
    assert shared.fetch("m") == [AcquiredRange(0, records - 1, 1)]
    shared.acknowledge("m", 1_000, 1_999, AcknowledgeType.ACCEPT)
    monkeypatch.setattr(StateTransition, "add", counted)
    transition = shared.share.release_acquired_records("m")
    shared.share.complete(transition, persisted=True)
    shared.share.check_invariants()
    assert pieces == [1_000, records - 2_000]
    # What expires is released in the same way.
    pieces.clear()
    assert [each.first_offset for each in shared.fetch("m", most=records)] == [0, 2_000]
    shared.now_ms += 30_001
    shared.expire()
    assert sorted(pieces) == [1_000, records - 2_000]


def test_records_of_two_members_in_one_batch_are_released_one_by_one_where_they_are_mixed() -> None:
    shared = Shared(log_of(10))
    shared.fetch("a")
    for offset in range(0, 10, 2):
        shared.acknowledge("a", offset, offset, AcknowledgeType.RELEASE)
    shared.fetch("b", most=10)
    transition = shared.share.release_acquired_records("a")
    assert [(each.first_offset, each.last_offset) for each in transition.batches] == [
        (offset, offset) for offset in range(1, 10, 2)
    ]
    shared.share.complete(transition, persisted=True)
    shared.share.check_invariants()
    assert [each.first_offset for each in shared.fetch("c", most=10)] == [1, 3, 5, 7, 9]


def test_released_records_wait_together_and_new_ones_do_not() -> None:
    shared = Shared(log_of(5, 5), settings=ShareGroupSettings(retry_backoff_ms=1000))
    shared.fetch(A, most=5)
    shared.acknowledge(A, 0, 4, RELEASE)
    assert shared.share.waiting_records == 5
    assert shared.share.next_deadline_ms == 1000
    assert shared.fetch(B) == [(5, 9, 1)]
    assert not shared.share.end_waits(999)
    assert shared.fetch(C) == []
    assert shared.share.end_waits(1000)
    assert shared.fetch(C) == [(0, 4, 2)]
    assert shared.share.waiting_records == 0


def test_a_record_that_waits_holds_the_start_offset_and_counts_against_the_limit() -> None:
    settings = ShareGroupSettings(retry_backoff_ms=1000, partition_max_record_locks=5)
    shared = Shared(log_of(5, 5), settings=settings)
    shared.fetch(A, most=5)
    shared.acknowledge(A, 0, 4, RELEASE, ACCEPT, ACCEPT, ACCEPT, RELEASE)
    assert (shared.share.start_offset, shared.share.delivery_complete_count) == (0, 3)
    assert not shared.share.can_acquire_records()
    shared.share.end_waits(1000)
    assert shared.fetch(B) == [(0, 0, 2), (4, 4, 2)]


def test_a_lock_that_expires_and_a_member_that_leaves_do_not_make_records_wait() -> None:
    shared = Shared(log_of(4), settings=ShareGroupSettings(retry_backoff_ms=1000))
    shared.fetch(A, most=2, mode=LIMIT)
    shared.fetch(B, most=2, mode=LIMIT)
    shared.share.complete(shared.share.release_acquired_records(A), persisted=True)
    assert shared.fetch(C, most=2, mode=LIMIT) == [(0, 1, 2)]
    shared.now_ms = 30_000
    shared.expire()
    assert shared.share.waiting_records == 0


def test_waits_grow_with_the_deliveries_up_to_a_maximum_and_are_spread() -> None:
    settings = ShareGroupSettings(retry_backoff_ms=100, retry_backoff_max_ms=1000)
    for count, mean_ms in ((1, 100), (2, 200), (4, 800), (5, 1000), (9, 1000), (200, 1000)):
        delays = {settings.retry_delay_ms(count, offset) for offset in range(200)}
        assert mean_ms * 0.8 <= min(delays) < mean_ms < max(delays) <= mean_ms * 1.2
    fixed = ShareGroupSettings(retry_backoff_ms=100, retry_backoff_max_ms=100)
    assert {fixed.retry_delay_ms(count, 7 * count) for count in range(10)} == {100}


@pytest.mark.parametrize("last", [2, 4])
def test_a_wait_that_an_operator_has_ended_does_not_end_the_next_one(last: int) -> None:
    shared = Shared(log_of(5), settings=ShareGroupSettings(retry_backoff_ms=1000))
    shared.fetch(A)
    shared.acknowledge(A, 0, 4, RELEASE)
    shared.now_ms = 900
    assert shared.share.alter_records([(0, last, -1)], RELEASE, 900, most_looks=10).size == last + 1
    assert shared.fetch(B) == [(0, last, 2)]
    shared.acknowledge(B, 0, last, RELEASE)
    assert shared.share.end_waits(1000) == (last < 4)
    assert shared.share.waiting_records == last + 1
    assert not shared.share.end_waits(1899)
    assert shared.share.end_waits(1900)
    shared.share.check_invariants()


def test_what_waits_is_archived_when_the_log_starts_after_it() -> None:
    shared = Shared(log_of(5, 5), settings=ShareGroupSettings(retry_backoff_ms=1000))
    shared.fetch(A)
    shared.acknowledge(A, 0, 9, RELEASE)
    shared.share.update_log_start_offset(7)
    shared.share.check_invariants()
    assert shared.share.waiting_records == 3
    assert shared.share.end_waits(1000)
    assert shared.fetch(B) == [(7, 9, 2)]


def test_a_new_leader_has_records_wait_that_were_delivered_before() -> None:
    state = (PersisterStateBatch(0, 3, AVAILABLE, 2), PersisterStateBatch(4, 5, ARCHIVED, 1))
    shared = Shared(log_of(10), state=state, settings=ShareGroupSettings(retry_backoff_ms=1000))
    shared.share.wait_before_retries(500)
    assert shared.fetch(A) == [(6, 9, 1)]
    assert not shared.share.end_waits(1499)
    assert shared.share.end_waits(1500)
    assert shared.fetch(A) == [(0, 3, 3)]


def with_dead_letters(shared: Shared, **settings: int) -> Shared:
    shared.share.settings = replace(shared.share.settings, dead_letter_topic="dlq.jobs", **settings)
    return shared


def dead_letters(shared: Shared) -> list[tuple[int, int, int, bool, bool]]:
    return [tuple(each) for each in sorted(shared.share.dead_letters.values())]


def test_what_is_rejected_is_archiving_until_it_is_a_dead_letter() -> None:
    shared = with_dead_letters(Shared(log_of(5)))
    shared.fetch(A)
    transition = shared.share.acknowledge(A, [Ack(1, 2, (REJECT,))], shared.now_ms)
    assert transition.batches == [PersisterStateBatch(1, 2, RecordState.ARCHIVING, 1)]
    assert dead_letters(shared) == []  # not before that is persisted
    shared.share.complete(transition, persisted=True)
    assert dead_letters(shared) == [(1, 2, 1, True, True)]
    shared.acknowledge(A, 0, 0, ACCEPT)
    shared.acknowledge(A, 3, 4, ACCEPT)
    assert shared.share.start_offset == 1
    assert shared.fetch(B) == []
    letters = list(shared.share.dead_letters.values())
    archived = shared.share.archived(letters)
    assert archived.batches == [PersisterStateBatch(1, 2, RecordState.ARCHIVED, 1)]
    # What is written with it counts it as done.
    assert shared.share.write_state(0, archived.batches).delivery_complete_count == 4
    shared.share.complete_dead_letters(letters)
    assert shared.share.start_offset == 5
    shared.share.check_invariants()


def test_a_part_of_the_dead_letters_may_be_archived_first() -> None:
    shared = with_dead_letters(Shared(log_of(6)))
    shared.fetch(A)
    shared.acknowledge(A, 0, 5, REJECT)
    (whole,) = shared.share.dead_letters.values()
    shared.share.complete_dead_letters([whole._replace(first_offset=2, last_offset=3)])
    assert dead_letters(shared) == [(0, 1, 1, True, True), (4, 5, 1, True, True)]
    shared.share.complete_dead_letters([whole._replace(last_offset=1)])
    assert shared.share.start_offset == 4
    shared.share.check_invariants()


def test_what_is_used_up_when_its_lock_expires_is_persisted_before_it_is_a_dead_letter() -> None:
    shared = with_dead_letters(Shared(log_of(2)), delivery_count_limit=1)
    shared.fetch(A)
    shared.now_ms += 60_000
    released = shared.share.expire_locks(shared.now_ms)
    assert released.batches == [PersisterStateBatch(0, 1, RecordState.ARCHIVING, 1)]
    shared.share.complete_final(released, persisted=False)
    assert dead_letters(shared) == [(0, 1, 1, False, False)]
    again = shared.share.unpersisted_dead_letters()
    assert again is not None
    assert again.batches == released.batches
    shared.share.complete_final(again, persisted=True)
    assert dead_letters(shared) == [(0, 1, 1, False, True)]
    assert shared.share.unpersisted_dead_letters() is None


def test_a_transition_that_is_taken_back_after_the_lock_has_expired_leaves_dead_letters() -> None:
    shared = with_dead_letters(Shared(log_of(2)), delivery_count_limit=1)
    shared.fetch(A)
    transition = shared.share.acknowledge(A, [Ack(0, 1, (ACCEPT,))], shared.now_ms)
    shared.now_ms += 60_000
    shared.share.complete_final(shared.share.expire_locks(shared.now_ms), persisted=True)
    shared.share.complete(transition, persisted=False)
    assert dead_letters(shared) == [(0, 1, 1, False, False)]
    shared.share.check_invariants()


def test_a_new_leader_has_the_dead_letters_that_were_not_archived() -> None:
    batches = [
        PersisterStateBatch(0, 1, RecordState.ARCHIVING, 2),
        PersisterStateBatch(2, 2, RecordState.ACKNOWLEDGED, 1),
        PersisterStateBatch(3, 3, RecordState.ARCHIVING, 5),
    ]
    share = SharePartition(0, 0, ShareGroupSettings(delivery_count_limit=5), batches)
    assert share.start_offset == 0
    assert share.next_fetch_offset() == 4
    found = [(each.first_offset, each.is_rejected) for each in share.dead_letters.values()]
    assert found == [(0, True), (3, False)]
    share.complete_dead_letters(list(share.dead_letters.values()))
    assert share.start_offset == 4
    share.check_invariants()
