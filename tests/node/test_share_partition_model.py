"""A share partition beside a naive model: one dict entry for each offset, and a walk over all of them for
every question. Both get the same random acquisitions, acknowledgements, renewals, expiries, failed writes and
moves of the log's start.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from tests.node.test_share_partition import Ack

from ottla.coordinator.share.persister import PersisterStateBatch
from ottla.node.share.share_partition import (
    InFlightState,
    LogBatch,
    RecordState,
    ShareGroupSettings,
    SharePartition,
    StateTransition,
)
from ottla.protocol.errors import KafkaError
from ottla.protocol.share import AcknowledgeType, ShareAcquireMode

MEMBERS = ("a", "b", "c", "d")
DONE = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
OUTCOME = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}


@dataclass
class Known:
    """One offset as the model knows it."""

    state: RecordState = RecordState.AVAILABLE
    count: int = 0
    member: str = ""
    deadline_ms: int = 0
    pending: RecordState | None = None  # the state that is being written
    released_ms: int | None = None  # when that state was asked for, if it is to wait then
    waits_until_ms: int = 0

    @property
    def is_free(self) -> bool:
        return self.state is RecordState.AVAILABLE and self.pending is None and not self.waits_until_ms


class Run:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limit = self.random.choice((2, 3, 5))
        self.max_locks = self.random.choice((100, 150, 400))
        self.settings = ShareGroupSettings(
            record_lock_duration_ms=self.random.choice((1000, 5000)),
            delivery_count_limit=self.limit,
            partition_max_record_locks=self.max_locks,
            retry_backoff_ms=self.random.choice((0, 0, 300, 2000)),
            retry_backoff_max_ms=self.random.choice((0, 500, 8000)),
        )
        self.share = SharePartition(0, 0, self.settings)
        self.known: dict[int, Known] = {}
        # What the coordinator has.
        self.persisted: dict[int, tuple[int, int]] = {}
        self.persisted_start = 0
        self.delivered: dict[int, int] = {}
        self.log: list[LogBatch] = []
        self.log_start = 0
        self.log_end = 0
        self.now_ms = 0
        self.writes: list[tuple[StateTransition, set[int]]] = []

    def append(self) -> None:
        base = self.log_end
        if self.random.random() < 0.05:
            base += self.random.randrange(1, 10)  # a natural gap
        self.log_end = base + self.random.randrange(1, 30)
        self.log.append(LogBatch(base, self.log_end - 1))

    def fetch(self) -> None:
        share, known = self.share, self.known
        offset = share.next_fetch_offset()
        assert offset == self.expected_next_fetch(), (offset, self.expected_next_fetch())
        if offset < self.log_start:
            share.update_log_start_offset(self.log_start)
            for at, each in known.items():
                provisional = each.state if each.pending is None else each.pending
                if at < self.log_start and provisional is RecordState.AVAILABLE:
                    each.state, each.pending = RecordState.ARCHIVED, None
            return
        found = [each for each in self.log if each.last_offset >= offset][: self.random.randrange(1, 8)]
        if not found or not share.can_acquire_records():
            return
        member = self.random.choice(MEMBERS)
        mode = self.random.choice(list(ShareAcquireMode))
        most = self.random.choice((1, 3, 10, 100))
        for at, each in known.items():
            provisional = each.state if each.pending is None else each.pending
            if offset <= at < found[0].base_offset and provisional is RecordState.AVAILABLE:
                each.state, each.pending = RecordState.ARCHIVED, None  # there is no such record
        free_before = [at for at in sorted(known) if known[at].is_free and at <= found[-1].last_offset]
        end_before = max(known, default=share.end_offset - 1)
        acquired = share.acquire(
            member, mode, self.random.choice((1, 10, 50)), most, offset, found, self.now_ms
        )
        total = 0
        previous = -1
        for first, last, count in acquired:
            assert previous < first <= last
            previous = last
            for at in range(first, last + 1):
                each = known.get(at)
                if each is None:
                    assert at > end_before or at >= share.start_offset
                    each = known[at] = Known()
                assert each.is_free, (at, each)
                assert at >= self.log_start or at >= found[0].base_offset
                each.state, each.count, each.member = RecordState.ACQUIRED, each.count + 1, member
                each.deadline_ms = self.now_ms + self.settings.record_lock_duration_ms
                assert each.count == count <= self.limit, (at, each, count)
                total += 1
        # What a record limit has left of a batch is known, and available.
        for at in range(end_before + 1, share.end_offset + 1 if share.in_flight_batches else 0):
            if at >= share.start_offset and at not in known and acquired and at > acquired[-1].last_offset:
                known[at] = Known()
        if mode is ShareAcquireMode.RECORD_LIMIT:
            assert total <= most
        if free_before and free_before[0] >= offset:
            assert acquired, "an available record was not delivered"
            assert acquired[0].first_offset == free_before[0]

    def expected_next_fetch(self) -> int:
        start = self.share.start_offset
        free = [at for at, each in self.known.items() if each.is_free and at >= start]
        if free:
            return min(free)
        last = max(self.known, default=-1)
        if not self.share.in_flight_batches or last < start:
            return self.share.end_offset
        return last + 1

    def acknowledge(self) -> None:
        share, known = self.share, self.known
        member = self.random.choice(MEMBERS)
        held = sorted(at for at, each in known.items() if each.state is RecordState.ACQUIRED)
        if not held:
            return
        first = self.random.choice(held)
        if self.random.random() < 0.8:
            member = known[first].member
            last = first
            while last + 1 in known and known[last + 1].member == member and self.random.random() < 0.9:
                last += 1
        else:
            last = first + self.random.randrange(0, 10)
        size = last - first + 1
        choices = list(AcknowledgeType)
        single = size == 1 or self.random.random() < 0.5
        types = tuple(self.random.choice(choices) for _ in range(1 if single else size))
        start = share.start_offset
        offsets = [at for at in range(max(first, start), last + 1) if at in known]
        holds = all(
            known[at].state is RecordState.ACQUIRED
            and known[at].pending is None
            and known[at].member == member
            for at in offsets
        )
        allowed = last < start or (
            holds and last <= max(known) and (last in known or last < start) and bool(offsets)
        )
        try:
            transition = share.acknowledge(member, [Ack(first, last, types)], self.now_ms)
        except KafkaError:
            assert not allowed, (member, first, last, types, start)
            # Locks that were renewed before the refusal stay renewed.
            for at in offsets:
                each = known[at]
                type = types[0] if len(types) == 1 else types[at - first]
                if (
                    each.member != member
                    or each.state is not RecordState.ACQUIRED
                    or each.pending is not None
                ):
                    break
                if type is AcknowledgeType.RENEW and self.share_deadline(at) != each.deadline_ms:
                    each.deadline_ms = self.now_ms + self.settings.record_lock_duration_ms
            return
        assert allowed, (member, first, last, types, start)
        changed = set()
        for at in offsets:
            each = known[at]
            type = types[0] if len(types) == 1 else types[at - first]
            if type is AcknowledgeType.RENEW:
                each.deadline_ms = self.now_ms + self.settings.record_lock_duration_ms
                continue
            each.pending = self.outcome(OUTCOME[type], each.count)
            each.released_ms = self.now_ms if self.settings.retry_backoff_ms else None
            changed.add(at)
        assert changed == offsets_of(transition)
        if transition:
            self.writes.append((transition, changed))

    def share_deadline(self, offset: int) -> int:
        for locks in self.share._by_member.values():
            for lock in locks:
                if lock.first <= offset <= lock.last:
                    batch = lock.batch
                    own = batch.lock if batch.states is None else batch.locks[offset - batch.first]
                    if own is lock:
                        return lock.deadline_ms
        raise AssertionError(offset)

    def outcome(self, state: RecordState, count: int) -> RecordState:
        return RecordState.ARCHIVED if state is RecordState.AVAILABLE and count >= self.limit else state

    def release_member(self) -> None:
        member = self.random.choice(MEMBERS)
        transition = self.share.release_acquired_records(member)
        changed = set()
        for at, each in self.known.items():
            if each.state is RecordState.ACQUIRED and each.pending is None and each.member == member:
                below = at < self.share.start_offset
                each.pending = (
                    RecordState.ARCHIVED if below else self.outcome(RecordState.AVAILABLE, each.count)
                )
                changed.add(at)
        assert changed == offsets_of(transition)
        if transition:
            self.writes.append((transition, changed))

    def alter(self) -> None:
        """What an operator does to records, held or not."""
        if not self.known:
            return
        first = self.random.choice(sorted(self.known))
        last = first + self.random.choice((0, 3, 40))
        type = self.random.choice((AcknowledgeType.GAP, AcknowledgeType.RELEASE, AcknowledgeType.REJECT))
        count = self.random.choice((-1, -1, 1, 2))
        most = self.random.choice((1, 1_000))
        done = self.share.alter_records([(first, last, count)], type, self.now_ms, most_looks=most)
        if done.next_offset is not None:
            assert first < done.next_offset <= last, (first, done.next_offset, last)
            assert most == 1
            last = done.next_offset - 1
        changed, altered = set(), 0
        for at in range(max(first, self.share.start_offset), last + 1):
            each = self.known.get(at)
            if each is None or each.pending is not None or count not in (-1, each.count):
                continue
            if each.state is RecordState.AVAILABLE and type is AcknowledgeType.RELEASE:
                altered += each.waits_until_ms > 0
                each.waits_until_ms = 0
            elif each.state in (RecordState.AVAILABLE, RecordState.ACQUIRED):
                each.pending = self.outcome(OUTCOME[type], each.count)
                each.released_ms = None
                changed.add(at)
                altered += 1
        assert changed == offsets_of(done.transition)
        assert altered == done.size
        if done.transition:
            self.writes.append((done.transition, changed))

    def list_records(self) -> None:
        page = self.share.records_in_flight(
            0, frozenset(InFlightState), self.now_ms, most=10_000, most_looks=10_000
        )
        assert page.next_offset is None
        listed = {}
        for each in page.records:
            for at in range(each.first_offset, each.last_offset + 1):
                held = each.left_ms if each.state in (InFlightState.HELD, InFlightState.WAITING) else 0
                listed[at] = (each.state, each.delivery_count, each.member_id, held)
        expected: dict[int, tuple[InFlightState, int, str | None, int]] = {}
        for at, known in self.known.items():
            if at < self.share.start_offset or known.pending is not None:
                continue
            if known.state is RecordState.ACQUIRED:
                left_ms = max(0, known.deadline_ms - self.now_ms)
                expected[at] = (InFlightState.HELD, known.count, known.member, left_ms)
            elif known.state is RecordState.AVAILABLE and known.waits_until_ms:
                left_ms = max(0, known.waits_until_ms - self.now_ms)
                expected[at] = (InFlightState.WAITING, known.count, None, left_ms)
            elif known.state is RecordState.AVAILABLE:
                expected[at] = (InFlightState.AVAILABLE, known.count, None, 0)
        assert listed == expected

    def end_write(self) -> None:
        if not self.writes:
            return
        transition, changed = self.writes.pop(0)
        persisted = self.random.random() < 0.7
        if persisted:
            self.persist(transition)
        start = self.share.start_offset
        self.share.complete(transition, persisted=persisted)
        for at in changed:
            each = self.known.get(at)
            if each is None or each.pending is None:
                continue  # archived meanwhile
            if persisted:
                each.state = each.pending
                if each.state is RecordState.AVAILABLE and each.released_ms is not None:
                    # Runs wait together: by the end of the first of them.
                    run = next(r for r in transition.batches if r.first_offset <= at <= r.last_offset)
                    delay_ms = self.settings.retry_delay_ms(each.count, run.first_offset)
                    assert delay_ms >= 0.8 * self.settings.retry_backoff_ms
                    each.waits_until_ms = each.released_ms + delay_ms
            elif each.state is RecordState.AVAILABLE:
                each.state = RecordState.ARCHIVED if at < start else RecordState.AVAILABLE
            elif each.deadline_ms <= self.now_ms and each.deadline_ms <= self.expired_until:
                below = at < start
                each.state = (
                    RecordState.ARCHIVED if below else self.outcome(RecordState.AVAILABLE, each.count)
                )
            each.pending = each.released_ms = None

    expired_until = -1

    def persist(self, transition: StateTransition) -> None:
        write = self.share.write_state(0, transition.batches)
        assert write.start_offset >= self.persisted_start
        self.persisted_start = write.start_offset
        for first, last, state, count in write.batches:
            for at in range(first, last + 1):
                self.persisted[at] = (state, count)

    def tick(self) -> None:
        self.now_ms += self.random.choice((1, 100, 900, 3000))
        released = self.share.expire_locks(self.now_ms)
        self.expired_until = self.now_ms
        has_waited = False
        for each in self.known.values():
            if each.pending is None and 0 < each.waits_until_ms <= self.now_ms:
                has_waited = has_waited or each.state is RecordState.AVAILABLE
                each.waits_until_ms = 0
        assert self.share.end_waits(self.now_ms) == has_waited
        expected = set()
        for at, each in self.known.items():
            if (
                each.state is RecordState.ACQUIRED
                and each.pending is None
                and each.deadline_ms <= self.now_ms
            ):
                below = at < self.share.start_offset
                each.state = (
                    RecordState.ARCHIVED if below else self.outcome(RecordState.AVAILABLE, each.count)
                )
                expected.add(at)
        assert expected == offsets_of(released)
        if released and self.random.random() < 0.7:
            self.persist(released)
        self.share.complete_final(persisted=True)

    def delete_records(self) -> None:
        if self.log:
            self.log_start = self.random.randrange(self.log_start, self.log_end + 1)
            self.log = [each for each in self.log if each.last_offset >= self.log_start]

    def reload(self) -> None:
        """Begin again with what was persisted, as a new leader does."""
        self.writes.clear()
        start = self.persisted_start
        batches = []
        for at in sorted(self.persisted):
            if at >= start:
                state, count = self.persisted[at]
                batches.append(PersisterStateBatch(at, at, state, count))
        self.share = SharePartition(start, 0, self.settings, batches)
        last = batches[-1].last_offset if batches else -1
        self.known = {
            at: Known(RecordState(state), count)
            for at, (state, count) in self.persisted.items()
            if at >= self.share.start_offset and at <= last
        }
        self.share.wait_before_retries(self.now_ms)
        for at, each in self.known.items():
            if self.settings.retry_backoff_ms and each.state is RecordState.AVAILABLE and each.count:
                each.waits_until_ms = self.now_ms + self.settings.retry_delay_ms(each.count, at)

    def end_waits(self) -> None:
        """Have all that waits for a retry be available."""
        self.now_ms += max(self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms) * 2
        self.share.end_waits(self.now_ms)
        for each in self.known.values():
            each.waits_until_ms = 0

    def check(self) -> None:
        self.share.check_invariants()
        start = self.share.start_offset
        for at in [at for at in self.known if at < start and self.known[at].state in DONE]:
            if self.known[at].pending is None:
                del self.known[at]
        done = sum((each.pending or each.state) in DONE for at, each in self.known.items() if at >= start)
        if self.share.in_flight_batches:
            assert done == self.share.delivery_complete_count
        # The start never passes a record that is not done, unless the log's start has.
        for at, each in self.known.items():
            if each.pending is not None and each.state is RecordState.AVAILABLE:
                continue  # an operator changes it
            assert at >= start or each.state in (*DONE, RecordState.ACQUIRED), (at, each, start)
            assert at >= start or at < self.log_start or each.state in DONE, (at, each, start)

    def drain(self) -> None:
        """Accept everything that is left: none of it may be out of reach."""
        while self.writes:
            self.end_write()
        for _ in range(2000):
            self.tick()
            offset = self.share.next_fetch_offset()
            if offset < self.log_start:
                self.share.update_log_start_offset(self.log_start)
                continue
            found = [each for each in self.log if each.last_offset >= offset]
            acquired = self.share.acquire(
                "a", ShareAcquireMode.BATCH_OPTIMIZED, 100, 100, offset, found, self.now_ms
            )
            for first, last, _ in acquired:
                transition = self.share.acknowledge(
                    "a", [Ack(first, last, (AcknowledgeType.ACCEPT,))], self.now_ms
                )
                self.share.complete(transition, persisted=True)
            if not found and not acquired and not self.share.in_flight_records:
                break
            self.known.clear()
            self.now_ms += 10_000
            self.share.end_waits(self.now_ms)
            self.share.expire_locks(self.now_ms)
            self.share.complete_final(persisted=True)
        else:
            raise AssertionError("records are out of reach")
        self.share.check_invariants()
        assert self.share.next_deadline_ms is None
        assert self.share.acquired_records == 0


def offsets_of(transition: StateTransition) -> set[int]:
    return {at for each in transition.batches for at in range(each.first_offset, each.last_offset + 1)}


@pytest.mark.parametrize("block", range(6))
def test_a_share_partition_does_what_the_model_does(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        run = Run(seed)
        steps = (
            (run.append, 4),
            (run.fetch, 6),
            (run.acknowledge, 8),
            (run.end_write, 8),
            (run.tick, 2),
            (run.release_member, 1),
            (run.alter, 2),
            (run.list_records, 1),
            (run.delete_records, 0.1),
        )
        actions, weights = zip(*steps, strict=True)
        try:
            for _ in range(150):
                run.random.choices(actions, weights)[0]()
                run.check()
            run.drain()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(4))
def test_a_new_leader_goes_on_with_what_was_persisted(block: int) -> None:
    """Whatever was not persisted is delivered again; what was accepted is not."""
    for seed in range(block * 25, block * 25 + 25):
        run = Run(seed)
        try:
            for _ in range(8):
                for _ in range(25):
                    action = run.random.choice(
                        (run.append, run.fetch, run.acknowledge, run.end_write, run.alter)
                    )
                    action()
                    run.check()
                accepted = {
                    at for at, (state, _) in run.persisted.items() if state == RecordState.ACKNOWLEDGED
                }
                run.reload()
                run.end_waits()
                run.share.check_invariants()
                # Gaps are delivered again, so what the model knows is not the whole.
                delivered = set()
                for _ in range(200):
                    offset = run.share.next_fetch_offset()
                    found = [each for each in run.log if each.last_offset >= offset]
                    if not run.share.can_acquire_records():
                        break
                    acquired = run.share.acquire(
                        "z", ShareAcquireMode.BATCH_OPTIMIZED, 10, 10, offset, found, run.now_ms
                    )
                    run.share.check_invariants()
                    for first, last, _count in acquired:
                        delivered.update(range(first, last + 1))
                    if not acquired:
                        break
                assert not delivered & accepted, "an accepted record was delivered again"
                start = run.share.start_offset
                missing = [
                    at
                    for batch in run.log
                    for at in range(batch.base_offset, batch.last_offset + 1)
                    if at >= start
                    and at <= max(delivered, default=-1)
                    and at not in delivered
                    and run.persisted.get(at, (0, 0))[0] not in DONE
                ]
                assert not missing, missing
                run.reload()
                run.end_waits()
                for at, each in list(run.known.items()):
                    if each.state not in DONE:
                        del run.known[at]
                break_gaps(run)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def break_gaps(run: Run) -> None:
    """Acquire and accept all that is left, so that the model knows everything again."""
    for _ in range(1000):
        offset = run.share.next_fetch_offset()
        found = [each for each in run.log if each.last_offset >= offset]
        acquired = run.share.acquire("z", ShareAcquireMode.BATCH_OPTIMIZED, 10, 50, offset, found, run.now_ms)
        for first, last, _ in acquired:
            transition = run.share.acknowledge("z", [Ack(first, last, (AcknowledgeType.ACCEPT,))], run.now_ms)
            run.persist(transition)
            run.share.complete(transition, persisted=True)
        if not acquired:
            break
    run.known = {}
    run.persisted = {at: value for at, value in run.persisted.items() if at >= run.share.start_offset}
    run.persisted_start = run.share.start_offset
    assert run.share.in_flight_records == 0
