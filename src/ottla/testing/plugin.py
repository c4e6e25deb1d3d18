"""The pytest plugin that comes with Ottla: fixtures that give a test a Kafka without a container.

`ottla_node` is one node for the whole test session: give topics names of their own. `ottla_fresh_node` is
a node for one test alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.testing.local_node import LocalNode


@pytest.fixture(scope="session")
def ottla_node() -> Iterator[LocalNode]:
    """A running node, shared by all tests of the session; `ottla_node.bootstrap_servers` is where it is."""
    from ottla.testing.local_node import LocalNode

    with LocalNode() as node:
        yield node


@pytest.fixture
def ottla_fresh_node() -> Iterator[LocalNode]:
    """A node with nothing in it, for this test alone."""
    from ottla.testing.local_node import LocalNode

    with LocalNode() as node:
        yield node
