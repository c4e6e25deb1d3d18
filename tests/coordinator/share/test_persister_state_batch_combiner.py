"""How the batches of a share partition's state are combined."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest

from ottla.coordinator.share.persister import PersisterStateBatch
from ottla.coordinator.share.persister_state_batch_combiner import combine_state_batches
from tests.coordinator.share.share_harness import ACKNOWLEDGED, ARCHIVED, AVAILABLE, batch
from tests.support.rows import for_each


@for_each(
    ("current", "new", "start", "expected"),
    [
        pytest.param([], [], -1, [], id="nothing"),
        pytest.param([], [batch(0, 9)], -1, [batch(0, 9)], id="the first"),
        pytest.param([batch(0, 9)], [], -1, [batch(0, 9)], id="no news"),
        pytest.param([batch(0, 9)], [batch(10, 19)], -1, [batch(0, 19)], id="neighbours of one state"),
        pytest.param(
            [batch(0, 9)],
            [batch(10, 19, count=2)],
            -1,
            [batch(0, 9), batch(10, 19, count=2)],
            id="neighbours of two counts",
        ),
        pytest.param([batch(0, 9)], [batch(5, 14)], -1, [batch(0, 14)], id="an overlap of one state"),
        pytest.param(
            [batch(0, 9, AVAILABLE)],
            [batch(3, 5, ACKNOWLEDGED)],
            -1,
            [batch(0, 2, AVAILABLE), batch(3, 5), batch(6, 9, AVAILABLE)],
            id="a higher state within",
        ),
        pytest.param(
            [batch(0, 9, AVAILABLE, 3)],
            [batch(3, 5, ACKNOWLEDGED, 2)],
            -1,
            [batch(0, 9, AVAILABLE, 3)],
            id="a lower count within",
        ),
        pytest.param(
            [batch(0, 9)],
            [batch(5, 14, AVAILABLE)],
            -1,
            [batch(0, 9), batch(10, 14, AVAILABLE)],
            id="a lower state that goes on",
        ),
        pytest.param(
            [batch(5, 14, AVAILABLE)],
            [batch(0, 9, ARCHIVED, 5)],
            -1,
            [batch(0, 9, ARCHIVED, 5), batch(10, 14, AVAILABLE)],
            id="a higher count that begins before",
        ),
        pytest.param([batch(0, 9)], [], 10, [], id="all below the start"),
        pytest.param(
            [batch(0, 9)], [batch(10, 12, AVAILABLE)], 5, [batch(5, 9), batch(10, 12, AVAILABLE)], id="cut"
        ),
        pytest.param(
            [], [batch(0, 9), batch(4, 5, count=2)], 5, [batch(5, 5, count=2), batch(6, 9)], id="cut new"
        ),
        pytest.param([], [batch(7, 3)], -1, [], id="a batch without offsets"),
        pytest.param(
            [batch(0, 1), batch(4, 5), batch(8, 9)],
            [batch(2, 3), batch(6, 7)],
            -1,
            [batch(0, 9)],
            id="gaps that are filled",
        ),
    ],
)
def test_batches_are_combined(
    current: list[PersisterStateBatch],
    new: list[PersisterStateBatch],
    start: int,
    expected: list[PersisterStateBatch],
) -> None:
    assert list(combine_state_batches(current, new, start)) == expected


def offsets(batches: Iterable[PersisterStateBatch], start: int) -> dict[int, tuple[int, int]]:
    """The highest count and state of each offset."""
    found: dict[int, tuple[int, int]] = {}
    for each in batches:
        for offset in range(max(each.first_offset, start), each.last_offset + 1):
            found[offset] = max(found.get(offset, (-1, -1)), (each.delivery_count, each.delivery_state))
    return found


def check_order(batches: Sequence[PersisterStateBatch]) -> None:
    for one, following in pairwise(batches):
        assert one.last_offset < following.first_offset
        assert one.last_offset + 1 < following.first_offset or one[2:] != following[2:], "one batch would do"


@for_each("seed", range(200))
def test_each_offset_has_the_highest_count_and_state_of_all_its_batches(seed: int) -> None:
    rng = random.Random(seed)
    width = rng.choice((12, 40, 200))

    def some(most: int) -> list[PersisterStateBatch]:
        made = []
        for _ in range(rng.randrange(most)):
            first = rng.randrange(width)
            state = rng.choice((AVAILABLE, ACKNOWLEDGED, ARCHIVED))
            made.append(batch(first, first + rng.randrange(8), state, rng.randrange(1, 4)))
        return made

    current: Sequence[PersisterStateBatch] = []
    start = -1
    expected: dict[int, tuple[int, int]] = {}
    for _ in range(10):
        new = some(12)
        if rng.random() < 0.3:
            start = max(start, rng.randrange(width))
        for offset, state in offsets(new, 0).items():
            expected[offset] = max(expected.get(offset, (-1, -1)), state)
        expected = {offset: state for offset, state in expected.items() if offset >= start}
        before = list(current)
        combined = combine_state_batches(current, new, start)
        assert list(current) == before, "states are shared and never change"
        current = combined
        check_order(current)
        assert offsets(current, 0) == expected
