"""Garbage collections visit few objects, however many there are."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.runtime.garbage_collection import GarbageCollection

MANY = 300_000


class _Node:
    def __init__(self) -> None:
        self.itself: _Node | None = None


@pytest.fixture(autouse=True)
def frozen_afterwards() -> Iterator[None]:
    """What is there for the whole run, all tests for one, is frozen again: later collections pass over it."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def visited() -> Iterator[list[int]]:
    """The number of objects that each full collection visited."""
    counts: list[int] = []

    def count(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            counts.append(len(gc.get_objects()))

    gc.collect()
    gc.callbacks.insert(0, count)
    yield counts
    gc.callbacks.remove(count)


@pytest.mark.slow
def test_growth_does_not_make_collections_longer(visited: list[int]) -> None:
    before = [[number] for number in range(2 * MANY)]  # a process that is large already
    gc.collect()
    collections = GarbageCollection(freeze_after_ms=0)
    collections.start()
    visited.clear()
    try:
        kept = [[number] for number in range(MANY)]
        assert visited
        assert max(visited) < MANY / 10
        assert collections.full_collections == len(visited)
        assert collections.frozen > MANY / 2
        assert len(kept) == MANY
        assert before
    finally:
        collections.stop()


def test_cycles_of_young_objects_go() -> None:
    collections = GarbageCollection(freeze_after_ms=0)
    collections.start()
    try:
        node = _Node()
        node.itself = node
        gone = weakref.ref(node)
        del node
        kept = [[number] for number in range(20_000)]
        assert gone() is None
        assert kept
    finally:
        collections.stop()


@pytest.mark.slow
def test_frozen_cycles_go_in_a_complete_collection() -> None:
    collections = GarbageCollection(freeze_after_ms=0, max_frozen=10_000)
    collections.start()
    try:
        node = _Node()
        node.itself = node
        gone = weakref.ref(node)
        assert not collections.needs_complete
        kept = [[number] for number in range(30_000)]
        del node
        assert collections.needs_complete
        assert gone() is not None
        collections.collect_all()
        assert gone() is None
        assert not collections.needs_complete
        assert kept
    finally:
        collections.stop()


def test_stopping_puts_the_collector_back() -> None:
    before = gc.get_threshold()
    collections = GarbageCollection()
    collections.start()
    assert gc.get_threshold() != before
    collections.stop()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_objects_that_come_and_go_make_no_complete_collection_due() -> None:
    collections = GarbageCollection(freeze_after_ms=0, max_frozen=10_000)
    collections.start()
    try:
        for _ in range(4):
            kept = [[number] for number in range(20_000)]
            assert kept
            del kept
        assert collections.frozen > 10_000
        assert not collections.needs_complete
    finally:
        collections.stop()
