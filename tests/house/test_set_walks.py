"""No code that the simulator runs takes the order of a set; and the check sees each way to do so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import allowances
from tests.house.checks import Module
from tests.house.set_walks import set_walks, set_walks_of
from tests.support.rows import for_each

SOURCE = Path(__file__).parents[2] / "src" / "ottla"

DECLARED = """
Topics = Mapping[str, frozenset[str]]

def names() -> set[str]: ...

class Group:
    members: frozenset[str]
    pending: dict[str, set[int]]

    def __init__(self, topics: frozenset[str]) -> None:
        self.waiting: set[object] = set()
        self._topics = topics
        self._done: Final = set()

    @property
    def ids(self) -> frozenset[int]: ...

    def leaving(self) -> set[str]: ...
"""


def walks(body: str) -> list[str]:
    source = DECLARED + "\n" + body
    return [text for _, _, text in set_walks([Module("ottla.log.example", "example.py", source)])]


def inside(statement: str) -> str:
    parameters = (
        "self, group: Group, given: set[int], topics: Topics, mine: dict[str, int], one: Group | None"
    )
    return f"class Other(Group):\n    def work({parameters}) -> None:\n        {statement}\n"


@pytest.mark.slow
def test_no_simulated_code_walks_a_set() -> None:
    found = [
        f"{name}:{line}: {walk}"
        for name, line, walk in set_walks_of(SOURCE)
        if (name, walk) not in allowances.SET_WALKS
    ]
    assert not found, "\n" + "\n".join(found)


@for_each(
    "statement",
    [
        "for each in {1, 2}: pass",
        "for each in set(mine): pass",
        "for each in given: pass",
        "for each in group.members: pass",
        "for each in self.waiting: pass",
        "for each in self._topics: pass",
        "for each in self._done: pass",
        "for each in group.ids: pass",
        "for each in group.leaving(): pass",
        "for each in one.members: pass",
        "for each in names(): pass",
        "for each in topics['a']: pass",
        "for each in topics.get('a', ()): pass",
        "for each in group.pending['a']: pass",
        "for key, value in group.pending.items(): list(value)",
        "for value in topics.values(): list(value)",
        "[x for value in topics.values() for x in value]",
        "for each in mine.keys() | given: pass",
        "for each in mine.keys() - group.pending.keys(): pass",
        "for each in given.union(mine): pass",
        "local = given - {1}; found = [each for each in local]",
        "local = {each: 0 for each in given}",
        "local = (each for each in given)",
        "list(given)",
        "tuple(given)",
        "next(iter(given))",
        "given.pop()",
        "first, *others = given",
        "print(*given)",
        "found = [*given]",
        "dict.fromkeys(given)",
        "','.join(group.members)",
        "max(given, key=len)",
        "sorted(given, key=len)",
        "local = given if mine else group.members; list(local)",
        "asyncio.TaskGroup()",
        "hash('a')",
    ],
)
def test_a_walk_is_found(statement: str) -> None:
    assert walks(inside(statement)), statement


@for_each(
    "statement",
    [
        "for each in sorted(given): pass",
        "for each in mine: pass",
        "for each in mine.keys(): pass",
        "any(each > 1 for each in given)",
        "sum(each for each in given)",
        "sorted(each for each in given)",
        "local = {each for each in given}",
        "local = {*given, 1}",
        "local = frozenset(each + 1 for each in given)",
        "given.update(group.ids)",
        "len(given) and 1 in given",
        "min(given)",
        "mine.pop('a')",
        "dict.fromkeys(mine)",
        "given = sorted(given); local = list(given)",
    ],
)
def test_what_does_not_depend_on_the_order_is_none(statement: str) -> None:
    assert walks(inside(statement)) == [], statement
