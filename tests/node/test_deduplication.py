"""What a request names twice is answered twice, as far as that is cheap."""

from __future__ import annotations

from ottla.node.api.deduplication import MAX_ITEMS_WITH_DUPLICATES, deduplicate_long


def test_a_request_of_ordinary_length_is_answered_as_it_is() -> None:
    items = ["a", "b", "a"] + ["c"] * (MAX_ITEMS_WITH_DUPLICATES - 3)
    assert list(deduplicate_long(items)) == items


def test_in_a_long_request_each_is_answered_once_in_the_order_of_their_first_mention() -> None:
    assert list(deduplicate_long(["b", "a", "b"] + ["a"] * MAX_ITEMS_WITH_DUPLICATES)) == ["b", "a"]


def test_distinct_items_are_never_left_out() -> None:
    items = list(range(10 * MAX_ITEMS_WITH_DUPLICATES))
    assert list(deduplicate_long(items)) == items


def test_what_makes_two_items_the_same_is_the_callers_to_say() -> None:
    items = [(number % 7, number) for number in range(500)]
    assert list(deduplicate_long(items, lambda item: item[0])) == [(number, number) for number in range(7)]
