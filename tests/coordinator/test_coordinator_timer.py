"""Deadlines by key, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator.runtime.timers import CoordinatorTimer

KEYS = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), KEYS, st.integers(0, 50)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("due"), KEYS, st.integers(0, 50)),
    ),
    max_size=60,
)


@given(STEPS)
def test_they_are_a_dictionary_that_knows_its_least_value(steps: list[tuple[str, int, int]]) -> None:
    timers: CoordinatorTimer[int] = CoordinatorTimer()
    model: dict[int, int] = {}
    for step, key, when in steps:
        if step == "schedule":
            timers.schedule(key, when, key)
            model[key] = when
        elif step == "cancel":
            assert timers.cancel(key) == (model.pop(key, None) is not None)
        else:
            due = timers.pop_due(when)
            if due is None:
                assert all(deadline > when for deadline in model.values())
            else:
                assert due[0] == due[1]
                earliest = min(model.values())
                assert model.pop(due[1]) == earliest <= when
        assert timers.next_deadline_ms() == min(model.values(), default=None)
        assert len(timers) == len(model)


def test_moving_one_deadline_for_ever_does_not_grow_the_heap() -> None:
    timers: CoordinatorTimer[None] = CoordinatorTimer()
    for tick in range(10_000):
        timers.schedule("session", tick, None)
    assert len(timers._heap) < 200


def test_a_whole_family_is_cancelled_at_once() -> None:
    timers: CoordinatorTimer[None] = CoordinatorTimer()
    for group in ("a", "b"):
        timers.schedule((group, "session"), 1, None)
    timers.cancel_if(lambda key: isinstance(key, tuple) and key[0] == "a")
    assert ("a", "session") not in timers
    assert ("b", "session") in timers
    timers.clear()
    assert timers.next_deadline_ms() is None
