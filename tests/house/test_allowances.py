"""An exception from a rule of the house goes as soon as the code does not need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import allowances, checks
from tests.house.checks import Module
from tests.house.set_walks import set_walks_of

SOURCE = Path(__file__).parents[2] / "src" / "ottla"


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return checks.load(SOURCE)


def test_every_allowed_group_exists_in_one_package(modules: list[Module]) -> None:
    assert set(allowances.MODULES_THAT_BELONG_TOGETHER) - set(checks.module_cycles(modules)) == set()
    for group in allowances.MODULES_THAT_BELONG_TOGETHER:
        assert len(group) <= 4
        assert len({name.rpartition(".")[0] for name in group}) == 1, group


def test_a_room_that_is_allowed_cycles_of_modules_has_some(modules: list[Module]) -> None:
    cycles = [
        cycle
        for cycle in checks.module_cycles(modules)
        if cycle not in allowances.MODULES_THAT_BELONG_TOGETHER
    ]
    assert rooms_without(cycles, allowances.ROOMS_WITH_MODULE_CYCLES) == []


def test_a_room_that_is_allowed_cycles_of_packages_has_some(modules: list[Module]) -> None:
    assert rooms_without(checks.package_cycles(modules), allowances.ROOMS_WITH_PACKAGE_CYCLES) == []


def rooms_without(cycles: list[frozenset[str]], rooms: list[str]) -> list[str]:
    return [room for room in rooms if not any(checks.is_inside(cycle, room) for cycle in cycles)]


def test_every_allowed_duplicate_exists(modules: list[Module]) -> None:
    assert allowances.DUPLICATED_NAMES - set(checks.duplicated_names(modules)) == set()


def test_every_module_that_may_repeat_names_exists(modules: list[Module]) -> None:
    assert set(checks.REPEATED_ON_PURPOSE) <= {module.name for module in modules}


def test_every_task_that_may_lack_a_supervisor_exists(modules: list[Module]) -> None:
    assert set(allowances.UNSUPERVISED_TASKS) - set(checks.unsupervised_tasks(modules)) == set()
    assert all(allowances.UNSUPERVISED_TASKS.values())


def test_every_costly_call_that_is_listed_exists(modules: list[Module]) -> None:
    assert set(allowances.COSTLY_CALLS) - set(checks.costly_calls(modules)) == set()
    assert all(allowances.COSTLY_CALLS.values())


def test_every_pattern_of_operators_exists(modules: list[Module]) -> None:
    found = {where for where, _ in checks.pattern_breaches(modules)}
    assert set(allowances.PATTERNS_OF_OPERATORS) - found == set()
    assert all(allowances.PATTERNS_OF_OPERATORS.values())


@pytest.mark.slow
def test_every_allowed_walk_of_a_set_exists() -> None:
    assert set(allowances.SET_WALKS) - {(name, walk) for name, _, walk in set_walks_of(SOURCE)} == set()
    assert all(allowances.SET_WALKS.values())
