"""Who may decide, and what was decided: the rules of the sink's decision log, without any I/O.

All drivers of a query, living and thought dead, append to one partition of a compacted topic, and the order
of that log judges between them. What belongs together is a *scope*: a streaming query through all its
restarts, or one batch write. There are four kinds of records, each of a *run*, one start of the query:

* a *claim*: from its offset on, this run owns the scope, and no run before does. Only the first claim of a
  run means anything: once another run has claimed, there is no way back;
* a *decision*: this batch is committed, with these transactions. It names the claim it rests on (`began`);
* a *fence*: the run has given up; nothing that it appends from here on counts;
* an *attempt*: a task is tried again, beside one that may be alive, and writes under this transactional id.
  It judges nothing. Whoever decides finds it before the decision, and knows what may have been left open.

The invariant: a decision counts if and only if no other run's first claim lies between its own and itself,
and no fence of its own run lies before it. Whoever has appended a record and read the log up to it therefore
knows for good whether it counts, and a driver that wakes up late finds that it does not. Each claim and each
run's last decision have a key of their own, so compaction changes no verdict. What a run's last decision
hides (one before it, if the last does not count) is carried on by the claim that made it void.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

__all__ = [
    "Decision",
    "Entry",
    "Kind",
    "Ledger",
    "Transaction",
    "is_lane_of",
    "key_of",
    "next_lane",
    "without_ranges",
]

VERSION = 1
LANES_OF_A_RUN = 16
LANES = 256
FORMER_RUNS = 8
# A decision lists what each transaction wrote, for the message if one is lost; up to this many ranges.
MOST_RANGES = 4_000


class Kind(Enum):
    CLAIM = "claim"
    DECISION = "decision"
    FENCE = "fence"
    ATTEMPT = "attempt"


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that waits for its end, by the identity that wrote it. `wrote` has (topic, partition,
    first offset, last offset).
    """

    id: str
    producer_id: int
    epoch: int
    rows: int = 0
    wrote: tuple[tuple[str, int, int, int], ...] = ()

    @property
    def identity(self) -> tuple[str, int, int]:
        return self.id, self.producer_id, self.epoch


@dataclass(frozen=True, slots=True)
class Decision:
    """`batch` is Spark's number of a micro-batch; 0 for a batch write, which is alone in its scope."""

    batch: int
    transactions: tuple[Transaction, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One record. `began` is the offset of the claim that a decision rests on, -1 in a scope that no other
    run can know. `former` are the runs that owned the scope before, the latest first.
    """

    kind: Kind
    scope: str
    run: str
    began: int = -1
    lane: int = 0
    former: tuple[str, ...] = ()
    decision: Decision | None = None
    """What a decision decides, and what a claim has found decided."""
    token: str = ""
    """Tells the claims of one run apart: several of its tasks may append one. Of an attempt, what follows the
    scope in its transactional id.
    """

    @property
    def is_of_a_batch_write(self) -> bool:
        return self.kind is Kind.DECISION and self.began < 0

    def encode(self) -> bytes:
        return json.dumps(_to_json(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """ValueError if these are not the bytes of an entry, or of one from a later version."""
        try:
            return _from_json(json.loads(data))
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"not a record of the sink's decision log: {error!r}") from None


def key_of(entry: Entry) -> str:
    """Claims, fences and attempts have keys of their own: nothing may hide that there was one."""
    suffix = {
        Kind.CLAIM: f"@{entry.token}",
        Kind.FENCE: "!",
        Kind.ATTEMPT: f"+{entry.token}",
        Kind.DECISION: "",
    }[entry.kind]
    return f"{entry.scope}/{entry.run}{suffix}"


@dataclass(slots=True)
class _Run:
    """What is known of one run. Two decisions are kept: at most one of a run does not count."""

    claims: dict[str, tuple[int, Entry]] = field(default_factory=dict)
    lane: int = 0
    former: tuple[str, ...] = ()
    fenced_at: int | None = None
    decisions: list[tuple[int, Entry]] = field(default_factory=list)
    attempts: dict[str, str] = field(default_factory=dict)  # transactional ids by the keys of their records

    @property
    def began(self) -> int:
        """The offset of its first claim, -1 if there is none."""
        known = [offset for offset, _ in self.claims.values()]
        known += [entry.began for _, entry in self.decisions if entry.began >= 0]
        return min(known, default=-1)

    @property
    def is_empty(self) -> bool:
        return not (self.claims or self.decisions or self.attempts) and self.fenced_at is None


class Ledger:
    """The records of one scope, applied in the order of the log."""

    __slots__ = ("_runs", "has_ended", "lane", "position", "scope")

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.position = 0  # where the log is read next
        self.lane = -1
        self.has_ended = False  # of a batch write: it was decided or given up
        self._runs: dict[str, _Run] = {}

    def apply(self, offset: int, entry: Entry) -> None:
        run = self._runs.setdefault(entry.run, _Run())
        if entry.kind is Kind.ATTEMPT:
            run.attempts[key_of(entry)] = entry.scope + entry.token
            return
        self.has_ended |= entry.kind is not Kind.CLAIM
        if entry.kind is Kind.FENCE:
            run.fenced_at = offset if run.fenced_at is None else run.fenced_at
            return
        run.former = entry.former
        if entry.kind is Kind.DECISION:
            run.decisions = [*run.decisions[-1:], (offset, entry)]
            run.lane = max(run.lane, entry.lane)
        else:
            if run.began < 0:
                # What the claim says is the least: two runs may have written theirs from the same state.
                run.lane = max(entry.lane, _first_lane_after(self.lane))
            run.claims[key_of(entry)] = offset, entry
        self.lane = max(self.lane, run.lane)

    def forget(self, key: str) -> None:
        """A tombstone."""
        name, kind, _ = re.split(r"([@+!]|\Z)", key.removeprefix(f"{self.scope}/"), maxsplit=1)
        self.has_ended |= not kind  # also where the decision itself was not written, or is compacted away
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

    def keys_but_of(self, run: str) -> list[str]:
        """The keys of all records that are known, but for those of one run."""
        keys: list[str] = []
        for name, known in self._runs.items():
            if name != run:
                keys += known.claims
                keys += [key_of(entry) for _, entry in known.decisions[-1:]]
                keys += [f"{self.scope}/{name}!"] if known.fenced_at is not None else []
                keys += known.attempts
        return keys

    @property
    def owner(self) -> str | None:
        """The run whose decisions count, if it appends one now."""
        claimed = [(run.began, name) for name, run in self._runs.items() if run.began >= 0]
        return max(claimed)[1] if claimed else None

    def has_replaced(self, run: str) -> bool:
        """Whether this run owned the scope, and another does now."""
        return self.owner != run and (self.began(run) >= 0 or run in self.former)

    @property
    def former(self) -> tuple[str, ...]:
        """The runs that the owner has replaced, the latest first."""
        owner = self.owner
        return () if owner is None else self._runs[owner].former

    def began(self, run: str) -> int:
        """The offset of the run's first claim."""
        known = self._runs.get(run)
        return known.began if known is not None else -1

    def lane_of(self, run: str) -> int:
        """The lane that the run's next batch writes in."""
        known = self._runs.get(run)
        return known.lane if known is not None else 0

    def is_fenced(self, run: str) -> bool:
        """Whether the run has given up."""
        known = self._runs.get(run)
        return known is not None and known.fenced_at is not None

    def attempts_of(self, run: str) -> dict[str, str]:
        """Transactional ids under which tasks of the run were tried again, by the keys of the records that
        say so. Such a record is taken away when nothing is open under the id any more.
        """
        known = self._runs.get(run)
        return dict(known.attempts) if known is not None else {}

    def counts(self, offset: int, entry: Entry) -> bool:
        """Whether a decision at this offset counts, by all records that were applied."""
        for name, run in self._runs.items():
            if name == entry.run:
                if run.fenced_at is not None and run.fenced_at < offset:
                    return False
            elif entry.began < run.began < offset:
                return False
        return True

    def decisions(self) -> list[Decision]:
        """All decisions that count and are still known."""
        return [decision for _, decision in self._decisions()]

    def decided(self) -> tuple[int, Decision] | None:
        """The decision of the latest batch, and the offset of a record that holds it."""
        found = self._decisions()
        return max(found, key=lambda each: (each[1].batch, each[0])) if found else None

    def _decisions(self) -> list[tuple[int, Decision]]:
        runs = self._runs.values()
        found = [each for run in runs for each in run.decisions if self.counts(*each)]
        found += [each for run in runs for each in run.claims.values()]
        return [(offset, entry.decision) for offset, entry in found if entry.decision is not None]

    # New records.

    def claim(self, run: str, token: str) -> Entry:
        """The record by which a run takes the scope over, with all that is known so far."""
        owner = self.owner
        former = self.former if owner is None else (owner, *(each for each in self.former if each != owner))
        decided = self.decided()
        return Entry(
            Kind.CLAIM,
            self.scope,
            run,
            lane=_first_lane_after(self.lane),
            former=tuple(each for each in former if each != run)[:FORMER_RUNS],
            decision=None if decided is None else decided[1],
            token=token,
        )


def _first_lane_after(lane: int) -> int:
    """The first lane of the next run."""
    return (lane // LANES_OF_A_RUN + 1) * LANES_OF_A_RUN


def next_lane(lane: int) -> int:
    """The lane after this one that belongs to the same run; the last one stays."""
    return lane if lane % LANES_OF_A_RUN == LANES_OF_A_RUN - 1 else lane + 1


def is_lane_of(lane: int, slot: int) -> bool:
    """Whether the slot in a transactional id is one of the lanes of the run that has this lane."""
    return lane % LANES // LANES_OF_A_RUN == slot // LANES_OF_A_RUN


def without_ranges(transactions: Sequence[Transaction]) -> tuple[Transaction, ...]:
    """The same, and what each wrote left out if that is a lot."""
    if sum(len(each.wrote) for each in transactions) <= MOST_RANGES:
        return tuple(transactions)
    return tuple(replace(each, wrote=()) for each in transactions)


def _to_json(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {
        "v": VERSION,
        "kind": entry.kind.value,
        "scope": entry.scope,
        "run": entry.run,
        "began": entry.began,
        "lane": entry.lane,
        "former": entry.former,
        "token": entry.token,
    }
    if entry.decision is not None:
        found["decision"] = {
            "batch": entry.decision.batch,
            "transactions": [
                [each.id, each.producer_id, each.epoch, each.rows, each.wrote]
                for each in entry.decision.transactions
            ],
        }
    return found


def _from_json(data: Any) -> Entry:
    version = data["v"]
    if version != VERSION:
        raise ValueError(
            f"a record of version {version} of the sink's decision log; this is version {VERSION}"
        )
    decision = None
    if (found := data.get("decision")) is not None:
        decision = Decision(
            int(found["batch"]),
            tuple(
                Transaction(
                    str(name),
                    int(producer_id),
                    int(epoch),
                    int(rows),
                    tuple((str(t), int(p), int(first), int(last)) for t, p, first, last in wrote),
                )
                for name, producer_id, epoch, rows, wrote in found["transactions"]
            ),
        )
    return Entry(
        Kind(data["kind"]),
        str(data["scope"]),
        str(data["run"]),
        int(data["began"]),
        int(data["lane"]),
        tuple(str(each) for each in data["former"]),
        decision,
        str(data["token"]),
    )
