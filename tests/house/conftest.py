"""The checks of the house share the syntax trees of all sources, which a worker gives back after them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.house import checks


@pytest.fixture(scope="package", autouse=True)
def _syntax_trees() -> Iterator[None]:
    yield
    checks.parse.cache_clear()
