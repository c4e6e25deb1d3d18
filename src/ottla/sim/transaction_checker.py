"""Judges a history of transactions over several partitions, in the manner of Jepsen's list-append workload.

Every append writes a value that is written once in the whole history, so whatever a reader sees can be traced
to its transaction. Given what the writers were told and what the readers saw, `check` names every anomaly:

- lost write: of a transaction that was committed, an append that is not in the final log;
- aborted read: a value of a transaction that was aborted, seen by a reader of committed records;
- precommitted read: a value that such a reader saw before anybody had asked for the commit;
- torn transaction: some of its appends can be read and others cannot;
- duplicate: a value at two places of the log;
- order: the appends of a transaction, or of one writer's transactions in a row, in another order in a
  partition than they were sent;
- divergence: two readers that saw different values at one offset;
- skip: a reader that went past a committed value without seeing it, or went back;
- unknown: a value that nobody wrote.

A transaction that was never decided as far as its writer knows may be committed or aborted, but not both.
Transactions of different writers may interleave in different orders in different partitions: Kafka promises
no serial order, and neither is one asked for here.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


class TransactionOutcome(enum.Enum):
    """What the writer was told of its transaction in the end."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class ObservedTransaction:
    """One transaction as its writer lived it. `appends` are (partition, value), in the order they were sent.

    `writer` and `number` say whose it was and where in that writer's life.
    """

    writer: str
    number: int
    appends: list[tuple[str, str]] = field(default_factory=list)
    outcome: TransactionOutcome = TransactionOutcome.UNKNOWN
    commit_asked_at: float | None = None

    @property
    def name(self) -> str:
        return f"{self.writer}/{self.number}"


@dataclass(frozen=True, slots=True)
class ObservedRecord:
    """One record that a reader of committed records was shown."""

    partition: str
    offset: int
    value: str
    at: float = float("inf")


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


def check(
    transactions: Iterable[ObservedTransaction],
    log: Iterable[ObservedRecord],
    readers: Iterable[Sequence[ObservedRecord]] = (),
) -> list[Anomaly]:
    """All anomalies of a history.

    `log` is what a reader of committed records found in all partitions after everything had ended; each of
    `readers` is what one consumer saw, poll by poll, without seeking back.
    """
    history = _History(list(transactions), list(log), [list(reader) for reader in readers])
    return [*history.final_log(), *history.fates(), *history.order(), *history.reads()]


class _History:
    def __init__(
        self,
        transactions: list[ObservedTransaction],
        log: list[ObservedRecord],
        readers: list[list[ObservedRecord]],
    ) -> None:
        self._transactions = transactions
        self._log = sorted(log, key=lambda seen: (seen.partition, seen.offset))
        self._readers = readers
        self._writer_of = {
            (partition, value): transaction
            for transaction in transactions
            for partition, value in transaction.appends
        }
        self._places: dict[tuple[str, str], list[int]] = defaultdict(list)
        for seen in self._log:
            self._places[seen.partition, seen.value].append(seen.offset)

    def final_log(self) -> Iterator[Anomaly]:
        """Every value of the log was written, by one that did not abort, and is there once."""
        for (partition, value), offsets in self._places.items():
            if len(offsets) > 1:
                yield Anomaly("duplicate", f"{value!r} is in {partition} at offsets {offsets}")
            yield from self._judge_value(ObservedRecord(partition, offsets[0], value), "the final log")

    def _judge_value(self, seen: ObservedRecord, who: str) -> Iterator[Anomaly]:
        transaction = self._writer_of.get((seen.partition, seen.value))
        where = f"{seen.value!r} at {seen.partition}@{seen.offset}, seen by {who}"
        if transaction is None:
            yield Anomaly("unknown", f"{where}, was written by nobody")
        elif transaction.outcome is TransactionOutcome.ABORTED:
            yield Anomaly("aborted read", f"{where}, is of {transaction.name}, which was aborted")
        elif transaction.commit_asked_at is None or seen.at < transaction.commit_asked_at:
            yield Anomaly("precommitted read", f"{where}, is of {transaction.name}, not committed by then")

    def fates(self) -> Iterator[Anomaly]:
        """What was committed is there as a whole; what is there in part is torn."""
        for transaction in self._transactions:
            missing = [append for append in transaction.appends if append not in self._places]
            if not missing:
                continue
            if transaction.outcome is TransactionOutcome.COMMITTED:
                yield Anomaly("lost write", f"{transaction.name} was committed without {missing}")
            if len(missing) < len(transaction.appends):
                yield Anomaly("torn transaction", f"{transaction.name} is there but for {missing}")

    def order(self) -> Iterator[Anomaly]:
        """In each partition a writer's values are in the order in which it sent them."""
        sent: dict[tuple[str, str], int] = {}
        for transaction in sorted(self._transactions, key=lambda each: (each.writer, each.number)):
            for append in transaction.appends:
                sent[append] = len(sent)
        last: dict[tuple[str, str], tuple[int, str]] = {}
        for seen in self._log:
            owner = self._writer_of.get((seen.partition, seen.value))
            if owner is None:
                continue
            key = (seen.partition, owner.writer)
            rank = sent[seen.partition, seen.value]
            before = last.get(key)
            if before is not None and before[0] > rank:
                yield Anomaly("order", f"{seen.partition} holds {before[1]!r} before {seen.value!r}")
            last[key] = rank, seen.value

    def reads(self) -> Iterator[Anomaly]:
        """Each reader saw of each partition a gapless piece of the final log, in order."""
        offsets: dict[str, list[int]] = defaultdict(list)
        values: dict[tuple[str, int], str] = {}
        for seen in self._log:
            offsets[seen.partition].append(seen.offset)
            values[seen.partition, seen.offset] = seen.value
        after = {
            (partition, first): second
            for partition, found in offsets.items()
            for first, second in pairwise(found)
        }
        for number, reader in enumerate(self._readers, 1):
            who = f"reader {number}"
            position: dict[str, int] = {}
            for seen in reader:
                yield from self._judge_value(seen, who)
                place = (seen.partition, seen.offset)
                if place in values and values[place] != seen.value:
                    yield Anomaly("divergence", f"{place} is {values[place]!r}, {who} saw {seen.value!r}")
                before = position.get(seen.partition)
                expected = None if before is None else after.get((seen.partition, before))
                if expected is not None and expected != seen.offset:
                    yield Anomaly(
                        "skip",
                        f"{who} went from {before} to {seen.offset} in {seen.partition}, not to {expected}",
                    )
                position[seen.partition] = seen.offset
