"""The rules of the sink's decision log, without I/O: which run owns a scope, and which batch is committed.

All drivers of a query, including those that Spark believes dead, append to one partition of a compacted
topic, and the order of that log decides between them. A *scope* is a streaming query across all its
restarts, or one batch write. A *run* is one start of the query. Each record belongs to a run; there are four
kinds:

* a *claim*: from its offset on this run owns the scope, and no earlier run does. Only the first claim of a
  run has an effect: a run that another run has replaced cannot come back;
* a *decision*: this batch is committed, with these transactions. It names its run's claim (`claim_offset`);
* a *fence*: the run has aborted; no decision that it appends after the fence is valid;
* an *attempt*: Spark runs a task again, possibly beside a live attempt, and this attempt writes under this
  transactional id. The record does not affect ownership or decisions. The driver finds it in the log before
  its decision, and so knows which transactions an attempt may leave open.

The invariant: a decision is valid if and only if no other run's first claim lies between its own claim and
itself, and no fence of its own run lies before it. A driver that has appended a record and read the log up to
it therefore knows for good whether it is valid; a driver that resumes late finds that its decision is not.
Each claim and each run's last decision have their own key, so compaction does not change the outcome. Where a
run's last decision is invalid and hides a valid one before it, the claim that made it invalid carries the
valid one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from ottla.spark.sink.lineage import BatchLineage

VERSION = 1
GENERATIONS_PER_RUN = 16
GENERATIONS = 256
MAX_FORMER_RUNS = 8
# A decision lists the offsets that each transaction wrote, for the error if one is lost; at most this many.
MAX_RANGES = 4_000


class DecisionRecordKind(Enum):
    CLAIM = "claim"
    DECISION = "decision"
    FENCE = "fence"
    ATTEMPT = "attempt"


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """A transaction that a task has flushed and that the driver ends, with the producer that wrote it.

    `written_ranges` has (topic, partition, first offset, last offset).
    """

    id: str
    producer_id: int
    epoch: int
    rows: int = 0
    written_ranges: tuple[tuple[str, int, int, int], ...] = ()

    @property
    def identity(self) -> tuple[str, int, int]:
        return self.id, self.producer_id, self.epoch


class CommitDecision:
    """`batch` is Spark's id of a micro-batch; 0 for a batch write, which is alone in its scope.

    The transactions and the lineage of a record that was read are parsed when they are used first: a long log
    has thousands of decisions with hundreds of transactions each, and only the last one counts.
    """

    __slots__ = ("_encoded", "_encoded_lineage", "_lineage", "_transactions", "batch")

    def __init__(
        self,
        batch: int,
        transactions: Sequence[TaskTransaction] = (),
        lineage: BatchLineage | None = None,
    ) -> None:
        self.batch = batch
        self._lineage = lineage
        self._transactions: tuple[TaskTransaction, ...] | None = tuple(transactions)
        self._encoded = self._encoded_lineage = b""

    @classmethod
    def encoded(cls, batch: int, transactions: bytes, lineage: bytes) -> CommitDecision:
        """A decision whose transactions are a JSON array, and its lineage a JSON object or nothing, both of
        which are parsed later.
        """
        found = cls(batch)
        found._transactions, found._encoded, found._encoded_lineage = None, transactions, lineage
        return found

    @property
    def transactions(self) -> tuple[TaskTransaction, ...]:
        """Raises ValueError if the record's bytes are not transactions."""
        if self._transactions is None:
            with _malformed_as_value_error():
                self._transactions = _transactions_from_json(json.loads(self._encoded))
            self._encoded = b""
        return self._transactions

    @property
    def lineage(self) -> BatchLineage | None:
        """What the batch was made of; None in records of earlier releases, and of batch writes. Raises
        ValueError if the record's bytes are no lineage.
        """
        if self._encoded_lineage:
            with _malformed_as_value_error():
                self._lineage = BatchLineage.from_json(json.loads(self._encoded_lineage))
            self._encoded_lineage = b""
        return self._lineage

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.transactions)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that it wrote to, as far as its record names them."""
        return frozenset(topic for each in self.transactions for topic, *_ in each.written_ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CommitDecision):
            return NotImplemented
        if self is other:
            return True
        mine, others = (self.batch, self.lineage), (other.batch, other.lineage)
        return mine == others and self.transactions == other.transactions

    def __hash__(self) -> int:
        return hash(self.batch)

    def __repr__(self) -> str:
        return f"CommitDecision(batch={self.batch}, transactions={self.transactions})"


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One record of the decision log.

    `claim_offset` is the offset of the claim that a decision depends on, -1 in a scope that no other run can
    know. `generation` keeps the transactional ids of runs apart. `former_runs` are the runs that owned the
    scope before, the latest first.
    """

    kind: DecisionRecordKind
    scope: str
    run: str
    claim_offset: int = -1
    generation: int = 0
    former_runs: tuple[str, ...] = ()
    decision: CommitDecision | None = None
    """The content of a decision; in a claim, the latest decision before it."""
    token: str = ""
    """Distinguishes the claims of one run, as several of its tasks may append one. In an attempt, the part of
    the transactional id after the scope.
    """

    @property
    def key(self) -> str:
        """The key for compaction. Each claim, fence and attempt has its own: no later record may hide it."""
        suffix = {
            DecisionRecordKind.CLAIM: f"@{self.token}",
            DecisionRecordKind.FENCE: "!",
            DecisionRecordKind.ATTEMPT: f"+{self.token}",
            DecisionRecordKind.DECISION: "",
        }[self.kind]
        return f"{self.scope}/{self.run}{suffix}"

    @property
    def is_batch_write(self) -> bool:
        return self.kind is DecisionRecordKind.DECISION and self.claim_offset < 0

    def encode(self) -> bytes:
        return json.dumps(_to_json(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> DecisionRecord:
        """Parse a record, but neither the transactions nor the lineage of its decision. Raises ValueError if
        the bytes are not a record, or have a later version.
        """
        # Quotes within strings are escaped, so these can only be the names of the fields.
        rest, name, transactions = data.partition(_TRANSACTIONS)
        with _malformed_as_value_error():
            if name and transactions.endswith(b"]}}"):
                head, _, lineage = rest.partition(_LINEAGE)
                return _from_json(json.loads(head + b"}}"), transactions[:-2], lineage)
            return _from_json(json.loads(data))


@dataclass(slots=True)
class _RunState:
    """The records of one run. The last two decisions are kept: at most one decision of a run is invalid."""

    claims: dict[str, tuple[int, DecisionRecord]] = field(default_factory=dict)
    generation: int = 0
    former_runs: tuple[str, ...] = ()
    fenced_at: int | None = None
    decisions: list[tuple[int, DecisionRecord]] = field(default_factory=list)
    attempts: dict[str, str] = field(default_factory=dict)  # transactional ids by the keys of their records

    @property
    def claim_offset(self) -> int:
        """The offset of its first claim, -1 if there is none."""
        known = [offset for offset, _ in self.claims.values()]
        known += [record.claim_offset for _, record in self.decisions if record.claim_offset >= 0]
        return min(known, default=-1)

    @property
    def is_empty(self) -> bool:
        return not (self.claims or self.decisions or self.attempts) and self.fenced_at is None


class DecisionState:
    """The state of one scope: its records, applied in the order of the log."""

    __slots__ = ("_runs", "generation", "has_ended", "position", "scope")

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.position = 0  # the offset to read next; records before it are applied, each once
        self.generation = -1  # the highest of all runs
        self.has_ended = False  # of a batch write: it was committed or aborted
        self._runs: dict[str, _RunState] = {}

    def apply(self, offset: int, record: DecisionRecord) -> None:
        assert offset >= self.position, f"offset {offset} applied after {self.position - 1}: {record}"
        run = self._runs.setdefault(record.run, _RunState())
        if record.kind is DecisionRecordKind.ATTEMPT:
            run.attempts[record.key] = record.scope + record.token
            return
        self.has_ended |= record.kind is not DecisionRecordKind.CLAIM
        if record.kind is DecisionRecordKind.FENCE:
            run.fenced_at = offset if run.fenced_at is None else run.fenced_at
            return
        run.former_runs = record.former_runs
        if record.kind is DecisionRecordKind.DECISION:
            run.decisions = [*run.decisions[-1:], (offset, record)]
            run.generation = max(run.generation, record.generation)
        else:
            if run.claim_offset < 0:
                # The claim's own number is a minimum: two runs may have built their claims from one state.
                run.generation = max(record.generation, _first_generation_after(self.generation))
            run.claims[record.key] = offset, record
        self.generation = max(self.generation, run.generation)

    def apply_tombstone(self, key: str) -> None:
        name, kind, _ = re.split(r"([@+!]|\Z)", key.removeprefix(f"{self.scope}/"), maxsplit=1)
        self.has_ended |= not kind  # also where the decision was never written, or is compacted away
        run = self._runs.get(name)
        if run is None:
            return
        if kind == "!":
            run.fenced_at = None
        elif kind == "@":
            run.claims.pop(key, None)
        elif kind == "+":
            run.attempts.pop(key, None)
        else:
            run.decisions = []
        if run.is_empty:
            del self._runs[name]

    def keys_of_other_runs(self, run: str) -> list[str]:
        """The keys of all known records of other runs than this one."""
        keys: list[str] = []
        for name, known in self._runs.items():
            if name != run:
                keys += known.claims
                keys += [record.key for _, record in known.decisions[-1:]]
                keys += [f"{self.scope}/{name}!"] if known.fenced_at is not None else []
                keys += known.attempts
        return keys

    @property
    def owner(self) -> str | None:
        """The run whose next decision is valid: the one with the latest first claim."""
        claimed = [(run.claim_offset, name) for name, run in self._runs.items() if run.claim_offset >= 0]
        return max(claimed)[1] if claimed else None

    def is_replaced(self, run: str) -> bool:
        """Whether this run has owned the scope, and another one does now."""
        return self.owner != run and (self.claim_offset(run) >= 0 or run in self.former_runs)

    @property
    def former_runs(self) -> tuple[str, ...]:
        """The runs that the owner has replaced, the latest first."""
        owner = self.owner
        return () if owner is None else self._runs[owner].former_runs

    def claim_offset(self, run: str) -> int:
        """The offset of the run's first claim, -1 if there is none."""
        known = self._runs.get(run)
        return known.claim_offset if known is not None else -1

    def generation_of(self, run: str) -> int:
        """The generation of transactional ids that the run's next batch writes under."""
        known = self._runs.get(run)
        return known.generation if known is not None else 0

    def generations_of_other_runs(self, run: str) -> list[int]:
        """The generations of the runs other than this one that still have records."""
        return [known.generation for name, known in self._runs.items() if name != run]

    def is_fenced(self, run: str) -> bool:
        """Whether the run has aborted, so that no later decision of it is valid."""
        known = self._runs.get(run)
        return known is not None and known.fenced_at is not None

    def attempts_of(self, run: str) -> dict[str, str]:
        """Transactional ids of the run's later task attempts, by the keys of their attempt records.

        The driver deletes such a record when nothing is open under the id any more.
        """
        known = self._runs.get(run)
        return dict(known.attempts) if known is not None else {}

    def is_valid(self, offset: int, record: DecisionRecord) -> bool:
        """Whether a decision at this offset is valid, by all records that were applied."""
        for name, run in self._runs.items():
            if name == record.run:
                if run.fenced_at is not None and run.fenced_at < offset:
                    return False
            elif record.claim_offset < run.claim_offset < offset:
                return False
        return True

    def valid_decisions(self) -> list[CommitDecision]:
        """All valid decisions that the log still has."""
        return [decision for _, decision in self._valid_decisions()]

    def latest_decision(self) -> tuple[int, CommitDecision] | None:
        """The valid decision of the latest batch, and the offset of a record that holds it."""
        found = self._valid_decisions()
        return max(found, key=lambda each: (each[1].batch, each[0])) if found else None

    def _valid_decisions(self) -> list[tuple[int, CommitDecision]]:
        runs = self._runs.values()
        found = [each for run in runs for each in run.decisions if self.is_valid(*each)]
        found += [each for run in runs for each in run.claims.values()]
        return [(offset, record.decision) for offset, record in found if record.decision is not None]

    def new_claim(self, run: str, token: str) -> DecisionRecord:
        """Build the record by which a run takes the scope over; it carries the latest decision."""
        owner = self.owner
        former = self.former_runs
        if owner is not None:
            former = (owner, *(each for each in former if each != owner))
        latest = self.latest_decision()
        return DecisionRecord(
            DecisionRecordKind.CLAIM,
            self.scope,
            run,
            generation=_first_generation_after(self.generation),
            former_runs=tuple(each for each in former if each != run)[:MAX_FORMER_RUNS],
            decision=None if latest is None else latest[1],
            token=token,
        )


def _first_generation_after(generation: int) -> int:
    """The first generation of the next run."""
    return (generation // GENERATIONS_PER_RUN + 1) * GENERATIONS_PER_RUN


def next_generation(generation: int) -> int:
    """The next generation of the same run; its last one stays."""
    is_last = generation % GENERATIONS_PER_RUN == GENERATIONS_PER_RUN - 1
    return generation if is_last else generation + 1


def belongs_to_run(generation: int, slot: int) -> bool:
    """Whether a transactional id with this slot belongs to the run that has this generation."""
    return generation % GENERATIONS // GENERATIONS_PER_RUN == slot // GENERATIONS_PER_RUN


def trim_ranges(transactions: Sequence[TaskTransaction]) -> tuple[TaskTransaction, ...]:
    """Keep one written range of each transaction if there are too many for one record. A transaction is
    atomic, so one range is enough to find out whether it was committed.
    """
    if sum(len(each.written_ranges) for each in transactions) <= MAX_RANGES:
        return tuple(transactions)
    return tuple(replace(each, written_ranges=each.written_ranges[:1]) for each in transactions)


# The bytes of a record. The names of the fields are those of version 1 and do not change; the lineage and the
# transactions are the last of them.

_LINEAGE: Final = b',"lineage":'
_TRANSACTIONS: Final = b',"transactions":'


@contextmanager
def _malformed_as_value_error() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a record of the sink's decision log: {error!r}") from None


def _to_json(record: DecisionRecord) -> dict[str, Any]:
    found: dict[str, Any] = {
        "v": VERSION,
        "kind": record.kind.value,
        "scope": record.scope,
        "run": record.run,
        "began": record.claim_offset,
        "lane": record.generation,
        "former": record.former_runs,
        "token": record.token,
    }
    if record.decision is not None:
        found["decision"] = {
            "batch": record.decision.batch,
            **({} if record.decision.lineage is None else {"lineage": record.decision.lineage.to_json()}),
            "transactions": [
                [each.id, each.producer_id, each.epoch, each.rows, each.written_ranges]
                for each in record.decision.transactions
            ],
        }
    return found


def _from_json(data: Any, transactions: bytes | None = None, lineage: bytes = b"") -> DecisionRecord:
    """`transactions` and `lineage` are the parts of the JSON that were left out of `data`."""
    version = data["v"]
    if version != VERSION:
        raise ValueError(
            f"a record of version {version} of the sink's decision log; this is version {VERSION}"
        )
    decision = None
    if (found := data.get("decision")) is not None:
        batch = int(found["batch"])
        if transactions is not None:
            decision = CommitDecision.encoded(batch, transactions, lineage)
        else:
            known = BatchLineage.from_json(found["lineage"]) if "lineage" in found else None
            decision = CommitDecision(batch, _transactions_from_json(found["transactions"]), known)
    return DecisionRecord(
        DecisionRecordKind(data["kind"]),
        str(data["scope"]),
        str(data["run"]),
        int(data["began"]),
        int(data["lane"]),
        tuple(str(each) for each in data["former"]),
        decision,
        str(data["token"]),
    )


def _transactions_from_json(data: Any) -> tuple[TaskTransaction, ...]:
    return tuple(
        TaskTransaction(
            str(name),
            int(producer_id),
            int(epoch),
            int(rows),
            tuple((str(t), int(p), int(first), int(last)) for t, p, first, last in ranges),
        )
        for name, producer_id, epoch, rows, ranges in data
    )
