"""The checker of transactions finds each anomaly, and only that."""

from __future__ import annotations

import pytest

from tests.support.transaction_checker import ObservedRecord, ObservedTransaction, TransactionOutcome, check


def history() -> tuple[list[ObservedTransaction], list[ObservedRecord]]:
    """Two writers, two partitions; one transaction each is committed, one aborted, one left undecided."""
    transactions = [
        ObservedTransaction(
            "a", 1, [("p", "a1"), ("q", "a2"), ("p", "a3")], TransactionOutcome.COMMITTED, 1.0
        ),
        ObservedTransaction("a", 2, [("p", "a4"), ("q", "a5")], TransactionOutcome.ABORTED),
        ObservedTransaction("a", 3, [("p", "a6")], TransactionOutcome.COMMITTED, 3.0),
        ObservedTransaction("b", 1, [("p", "b1"), ("q", "b2")], TransactionOutcome.UNKNOWN, 2.0),
    ]
    log = [
        ObservedRecord("p", 0, "a1"),
        ObservedRecord("p", 1, "a3"),
        ObservedRecord("p", 4, "b1"),
        ObservedRecord("p", 6, "a6"),
        ObservedRecord("q", 0, "a2"),
        ObservedRecord("q", 2, "b2"),
    ]
    return transactions, log


def kinds(
    transactions: list[ObservedTransaction],
    log: list[ObservedRecord],
    readers: list[list[ObservedRecord]] | None = None,
) -> set[str]:
    return {anomaly.kind for anomaly in check(transactions, log, readers or [])}


def test_a_good_history_has_no_anomaly() -> None:
    transactions, log = history()
    reader = [
        ObservedRecord("p", 0, "a1", 1.5),
        ObservedRecord("q", 0, "a2", 1.6),
        ObservedRecord("p", 1, "a3", 1.7),
        ObservedRecord("p", 4, "b1", 9),
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
        ("aborted read", lambda log: [*log, ObservedRecord("p", 5, "a4"), ObservedRecord("q", 3, "a5")]),
        ("duplicate", lambda log: [*log, ObservedRecord("p", 9, "a6")]),
        ("unknown", lambda log: [*log, ObservedRecord("p", 9, "zz")]),
        ("order", lambda log: [*(seen for seen in log if seen.value != "a1"), ObservedRecord("p", 9, "a1")]),
    ],
)
def test_an_anomaly_of_the_log_is_found(kind: str, change: object) -> None:
    transactions, log = history()
    assert kinds(transactions, change(log)) == {kind}  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("precommitted read", [ObservedRecord("p", 4, "b1", 1.9)]),
        ("aborted read", [ObservedRecord("p", 3, "a4", 5.0)]),
        ("divergence", [ObservedRecord("p", 4, "a6", 5.0)]),
        ("skip", [ObservedRecord("p", 0, "a1", 5.0), ObservedRecord("p", 4, "b1", 5.0)]),
        ("skip", [ObservedRecord("p", 4, "b1", 5.0), ObservedRecord("p", 1, "a3", 5.0)]),
    ],
)
def test_an_anomaly_of_a_reader_is_found(kind: str, reader: list[ObservedRecord]) -> None:
    transactions, log = history()
    assert kinds(transactions, log, [reader]) == {kind}
