"""The checker of transactions finds each anomaly, and only that."""

from __future__ import annotations

import pytest

from tests.support.txn_checker import Fate, Seen, Transaction, check


def history() -> tuple[list[Transaction], list[Seen]]:
    """Two writers, two partitions; one transaction each is committed, one aborted, one left undecided."""
    transactions = [
        Transaction("a", 1, [("p", "a1"), ("q", "a2"), ("p", "a3")], Fate.COMMITTED, 1.0),
        Transaction("a", 2, [("p", "a4"), ("q", "a5")], Fate.ABORTED),
        Transaction("a", 3, [("p", "a6")], Fate.COMMITTED, 3.0),
        Transaction("b", 1, [("p", "b1"), ("q", "b2")], Fate.UNKNOWN, 2.0),
    ]
    log = [
        Seen("p", 0, "a1"),
        Seen("p", 1, "a3"),
        Seen("p", 4, "b1"),
        Seen("p", 6, "a6"),
        Seen("q", 0, "a2"),
        Seen("q", 2, "b2"),
    ]
    return transactions, log


def kinds(
    transactions: list[Transaction], log: list[Seen], readers: list[list[Seen]] | None = None
) -> set[str]:
    return {anomaly.kind for anomaly in check(transactions, log, readers or [])}


def test_a_good_history_has_no_anomaly() -> None:
    transactions, log = history()
    reader = [
        Seen("p", 0, "a1", 1.5),
        Seen("q", 0, "a2", 1.6),
        Seen("p", 1, "a3", 1.7),
        Seen("p", 4, "b1", 9),
    ]
    assert check(transactions, log, [reader]) == []


def test_an_undecided_transaction_may_be_absent_as_a_whole() -> None:
    transactions, log = history()
    assert check(transactions, [seen for seen in log if not seen.value.startswith("b")]) == []


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("lost write", lambda log: [seen for seen in log if seen.value != "a6"]),
        ("torn transaction", lambda log: [seen for seen in log if seen.value != "b2"]),
        ("aborted read", lambda log: [*log, Seen("p", 5, "a4"), Seen("q", 3, "a5")]),
        ("duplicate", lambda log: [*log, Seen("p", 9, "a6")]),
        ("unknown", lambda log: [*log, Seen("p", 9, "zz")]),
        ("order", lambda log: [*(seen for seen in log if seen.value != "a1"), Seen("p", 9, "a1")]),
    ],
)
def test_an_anomaly_of_the_log_is_found(kind: str, change: object) -> None:
    transactions, log = history()
    assert kinds(transactions, change(log)) == {kind}  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("precommitted read", [Seen("p", 4, "b1", 1.9)]),
        ("aborted read", [Seen("p", 3, "a4", 5.0)]),
        ("divergence", [Seen("p", 4, "a6", 5.0)]),
        ("skip", [Seen("p", 0, "a1", 5.0), Seen("p", 4, "b1", 5.0)]),
        ("skip", [Seen("p", 4, "b1", 5.0), Seen("p", 1, "a3", 5.0)]),
    ],
)
def test_an_anomaly_of_a_reader_is_found(kind: str, reader: list[Seen]) -> None:
    transactions, log = history()
    assert kinds(transactions, log, [reader]) == {kind}
