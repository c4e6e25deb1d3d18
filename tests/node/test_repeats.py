"""What a request names twice is answered twice, as far as that is cheap."""

from __future__ import annotations

from ottla.node.api.deduplication import MOST_WITH_REPEATS, within_bounds


def test_a_request_of_ordinary_length_is_answered_as_it_is() -> None:
    items = ["a", "b", "a"] + ["c"] * (MOST_WITH_REPEATS - 3)
    assert within_bounds(items) == items


def test_in_a_long_request_each_is_answered_once_in_the_order_of_their_first_mention() -> None:
    assert within_bounds(["b", "a", "b"] + ["a"] * MOST_WITH_REPEATS) == ["b", "a"]


def test_distinct_items_are_never_left_out() -> None:
    items = list(range(10 * MOST_WITH_REPEATS))
    assert within_bounds(items) == items


def test_what_makes_two_items_the_same_is_the_callers_to_say() -> None:
    items = [(number % 7, number) for number in range(500)]
    assert within_bounds(items, lambda item: item[0]) == [(number, number) for number in range(7)]
