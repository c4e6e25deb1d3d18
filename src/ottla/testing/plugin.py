"""The pytest plugin of Ottla: fixtures that give a test a Kafka without a container.

`ottla_node` is one node for the whole test session: give topics names of their own. `ottla_fresh_node` is
a node for one test alone, and `ottla_tls_node` one whose clients need TLS. `ottla_cluster` and
`ottla_fresh_cluster` are the same with three nodes, each a process; when a test that uses one fails, the ends
of the nodes' logs are in its report.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.testing.local_cluster import LocalCluster
    from ottla.testing.local_node import LocalNode


@pytest.fixture(scope="session")
def ottla_node() -> Iterator[LocalNode]:
    """A running node, shared by all tests of the session; connect to `ottla_node.bootstrap_servers`."""
    from ottla.testing.local_node import LocalNode

    with LocalNode() as node:
        yield node


@pytest.fixture
def ottla_fresh_node() -> Iterator[LocalNode]:
    """An empty node, for this test alone."""
    from ottla.testing.local_node import LocalNode

    with LocalNode() as node:
        yield node


@pytest.fixture(scope="session")
def ottla_tls_node() -> Iterator[LocalNode]:
    """A running node with mutual TLS, shared by all tests of the session; clients also need its
    `client_settings`.
    """
    from ottla.testing.local_node import LocalNode

    with LocalNode(security="SSL") as node:
        yield node


@pytest.fixture(scope="session")
def ottla_sasl_node() -> Iterator[LocalNode]:
    """A running node with a SASL_PLAINTEXT listener, shared by all tests of the session; clients also need
    its `client_settings`.
    """
    from ottla.testing.local_node import LocalNode

    with LocalNode(security="SASL_PLAINTEXT") as node:
        yield node


@pytest.fixture(scope="session")
def ottla_cluster() -> Iterator[LocalCluster]:
    """Three nodes, shared by all tests of the session: leave them running."""
    from ottla.testing.local_cluster import LocalCluster

    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def ottla_fresh_cluster() -> Iterator[LocalCluster]:
    """Three empty nodes, for this test alone, which it may kill, pause and restart."""
    from ottla.testing.local_cluster import LocalCluster

    with LocalCluster() as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            # By its name: tests that use no cluster do not import it.
            if type(value).__name__ == "LocalCluster":
                report.sections.append((f"nodes of {name}", value.logs()))
    return report
