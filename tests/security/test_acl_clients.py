"""ACLs by librdkafka: its admin client changes them, and its producer and consumer are refused and let in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from ottla.testing.local_node import LocalNode
from tests.support.principals import ADMIN, login_settings, own_settings

DEADLINE_SECONDS = 60.0
TOPIC = "orders"


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(own_settings(["alice"])) as running:
        yield running


def settings(node: LocalNode, user: str) -> dict[str, Any]:
    return login_settings(node.bootstrap_servers, user)


def grant(admin: AdminClient, kind: ResourceType, name: str, operation: AclOperation) -> None:
    binding = AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW
    )
    (future,) = admin.create_acls([binding]).values()
    future.result(DEADLINE_SECONDS)


def produce(node: LocalNode) -> KafkaError | None:
    """Write a record as alice; return what it failed with."""
    outcomes: list[KafkaError | None] = []
    producer = Producer(settings(node, "alice"))
    producer.produce(TOPIC, b"x", on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(DEADLINE_SECONDS) == 0
    return outcomes[0]


def consume(node: LocalNode) -> bytes | KafkaError:
    """Read a record as alice; return its value, or what that failed with."""
    consumer = Consumer({**settings(node, "alice"), "group.id": "billing", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([TOPIC])
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                error = message.error()
                return error if error is not None else message.value()
        raise AssertionError("neither a record nor an error")
    finally:
        consumer.close()


def test_what_is_refused_is_let_in_by_acls(node: LocalNode) -> None:
    admin = AdminClient(settings(node, ADMIN))
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(DEADLINE_SECONDS)
    refused = produce(node)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    grant(admin, ResourceType.TOPIC, TOPIC, AclOperation.WRITE)
    assert produce(node) is None
    denied = consume(node)
    assert isinstance(denied, KafkaError)
    assert denied.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    grant(admin, ResourceType.GROUP, "billing", AclOperation.READ)
    denied = consume(node)
    assert isinstance(denied, KafkaError)
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    grant(admin, ResourceType.TOPIC, TOPIC, AclOperation.READ)
    assert consume(node) == b"x"
    every = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:alice",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert len(admin.describe_acls(every).result(DEADLINE_SECONDS)) == 3
    (deleted,) = admin.delete_acls([every]).values()
    assert len(deleted.result(DEADLINE_SECONDS)) == 3
    refused = produce(node)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
