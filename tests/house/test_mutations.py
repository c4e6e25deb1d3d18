"""The faults of `make mutations` can still be planted: the lines that they replace are in the product."""

from __future__ import annotations

import ast

import pytest

from tests.support.mutations import MUTATIONS, ROOT, Mutation, mutated
from tests.support.rows import for_each


@for_each("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_fault_replaces_lines_that_are_there_once(mutation: Mutation) -> None:
    ast.parse(mutated(mutation, (ROOT / mutation.file).read_text()))


def test_lines_that_are_not_there_once_are_refused() -> None:
    mutation = Mutation("fault", "src/x.py", "a = 1\n", "a = 2\n", "a is one")
    assert mutated(mutation, "a = 1\n") == "a = 2\n"
    for source in ("a = 3\n", "a = 1\na = 1\n"):
        with pytest.raises(ValueError, match=r"src/x\.py"):
            mutated(mutation, source)
