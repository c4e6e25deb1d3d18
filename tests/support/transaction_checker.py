"""Checks a history of transactions over several partitions, as Jepsen's list-append workload does.

Every append writes a value that is unique in the history, so every value that a reader sees belongs to one
transaction. Given the outcomes that the writers know and what the readers saw, `check` names every anomaly:

- lost write: of a transaction that was committed, an append that is not in the final log;
- aborted read: a value of a transaction that was aborted, seen by a `read_committed` reader;
- precommitted read: a value that such a reader saw before the writer had requested the commit;
- torn transaction: some of its appends can be read and others cannot;
- duplicate: a value at two places of the log;
- order: the appends of a transaction, or of one writer's transactions in a row, in another order in a
  partition than they were sent;
- divergence: two readers that saw different values at one offset;
- skip: a reader that went past a committed value without seeing it, or went back;
- unknown: a value that no transaction wrote.

A transaction with an unknown outcome may be committed or aborted, but not both.
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
    """The outcome of a transaction as its writer knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class ObservedTransaction:
    """One transaction as its writer knows it. `appends` are (partition, value), in the order they were sent.

    `number` counts the transactions of the `writer`.
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
    """One record that a `read_committed` reader has read."""

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

    `log` is what a `read_committed` reader found in all partitions at the end; each of `readers` is what one
    consumer read, poll by poll, without seeking back.
    """
    history = _History(list(transactions), list(log), [list(reader) for reader in readers])
    return [*history.final_log(), *history.outcomes(), *history.order(), *history.reads()]


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
        """Check that every value of the log was written once, by a transaction that was not aborted."""
        for (partition, value), offsets in self._places.items():
            if len(offsets) > 1:
                yield Anomaly("duplicate", f"{value!r} is in {partition} at offsets {offsets}")
            yield from self._check_value(ObservedRecord(partition, offsets[0], value), "the final log")

    def _check_value(self, seen: ObservedRecord, who: str) -> Iterator[Anomaly]:
        transaction = self._writer_of.get((seen.partition, seen.value))
        where = f"{seen.value!r} at {seen.partition}@{seen.offset}, seen by {who}"
        if transaction is None:
            yield Anomaly("unknown", f"{where}, was written by no transaction")
        elif transaction.outcome is TransactionOutcome.ABORTED:
            yield Anomaly("aborted read", f"{where}, is of {transaction.name}, which was aborted")
        elif transaction.commit_asked_at is None or seen.at < transaction.commit_asked_at:
            yield Anomaly("precommitted read", f"{where}, is of {transaction.name}, not committed by then")

    def outcomes(self) -> Iterator[Anomaly]:
        """Check that committed transactions are complete, and that no transaction is torn."""
        for transaction in self._transactions:
            missing = [append for append in transaction.appends if append not in self._places]
            if not missing:
                continue
            if transaction.outcome is TransactionOutcome.COMMITTED:
                yield Anomaly("lost write", f"{transaction.name} was committed without {missing}")
            if len(missing) < len(transaction.appends):
                yield Anomaly("torn transaction", f"{transaction.name} is visible without {missing}")

    def order(self) -> Iterator[Anomaly]:
        """Check that in each partition the values of a writer are in the order in which it sent them."""
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
        """Check that each reader read a gapless part of the final log of each partition, in order."""
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
                yield from self._check_value(seen, who)
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
