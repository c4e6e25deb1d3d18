"""The brokers that a client is tried against: Ottla, and Apache Kafka where the machine has it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from ottla.client.admin import Admin
from ottla.testing.local_node import LocalNode

_names = itertools.count()


class Broker(NamedTuple):
    name: str
    servers: str


@pytest.fixture(scope="session")
def ottla_for_clients() -> Iterator[LocalNode]:
    settings = {
        "num.partitions": 3,
        "group.consumer.min.heartbeat.interval.ms": 200,
        "group.consumer.heartbeat.interval.ms": 200,
        "group.share.min.heartbeat.interval.ms": 200,
        "group.share.heartbeat.interval.ms": 200,
        "group.share.min.record.lock.duration.ms": 1000,
        # Retention is at work all the time: a test whose records are too old to stay fails always, and not
        # only where a slow machine lets it live to the node's first look, 30 s after its start.
        "log.initial.task.delay.ms": 20,
        "log.retention.check.interval.ms": 20,
    }
    with LocalNode(settings) as node:
        yield node


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.exhaustive])])
def broker(request: pytest.FixtureRequest) -> Broker:
    """The same behaviour is asked of both."""
    if request.param == "ottla":
        return Broker("ottla", request.getfixturevalue("ottla_for_clients").bootstrap_servers)
    return Broker("kafka", request.getfixturevalue("apache_kafka").bootstrap)


@pytest.fixture
def servers(broker: Broker) -> str:
    return broker.servers


@pytest.fixture
async def admin(servers: str) -> AsyncIterator[Admin]:
    async with Admin(servers) as admin:
        yield admin


@pytest.fixture
async def topic(admin: Admin) -> str:
    """A topic of this test alone, with three partitions. It keeps records, whatever time they are from."""
    name = f"topic-{next(_names)}"
    await admin.topics.create(name, partitions=3, configs={"retention.ms": "-1"})
    async with asyncio.timeout(60):  # what the controller has done, brokers tell a moment later
        while name not in [topic.name for topic in await admin.topics.list()]:
            pass
    return name


@pytest.fixture
def fresh_name() -> str:
    return f"name-{next(_names)}"
