"""The sticky task assignor: each task once, even shares, and as few moves as the shares allow."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping

from ottla.coordinator.group.streams.internal_topic_manager import (
    ConfiguredInternalTopic,
    ConfiguredSubtopology,
)
from ottla.coordinator.group.streams.sticky_task_assignor import assign_tasks
from ottla.coordinator.group.streams.streams_group import TasksTuple
from tests.support.rows import for_each

STORE = ConfiguredInternalTopic("store", 1, 0, ())


def stateless(tasks: int) -> ConfiguredSubtopology:
    return ConfiguredSubtopology(tasks, ("lines",), (), (), ())


def stateful(tasks: int) -> ConfiguredSubtopology:
    return ConfiguredSubtopology(tasks, ("lines",), (), (), (STORE,))


def assign(
    members: Mapping[str, str],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    previous: Mapping[str, TasksTuple] | None = None,
    standby: int = 0,
) -> dict[str, TasksTuple]:
    return assign_tasks(members, previous or {}, subtopologies, {"num.standby.replicas": str(standby)})


def tasks(which: Mapping[str, frozenset[int]]) -> set[tuple[str, int]]:
    return {(id, partition) for id, partitions in which.items() for partition in partitions}


def test_one_member_gets_all_tasks() -> None:
    assert assign({"a": "p"}, {"0": stateless(3), "1": stateful(2)}) == {
        "a": TasksTuple({"0": frozenset({0, 1, 2}), "1": frozenset({0, 1})})
    }


def test_new_tasks_are_shared_evenly() -> None:
    result = assign({"a": "p", "b": "q", "c": "q"}, {"0": stateless(6)})
    assert [len(tasks(result[member].active)) for member in "abc"] == [2, 2, 2]


def test_processes_with_more_members_get_more_tasks() -> None:
    result = assign({"a": "p", "b": "q", "c": "q", "d": "q"}, {"0": stateless(8)})
    assert [len(tasks(result[member].active)) for member in "abcd"] == [2, 2, 2, 2]


def test_active_tasks_stay_where_they_are() -> None:
    had = {"a": TasksTuple({"0": frozenset({0, 3})}), "b": TasksTuple({"0": frozenset({1, 2})})}
    result = assign({"a": "p", "b": "q"}, {"0": stateful(4)}, had)
    assert {member: result[member].active for member in "ab"} == {
        "a": {"0": frozenset({0, 3})},
        "b": {"0": frozenset({1, 2})},
    }


def test_a_new_member_gets_only_its_share() -> None:
    had = {"a": TasksTuple({"0": frozenset({0, 1, 2, 3})})}
    result = assign({"a": "p", "b": "q"}, {"0": stateful(4)}, had)
    assert tasks(result["a"].active) == {("0", 0), ("0", 1)}
    assert tasks(result["b"].active) == {("0", 2), ("0", 3)}


def test_the_tasks_of_a_member_that_is_gone_go_to_its_standbys() -> None:
    had = {
        "a": TasksTuple({"0": frozenset({0, 1})}, {"0": frozenset({2, 3})}),
        "b": TasksTuple({}, {"0": frozenset({4, 5})}),
    }
    result = assign({"a": "p", "b": "q"}, {"0": stateful(6)}, had)
    assert tasks(result["a"].active) >= {("0", 0), ("0", 1)}
    assert tasks(result["b"].active) >= {("0", 4), ("0", 5)}


def test_standbys_are_never_in_the_process_of_the_active_task() -> None:
    result = assign({"a": "p", "b": "p", "c": "q"}, {"0": stateful(6)}, standby=1)
    process = {"a": "p", "b": "p", "c": "q"}
    active = {task: process[member] for member in "abc" for task in tasks(result[member].active)}
    standby = [(task, process[member]) for member in "abc" for task in tasks(result[member].standby)]
    assert len(standby) == 6
    assert all(active[task] != where for task, where in standby)


def test_only_stateful_subtopologies_have_standbys() -> None:
    result = assign({"a": "p", "b": "q"}, {"0": stateless(4), "1": stateful(2)}, standby=1)
    assert {id for member in "ab" for id, _ in tasks(result[member].standby)} == {"1"}


def test_more_standbys_than_processes_are_left_out() -> None:
    result = assign({"a": "p", "b": "q"}, {"0": stateful(2)}, standby=2)
    assert sum(len(tasks(result[member].standby)) for member in "ab") == 2


def test_standbys_stay_where_they_are() -> None:
    members = {"a": "p", "b": "q", "c": "r"}
    first = assign(members, {"0": stateful(9)}, standby=1)
    assert assign(members, {"0": stateful(9)}, first, standby=1) == first


@for_each("seed", range(200))
def test_random_groups(seed: int) -> None:
    choose = random.Random(seed)
    subtopologies = {
        str(id): choose.choice((stateless, stateful))(choose.randint(1, 12))
        for id in range(choose.randint(1, 4))
    }
    total = sum(each.tasks for each in subtopologies.values())
    standby = choose.randint(0, 2)
    previous: dict[str, TasksTuple] = {}
    for _ in range(5):
        members = {
            f"m{number}": f"p{choose.randrange(4)}"
            for number in choose.sample(range(12), choose.randint(1, 8))
        }
        result = assign(members, subtopologies, previous, standby)
        assert result.keys() == members.keys()
        active = Counter(task for each in result.values() for task in tasks(each.active))
        assert set(active.values()) == {1}
        assert len(active) == total
        held: Counter[tuple[str, tuple[str, int]]] = Counter()
        for member, each in result.items():
            held.update((members[member], task) for task in tasks(each.active) | tasks(each.standby))
            assert each.warmup == {}
        assert set(held.values()) == {1}  # a process has a task once
        replicas = min(standby, len(set(members.values())) - 1)
        for id, each_subtopology in subtopologies.items():
            for partition in range(each_subtopology.tasks):
                copies = sum((id, partition) in tasks(each.standby) for each in result.values())
                assert copies == (replicas if each_subtopology.is_stateful else 0)
        assert assign(dict(reversed(members.items())), subtopologies, previous, standby) == result
        previous = result


def test_a_thousand_tasks_are_assigned_within_a_turn_of_the_event_loop() -> None:
    members = {f"m{number}": f"p{number // 4}" for number in range(40)}
    subtopologies = {"0": stateless(500), "1": stateful(500)}
    result: dict[str, TasksTuple] = {}
    spent_ms = []
    for _ in range(10):
        started = time.thread_time()
        result = assign(members, subtopologies, result, standby=1)
        spent_ms.append((time.thread_time() - started) * 1000)
    assert min(spent_ms) < 10
    assert sum(len(tasks(each.active)) for each in result.values()) == 1_000
