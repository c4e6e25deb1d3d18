"""Share consumers of librdkafka and franz-go against a node: each way to acknowledge, and what is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from tests.support.franz_go import FranzGo

from ottla import blocking
from ottla.client.admin.configs import ResourceType
from ottla.client.admin.groups import SharePartitionOffsetInfo
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.testing.local_node import LocalNode

DEADLINE_S = 60.0
PARTITIONS = 2
needs_share_consumer = pytest.mark.skipif(
    not hasattr(confluent_kafka, "ShareConsumer"),
    reason=f"confluent-kafka {confluent_kafka.__version__} has no share consumer",
)


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as running:
        yield running


@pytest.fixture(scope="module")
def admin(node: LocalNode) -> Iterator[blocking.Admin]:
    with blocking.Admin(node.bootstrap_servers) as client:
        yield client


def begin(admin: blocking.Admin, name: str) -> None:
    """Make a topic, and a share group of the same name that begins at its start."""
    admin.topics.create(name, partitions=PARTITIONS)
    admin.configs.alter(ResourceType.GROUP, name, set={"share.auto.offset.reset": "earliest"})


def produce(node: LocalNode, topic: str, values: list[str]) -> None:
    with blocking.Producer(node.bootstrap_servers) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value.encode(), partition=number % PARTITIONS)


def left(admin: blocking.Admin, name: str) -> int:
    """How many records the group has still to do."""
    lags = []
    for place in admin.groups.share_offsets(name).values():
        assert isinstance(place, SharePartitionOffsetInfo), place
        lags.append(place.lag or 0)
    return sum(lags)


def has_members(admin: blocking.Admin, group: str, count: int) -> bool:
    """Whether so many members have partitions."""
    try:
        members = admin.groups.describe(group).members
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:  # before the first of them has joined
            raise
        return False
    return sum(bool(member.assignment) for member in members) == count


def consumer_of(node: LocalNode, group: str, **settings: Any) -> Any:
    return confluent_kafka.ShareConsumer(
        {"bootstrap.servers": node.bootstrap_servers, "group.id": group, **settings}
    )


@needs_share_consumer
def test_librdkafka_acknowledges_in_every_way(node: LocalNode, admin: blocking.Admin) -> None:
    begin(admin, "rdkafka")
    produce(node, "rdkafka", ["accept"] * 10 + ["release", "reject"])
    types = confluent_kafka.AcknowledgeType
    seen: list[tuple[str, int]] = []
    with consumer_of(node, "rdkafka", **{"share.acknowledgement.mode": "explicit"}) as consumer:
        consumer.subscribe(["rdkafka"])
        deadline = time.monotonic() + DEADLINE_S
        while len(seen) < 13:
            assert time.monotonic() < deadline, seen
            for message in consumer.poll(1.0):
                assert message.error() is None, message.error()
                value, count = message.value().decode(), message.delivery_count()
                seen.append((value, count))
                type = {"release": types.RELEASE, "reject": types.REJECT}.get(value, types.ACCEPT)
                consumer.acknowledge(message, types.ACCEPT if count == 2 else type)
            assert not any(consumer.commit_sync(DEADLINE_S).values())
    assert sorted(seen) == [*[("accept", 1)] * 10, ("reject", 1), ("release", 1), ("release", 2)]
    assert left(admin, "rdkafka") == 0


@pytest.mark.slow
@needs_share_consumer
def test_two_consumers_of_librdkafka_share_the_records(node: LocalNode, admin: blocking.Admin) -> None:
    begin(admin, "rdkafka-two")
    sent: list[str] = []
    seen: tuple[list[str], list[str]] = ([], [])
    with (
        consumer_of(node, "rdkafka-two", **{"max.poll.records": 10}) as one,
        consumer_of(node, "rdkafka-two", **{"max.poll.records": 10}) as other,
    ):
        deadline = time.monotonic() + 2 * DEADLINE_S
        for consumer in (one, other):
            consumer.subscribe(["rdkafka-two"])
        while not has_members(admin, "rdkafka-two", 2):
            assert time.monotonic() < deadline
            for consumer in (one, other):
                assert len(consumer.poll(0.1)) == 0
        # The first may still have both partitions, and take everything: so more follows until each had some.
        while not all(seen) or len(seen[0]) + len(seen[1]) < len(sent):
            assert time.monotonic() < deadline, seen
            if len(seen[0]) + len(seen[1]) == len(sent):
                more = [f"{number:05}" for number in range(len(sent), len(sent) + 200)]
                produce(node, "rdkafka-two", more)
                sent += more
            for number, consumer in enumerate((one, other)):
                for message in consumer.poll(1.0):
                    assert message.error() is None, message.error()
                    seen[number].append(message.value().decode())
        for consumer in (one, other):
            assert not any(consumer.commit_sync(DEADLINE_S).values())
    assert sorted(seen[0] + seen[1]) == sent
    assert left(admin, "rdkafka-two") == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_franz_go_acknowledges_in_every_way(node: LocalNode, admin: blocking.Admin, franz: FranzGo) -> None:
    begin(admin, "franz")
    outcome = franz.run(
        bootstrap=node.bootstrap_servers,
        topic="franz",
        group="franz",
        values=["accept", "release", "reject", "renew", "accept"],
        deliveries=6,
    )
    assert outcome.error == ""
    assert sorted(outcome.read) == ["accept 1", "accept 1", "reject 1", "release 1", "release 2", "renew 1"]
    assert left(admin, "franz") == 0
