"""The rules of the decision log: which run owns a scope, which decision is valid, with and without
compaction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.sink import decision_state
from ottla.spark.sink.decision_state import (
    GENERATIONS_PER_RUN,
    CommitDecision,
    DecisionRecord,
    DecisionRecordKind,
    DecisionState,
    TaskTransaction,
    belongs_to_run,
    next_generation,
    trim_ranges,
)
from ottla.spark.sink.lineage import BatchLineage, InputRange

Records = list[tuple[int, DecisionRecord]]


class Log:
    """A log of one scope, written by several runs in turns."""

    def __init__(self) -> None:
        self.records: Records = []

    def state(self) -> DecisionState:
        return replayed(self.records)

    def append(self, entry: DecisionRecord) -> int:
        offset = self.records[-1][0] + 10 if self.records else 10
        self.records.append((offset, entry))
        return offset

    def claim(self, run: str) -> int:
        return self.append(self.state().new_claim(run, f"t{len(self.records)}"))

    def decide(self, run: str, batch: int, claim_offset: int | None = None) -> int:
        state = self.state()
        at = state.claim_offset(run) if claim_offset is None else claim_offset
        generation = state.generation_of(run)
        former_runs = state.former_runs if state.owner == run else ()
        return self.append(
            DecisionRecord(
                DecisionRecordKind.DECISION, "s", run, at, generation, former_runs, CommitDecision(batch)
            )
        )

    def fence(self, run: str) -> int:
        return self.append(DecisionRecord(DecisionRecordKind.FENCE, "s", run))

    def attempt(self, run: str, partition: int) -> int:
        return self.append(
            DecisionRecord(DecisionRecordKind.ATTEMPT, "s", run, token=f"-L10-P{partition}-A1.0")
        )


def replayed(records: Records) -> DecisionState:
    state = DecisionState("s")
    for offset, entry in records:
        state.apply(offset, entry)
    return state


def compacted(records: Records) -> Records:
    last = {entry.key: offset for offset, entry in records}
    return [(offset, entry) for offset, entry in records if last[entry.key] == offset]


def decided_batch(state: DecisionState) -> int | None:
    found = state.latest_decision()
    return None if found is None else found[1].batch


def test_an_empty_log_has_no_owner_and_no_decision() -> None:
    state = DecisionState("s")
    assert state.owner is None
    assert state.latest_decision() is None


def test_the_last_claim_owns_the_scope() -> None:
    log = Log()
    log.claim("r1")
    log.decide("r1", 0)
    assert log.state().owner == "r1"
    log.claim("r2")
    assert log.state().owner == "r2"
    assert decided_batch(log.state()) == 0


def test_a_decision_after_another_runs_claim_does_not_count() -> None:
    log = Log()
    claim_offset = log.claim("r1")
    log.decide("r1", 0)
    log.claim("r2")
    log.decide("r1", 1, claim_offset)
    assert decided_batch(log.state()) == 0
    log.decide("r2", 1)
    assert decided_batch(log.state()) == 1


def test_a_late_decision_does_not_hide_the_last_one() -> None:
    log = Log()
    claim_offset = log.claim("r1")
    log.claim("r2")
    log.decide("r2", 4)
    log.decide("r2", 5)
    log.decide("r1", 4, claim_offset)
    for records in (log.records, compacted(log.records)):
        assert decided_batch(replayed(records)) == 5


def test_nothing_counts_behind_a_fence_of_the_own_run() -> None:
    log = Log()
    log.claim("r1")
    log.decide("r1", 0)
    log.fence("r1")
    log.decide("r1", 1)
    assert decided_batch(log.state()) == 0
    log.claim("r2")
    log.decide("r2", 1)
    assert decided_batch(log.state()) == 1


def test_a_fence_harms_no_other_run() -> None:
    log = Log()
    log.claim("r1")
    log.claim("r2")
    log.fence("r1")
    log.decide("r2", 0)
    assert log.state().owner == "r2"
    assert decided_batch(log.state()) == 0


def test_two_tasks_of_one_run_may_both_claim() -> None:
    log = Log()
    one, other = log.state().new_claim("r1", "a"), log.state().new_claim("r1", "b")
    first = log.append(one)
    log.append(other)
    log.decide("r1", 0, first)
    for records in (log.records, compacted(log.records)):
        assert decided_batch(replayed(records)) == 0
        assert replayed(records).claim_offset("r1") == first


def test_a_second_claim_does_not_bring_a_run_back() -> None:
    log = Log()
    first, second = log.state().new_claim("r1", "a"), log.state().new_claim("r1", "b")
    claim_offset = log.append(first)
    log.claim("r2")
    log.append(second)
    assert log.state().owner == "r2"
    assert log.state().is_replaced("r1")
    log.decide("r1", 0, claim_offset)
    assert log.state().latest_decision() is None
    assert replayed(compacted(log.records)).latest_decision() is None


def test_two_runs_that_claim_at_once_get_different_lanes() -> None:
    log = Log()
    one, other = log.state().new_claim("r1", "a"), log.state().new_claim("r2", "b")
    log.append(one)
    log.append(other)
    state = log.state()
    assert not belongs_to_run(state.generation_of("r2"), state.generation_of("r1"))


def test_a_claim_carries_on_what_was_decided() -> None:
    log = Log()
    claim_offset = log.claim("r1")
    log.decide("r1", 3)
    log.claim("r2")
    # The only record of r1 that compaction keeps is not valid.
    log.decide("r1", 4, claim_offset)
    assert decided_batch(replayed(compacted(log.records))) == 3


def test_a_forgotten_run_leaves_no_trace() -> None:
    log = Log()
    log.claim("r1")
    log.decide("r1", 0)
    log.fence("r1")
    log.claim("r2")
    log.decide("r2", 1)
    state = log.state()
    keys = state.keys_of_other_runs("r2")
    assert len(keys) == 3
    for key in keys:
        state.apply_tombstone(key)
    assert state.keys_of_other_runs("r2") == []
    assert state.owner == "r2"
    assert decided_batch(state) == 1
    assert state.former_runs == ("r1",)


def test_attempts_are_known_until_they_are_forgotten_and_judge_nothing() -> None:
    log = Log()
    log.attempt("r0", 7)
    log.claim("r1")
    log.attempt("r1", 0)
    log.attempt("r1", 1)
    log.decide("r1", 0)
    state = log.state()
    attempts = state.attempts_of("r1")
    assert sorted(attempts.values()) == ["s-L10-P0-A1.0", "s-L10-P1-A1.0"]
    assert (state.owner, decided_batch(state)) == ("r1", 0)
    assert len(state.keys_of_other_runs("r1")) == 1
    for key in attempts:
        state.apply_tombstone(key)
    assert state.attempts_of("r1") == {}
    assert (state.owner, decided_batch(state)) == ("r1", 0)


def test_a_batch_write_has_ended_also_where_only_the_end_of_its_record_is_seen() -> None:
    state = DecisionState("s")
    state.apply_tombstone("s/w+-L00-P0-A1.0")
    assert not state.has_ended
    state.apply_tombstone("s/w")
    assert state.has_ended
    for kind, ends in (
        (DecisionRecordKind.CLAIM, False),
        (DecisionRecordKind.ATTEMPT, False),
        (DecisionRecordKind.DECISION, True),
        (DecisionRecordKind.FENCE, True),
    ):
        state = DecisionState("s")
        state.apply(1, DecisionRecord(kind, "s", "w"))
        assert state.has_ended is ends


def test_a_run_that_was_replaced_is_remembered() -> None:
    log = Log()
    for run in ("r1", "r2", "r3"):
        log.claim(run)
        log.decide(run, int(run[1]))
    assert replayed(compacted(log.records)).former_runs == ("r2", "r1")


def test_lanes_differ_from_run_to_run_and_after_a_disturbed_batch() -> None:
    log = Log()
    log.claim("r1")
    one = log.state().generation_of("r1")
    log.claim("r2")
    two = log.state().generation_of("r2")
    assert two - one == GENERATIONS_PER_RUN
    assert not belongs_to_run(two, one)
    assert belongs_to_run(two, next_generation(two))
    assert next_generation(two + GENERATIONS_PER_RUN - 1) == two + GENERATIONS_PER_RUN - 1


def test_an_entry_survives_its_encoding() -> None:
    written_ranges = (("t", 0, 5, 9), ("ü", 1, 0, 0))
    decision = CommitDecision(
        7, (TaskTransaction("id", 2**40, 3, 6, written_ranges), TaskTransaction("id2", 1, 0))
    )
    entry = DecisionRecord(
        DecisionRecordKind.DECISION, "scope/with/slashes", "run", 12, 17, ("r1",), decision, "token"
    )
    assert DecisionRecord.decode(entry.encode()) == entry
    assert DecisionRecord.decode(
        DecisionRecord(DecisionRecordKind.FENCE, "s", "r").encode()
    ) == DecisionRecord(DecisionRecordKind.FENCE, "s", "r")


def test_of_a_long_log_only_the_decision_that_counts_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process reads the whole log: thousands of decisions, each with hundreds of transactions and input
    ranges.
    """
    transactions = tuple(TaskTransaction(f"s-L10-P{n}", n, 0, 5, (("out", n, 0, 4),)) for n in range(200))
    inputs = tuple(InputRange("in", n, 0, 5) for n in range(200))
    parsed: list[str] = []
    for owner, name in ((decision_state, "_transactions_from_json"), (BatchLineage, "from_json")):
        original = getattr(owner, name)

        def counting(data: object, original: Any = original, name: str = name) -> object:
            parsed.append(name)
            return original(data)

        monkeypatch.setattr(owner, name, counting)
    log = Log()
    log.claim("r1")
    claim_offset = log.state().claim_offset("r1")
    state = log.state()
    for batch in range(500):
        decision = CommitDecision(batch, transactions, BatchLineage("flow", "v1", inputs))
        record = DecisionRecord(DecisionRecordKind.DECISION, "s", "r1", claim_offset, 16, decision=decision)
        state.apply(20 + batch, DecisionRecord.decode(record.encode()))
    latest = state.latest_decision()
    assert parsed == []
    assert latest is not None
    assert (latest[1].rows, latest[1].lineage) == (1_000, BatchLineage("flow", "v1", inputs))
    assert sorted(parsed) == ["_transactions_from_json", "from_json"]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"v":2}', b'{"v":1,"kind":"claim"}', b'{"v":1,"kind":"x"}', b"\xff"]
)
def test_what_is_not_an_entry_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        DecisionRecord.decode(data)


def test_of_many_ranges_one_is_kept() -> None:
    wide = TaskTransaction("id", 1, 1, 10, tuple(("t", index, 0, 1) for index in range(5_000)))
    assert trim_ranges([wide])[0].written_ranges == (("t", 0, 0, 1),)
    assert trim_ranges([wide])[0].rows == 10


steps = st.lists(
    st.tuples(
        st.sampled_from(["look", "claim", "decide", "late", "fence", "forget", "again"]),
        st.sampled_from(["r1", "r2", "r3", "r4"]),
    ),
    max_size=30,
)


@given(steps)
def test_every_reader_comes_to_the_same_result_at_any_time(moves: list[tuple[str, str]]) -> None:
    """Runs read the log, and claim later by what they read, several times each. A run decides one batch
    after the other while it owns the scope, and at most one too late. That the log was compacted changes
    nothing.
    """
    log = Log()
    seen: dict[str, DecisionState] = {}
    over: set[str] = set()
    next_batch = 0
    gone: set[str] = set()
    for move, run in moves:
        state = log.state()
        if move == "look":
            seen[run] = state
        elif move == "claim" and run in seen and not seen[run].is_replaced(run) and run not in gone:
            claim = seen[run].new_claim(run, f"t{len(log.records)}")
            known = state.latest_decision()
            if known is not None and (claim.decision is None or claim.decision.batch < known[1].batch):
                claim = replace(claim, decision=known[1])  # as a second claim does
            log.append(claim)
        elif move == "fence" and state.claim_offset(run) >= 0 and run not in over:
            log.fence(run)
            over.add(run)
        elif move == "again" and run not in gone:
            log.attempt(run, len(log.records) % 3)
        elif move == "decide" and state.owner == run and run not in over:
            log.decide(run, next_batch, state.claim_offset(run))
            next_batch += 1
        elif move == "late" and state.claim_offset(run) >= 0 and run not in over and state.owner != run:
            log.decide(run, next_batch, state.claim_offset(run))
            over.add(run)
        elif (
            move == "forget"
            and state.owner == run
            and (found := state.latest_decision()) is not None
            and found[0] > state.claim_offset(run)
        ):
            keys = set(state.keys_of_other_runs(run))
            gone |= {entry.run for _, entry in log.records if entry.key in keys}
            log.records = [each for each in log.records if each[1].key not in keys]
        expected = next_batch - 1 if next_batch else None
        owner = log.state().owner
        for records in (log.records, compacted(log.records), compacted(log.records[:-3]) + log.records[-3:]):
            again = replayed(records)
            assert decided_batch(again) == expected
            assert again.owner == owner
            assert owner is None or again.generation_of(owner) == log.state().generation_of(owner)
