"""Random runs of producers, coordinator and partitions: each transaction ends in one way everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ottla.coordinator.runtime.effects import Effects
from ottla.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from ottla.coordinator.transaction.transaction_metadata import TransactionMetadata
from ottla.protocol.names import TopicPartition
from tests.support.effort import seeds

from .transaction_model import TransactionModel

STEPS = 250


def live(seed: int, version: int) -> TransactionModel:
    model = TransactionModel(seed, version)
    for _ in range(STEPS):
        model.step()
    model.settle()
    model.check()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_every_transaction_ends_in_one_way_on_all_partitions(version: int) -> None:
    committed = aborted = overflowed = 0
    for seed in seeds(300):
        try:
            model = live(seed, version)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, version {version}: {error}") from error
        committed += sum(attempt.told is True for attempt in model.attempts)
        aborted += sum(attempt.told is False for attempt in model.attempts)
        overflowed += any(attempt.writer.id > 1000 for attempt in model.attempts)
    # The walk has been where it matters.
    assert committed > 50
    assert aborted > 50
    assert overflowed > 10


def _forget_decisions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionCoordinator, "on_loaded", lambda self, now: Effects())


def _drop_a_partition(patch: pytest.MonkeyPatch) -> None:
    with_partitions = TransactionMetadata.with_partitions

    def forgetful(
        self: TransactionMetadata, added: frozenset[TopicPartition], *rest: int
    ) -> TransactionMetadata:
        return with_partitions(replace(self, partitions=frozenset()), added, *rest)

    patch.setattr(TransactionMetadata, "with_partitions", forgetful)


def _end_without_a_new_epoch(patch: pytest.MonkeyPatch) -> None:
    prepare = TransactionMetadata.prepare

    def standing(self: TransactionMetadata, **step: Any) -> TransactionMetadata:
        return prepare(self, **{**step, "epoch": self.producer_epoch})

    patch.setattr(TransactionMetadata, "prepare", standing)


def _serve_the_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "ottla.coordinator.transaction.transaction_coordinator.check_client",
        lambda transaction, producer: None,
    )
    patch.setattr(
        "ottla.coordinator.transaction.end_txn_rules.check_client", lambda transaction, producer: None
    )


def _begin_while_the_last_one_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "ottla.coordinator.transaction.transaction_coordinator.check_not_prepared", lambda transaction: None
    )


@pytest.mark.parametrize(
    "plant",
    [
        _forget_decisions,
        _drop_a_partition,
        _end_without_a_new_epoch,
        _serve_the_replaced,
        _begin_while_the_last_one_ends,
    ],
)
def test_planted_bugs_are_found(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, ValueError, KeyError)):
            _live_many(200)


def _live_many(seeds: int) -> None:
    for seed in range(seeds):
        live(seed, 2)
