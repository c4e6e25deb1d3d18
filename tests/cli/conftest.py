"""Each test of a command that talks to a cluster runs twice: against Ottla and against Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from ottla.testing.local_node import LocalNode
from tests.support.apache_kafka import ApacheKafka
from tests.support.command_line import CommandLine


@pytest.fixture(scope="session")
def node_for_commands() -> Iterator[LocalNode]:
    """No retention: records of these tests are from 1970."""
    with LocalNode({"log.initial.task.delay.ms": 3_600_000}) as node:
        yield node


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.exhaustive])])
def ottla(request: pytest.FixtureRequest) -> CommandLine:
    """The command, with a cluster."""
    if request.param == "ottla":
        node: LocalNode = request.getfixturevalue("node_for_commands")
        return CommandLine(node.bootstrap_servers)
    kafka: ApacheKafka = request.getfixturevalue("apache_kafka")
    return CommandLine(kafka.bootstrap, kafka.settle)


@pytest.fixture
def topic(ottla: CommandLine) -> str:
    """A new topic with two partitions, whose name is similar to no other."""
    name = uuid4().hex[:16]
    ottla.ok("topics", "create", name, "--partitions", "2")
    return name


@pytest.fixture
def offline() -> CommandLine:
    """The command without a broker; port 1 has none."""
    return CommandLine("127.0.0.1:1")
