"""The rules of the decision log: who owns a scope, which decision counts, whatever compaction does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.sink.ledger import (
    LANES_OF_A_RUN,
    Decision,
    Entry,
    Kind,
    Ledger,
    Transaction,
    is_lane_of,
    key_of,
    next_lane,
    without_ranges,
)

Records = list[tuple[int, Entry]]


class Log:
    """A log of one scope, written by several runs in turns."""

    def __init__(self) -> None:
        self.records: Records = []

    def ledger(self) -> Ledger:
        return replayed(self.records)

    def append(self, entry: Entry) -> int:
        offset = self.records[-1][0] + 10 if self.records else 10
        self.records.append((offset, entry))
        return offset

    def claim(self, run: str) -> int:
        return self.append(self.ledger().claim(run, f"t{len(self.records)}"))

    def decide(self, run: str, batch: int, began: int | None = None) -> int:
        ledger = self.ledger()
        at = ledger.began(run) if began is None else began
        lane = ledger.lane_of(run)
        former = ledger.former if ledger.owner == run else ()
        return self.append(Entry(Kind.DECISION, "s", run, at, lane, former, Decision(batch)))

    def fence(self, run: str) -> int:
        return self.append(Entry(Kind.FENCE, "s", run))

    def attempt(self, run: str, partition: int) -> int:
        return self.append(Entry(Kind.ATTEMPT, "s", run, token=f"-L10-P{partition}-A1.0"))


def replayed(records: Records) -> Ledger:
    ledger = Ledger("s")
    for offset, entry in records:
        ledger.apply(offset, entry)
    return ledger


def compacted(records: Records) -> Records:
    last = {key_of(entry): offset for offset, entry in records}
    return [(offset, entry) for offset, entry in records if last[key_of(entry)] == offset]


def decided_batch(ledger: Ledger) -> int | None:
    found = ledger.decided()
    return None if found is None else found[1].batch


def test_an_empty_log_has_no_owner_and_no_decision() -> None:
    ledger = Ledger("s")
    assert ledger.owner is None
    assert ledger.decided() is None


def test_the_last_claim_owns_the_scope() -> None:
    log = Log()
    log.claim("r1")
    log.decide("r1", 0)
    assert log.ledger().owner == "r1"
    log.claim("r2")
    assert log.ledger().owner == "r2"
    assert decided_batch(log.ledger()) == 0


def test_a_decision_after_another_runs_claim_does_not_count() -> None:
    log = Log()
    began = log.claim("r1")
    log.decide("r1", 0)
    log.claim("r2")
    log.decide("r1", 1, began)
    assert decided_batch(log.ledger()) == 0
    log.decide("r2", 1)
    assert decided_batch(log.ledger()) == 1


def test_a_late_decision_does_not_hide_the_last_one() -> None:
    log = Log()
    began = log.claim("r1")
    log.claim("r2")
    log.decide("r2", 4)
    log.decide("r2", 5)
    log.decide("r1", 4, began)
    for records in (log.records, compacted(log.records)):
        assert decided_batch(replayed(records)) == 5


def test_nothing_counts_behind_a_fence_of_the_own_run() -> None:
    log = Log()
    log.claim("r1")
    log.decide("r1", 0)
    log.fence("r1")
    log.decide("r1", 1)
    assert decided_batch(log.ledger()) == 0
    log.claim("r2")
    log.decide("r2", 1)
    assert decided_batch(log.ledger()) == 1


def test_a_fence_harms_no_other_run() -> None:
    log = Log()
    log.claim("r1")
    log.claim("r2")
    log.fence("r1")
    log.decide("r2", 0)
    assert log.ledger().owner == "r2"
    assert decided_batch(log.ledger()) == 0


def test_two_tasks_of_one_run_may_both_claim() -> None:
    log = Log()
    one, other = log.ledger().claim("r1", "a"), log.ledger().claim("r1", "b")
    first = log.append(one)
    log.append(other)
    log.decide("r1", 0, first)
    for records in (log.records, compacted(log.records)):
        assert decided_batch(replayed(records)) == 0
        assert replayed(records).began("r1") == first


def test_a_second_claim_does_not_bring_a_run_back() -> None:
    log = Log()
    first, second = log.ledger().claim("r1", "a"), log.ledger().claim("r1", "b")
    began = log.append(first)
    log.claim("r2")
    log.append(second)
    assert log.ledger().owner == "r2"
    assert log.ledger().has_replaced("r1")
    log.decide("r1", 0, began)
    assert log.ledger().decided() is None
    assert replayed(compacted(log.records)).decided() is None


def test_two_runs_that_claim_at_once_get_different_lanes() -> None:
    log = Log()
    one, other = log.ledger().claim("r1", "a"), log.ledger().claim("r2", "b")
    log.append(one)
    log.append(other)
    ledger = log.ledger()
    assert not is_lane_of(ledger.lane_of("r2"), ledger.lane_of("r1"))


def test_a_claim_carries_on_what_was_decided() -> None:
    log = Log()
    began = log.claim("r1")
    log.decide("r1", 3)
    log.claim("r2")
    # The only record of r1 that compaction keeps is one that does not count.
    log.decide("r1", 4, began)
    assert decided_batch(replayed(compacted(log.records))) == 3


def test_a_forgotten_run_leaves_no_trace() -> None:
    log = Log()
    log.claim("r1")
    log.decide("r1", 0)
    log.fence("r1")
    log.claim("r2")
    log.decide("r2", 1)
    ledger = log.ledger()
    keys = ledger.keys_but_of("r2")
    assert len(keys) == 3
    for key in keys:
        ledger.forget(key)
    assert ledger.keys_but_of("r2") == []
    assert ledger.owner == "r2"
    assert decided_batch(ledger) == 1
    assert ledger.former == ("r1",)


def test_attempts_are_known_until_they_are_forgotten_and_judge_nothing() -> None:
    log = Log()
    log.attempt("r0", 7)
    log.claim("r1")
    log.attempt("r1", 0)
    log.attempt("r1", 1)
    log.decide("r1", 0)
    ledger = log.ledger()
    attempts = ledger.attempts_of("r1")
    assert sorted(attempts.values()) == ["s-L10-P0-A1.0", "s-L10-P1-A1.0"]
    assert (ledger.owner, decided_batch(ledger)) == ("r1", 0)
    assert len(ledger.keys_but_of("r1")) == 1
    for key in attempts:
        ledger.forget(key)
    assert ledger.attempts_of("r1") == {}
    assert (ledger.owner, decided_batch(ledger)) == ("r1", 0)


def test_a_batch_write_has_ended_also_where_only_the_end_of_its_record_is_seen() -> None:
    ledger = Ledger("s")
    ledger.forget("s/w+-L00-P0-A1.0")
    assert not ledger.has_ended
    ledger.forget("s/w")
    assert ledger.has_ended
    for kind, ends in ((Kind.CLAIM, False), (Kind.ATTEMPT, False), (Kind.DECISION, True), (Kind.FENCE, True)):
        ledger = Ledger("s")
        ledger.apply(1, Entry(kind, "s", "w"))
        assert ledger.has_ended is ends


def test_a_run_that_was_replaced_is_remembered() -> None:
    log = Log()
    for run in ("r1", "r2", "r3"):
        log.claim(run)
        log.decide(run, int(run[1]))
    assert replayed(compacted(log.records)).former == ("r2", "r1")


def test_lanes_differ_from_run_to_run_and_after_a_disturbed_batch() -> None:
    log = Log()
    log.claim("r1")
    one = log.ledger().lane_of("r1")
    log.claim("r2")
    two = log.ledger().lane_of("r2")
    assert two - one == LANES_OF_A_RUN
    assert not is_lane_of(two, one)
    assert is_lane_of(two, next_lane(two))
    assert next_lane(two + LANES_OF_A_RUN - 1) == two + LANES_OF_A_RUN - 1


def test_an_entry_survives_its_encoding() -> None:
    wrote = (("t", 0, 5, 9), ("ü", 1, 0, 0))
    decision = Decision(7, (Transaction("id", 2**40, 3, 6, wrote), Transaction("id2", 1, 0)))
    entry = Entry(Kind.DECISION, "scope/with/slashes", "run", 12, 17, ("r1",), decision, "token")
    assert Entry.decode(entry.encode()) == entry
    assert Entry.decode(Entry(Kind.FENCE, "s", "r").encode()) == Entry(Kind.FENCE, "s", "r")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"v":2}', b'{"v":1,"kind":"claim"}', b'{"v":1,"kind":"x"}', b"\xff"]
)
def test_what_is_not_an_entry_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Entry.decode(data)


def test_many_ranges_are_left_out() -> None:
    wide = Transaction("id", 1, 1, 10, tuple(("t", index, 0, 1) for index in range(5_000)))
    assert without_ranges([wide])[0].wrote == ()
    assert without_ranges([wide])[0].rows == 10


steps = st.lists(
    st.tuples(
        st.sampled_from(["look", "claim", "decide", "late", "fence", "forget", "again"]),
        st.sampled_from(["r1", "r2", "r3", "r4"]),
    ),
    max_size=30,
)


@given(steps)
def test_whoever_reads_whenever_comes_to_the_same_verdict(moves: list[tuple[str, str]]) -> None:
    """Runs look at the log, and claim later by what they saw, several times each. A run decides one batch
    after the other while it owns the scope, and at most one too late. That the log was compacted changes
    nothing.
    """
    log = Log()
    seen: dict[str, Ledger] = {}
    over: set[str] = set()
    next_batch = 0
    gone: set[str] = set()
    for move, run in moves:
        ledger = log.ledger()
        if move == "look":
            seen[run] = ledger
        elif move == "claim" and run in seen and not seen[run].has_replaced(run) and run not in gone:
            claim = seen[run].claim(run, f"t{len(log.records)}")
            known = ledger.decided()
            if known is not None and (claim.decision is None or claim.decision.batch < known[1].batch):
                claim = replace(claim, decision=known[1])  # as a second claim does
            log.append(claim)
        elif move == "fence" and ledger.began(run) >= 0 and run not in over:
            log.fence(run)
            over.add(run)
        elif move == "again" and run not in gone:
            log.attempt(run, len(log.records) % 3)
        elif move == "decide" and ledger.owner == run and run not in over:
            log.decide(run, next_batch, ledger.began(run))
            next_batch += 1
        elif move == "late" and ledger.began(run) >= 0 and run not in over and ledger.owner != run:
            log.decide(run, next_batch, ledger.began(run))
            over.add(run)
        elif (
            move == "forget"
            and ledger.owner == run
            and (found := ledger.decided()) is not None
            and found[0] > ledger.began(run)
        ):
            keys = set(ledger.keys_but_of(run))
            gone |= {entry.run for _, entry in log.records if key_of(entry) in keys}
            log.records = [each for each in log.records if key_of(each[1]) not in keys]
        expected = next_batch - 1 if next_batch else None
        owner = log.ledger().owner
        for records in (log.records, compacted(log.records), compacted(log.records[:-3]) + log.records[-3:]):
            again = replayed(records)
            assert decided_batch(again) == expected
            assert again.owner == owner
            assert owner is None or again.lane_of(owner) == log.ledger().lane_of(owner)
