"""The faults of `make mutations` can still be planted: the lines that they replace are in the product."""

from __future__ import annotations

import ast

import pytest

from tests.support.affected import cache_of
from tests.support.import_graph import load_graph
from tests.support.mutations import MUTATIONS, ROOT, Mutation, mutated, stages


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_fault_replaces_lines_that_are_there_once(mutation: Mutation) -> None:
    ast.parse(mutated(mutation, (ROOT / mutation.file).read_text()))


def test_lines_that_are_not_there_once_are_refused() -> None:
    mutation = Mutation("fault", "src/x.py", "a = 1\n", "a = 2\n", "a is one")
    assert mutated(mutation, "a = 1\n") == "a = 2\n"
    for source in ("a = 3\n", "a = 1\na = 1\n"):
        with pytest.raises(ValueError, match=r"src/x\.py"):
            mutated(mutation, source)


def test_the_nearest_tests_come_first_and_all_that_are_touched_come(pytestconfig: pytest.Config) -> None:
    file = "src/ottla/log/segment/offset_index.py"
    graph = load_graph(ROOT, cache=cache_of(pytestconfig))
    first, *others = stages(graph, file, ("test", "all"))
    assert first.tier == "test"
    assert first.modules[0] == "tests/log/test_indexes.py"
    touched = graph.test_modules_touched_by([graph.paths[file]])
    run = {module for stage in (first, *others) for module in stage.modules}
    assert run == {module for module in touched if not module.startswith("tests/house/")}
