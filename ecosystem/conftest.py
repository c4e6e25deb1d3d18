"""A node for the programs of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.testing.local_node import LocalNode


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    with LocalNode() as node:
        yield node.bootstrap_servers
