"""Clients that may not: their errors name the ACL that is missing, with principal, operation and resource."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ottla.client.admin.acls import AclBinding, AclOperation, AclResourceType, PatternType
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.missing_acl import principal_of
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.clients.settings import SecuritySettings
from ottla.testing.local_node import LocalNode
from tests.support.principals import login_settings, own_settings

Settings = dict[str, str]


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(own_settings(["alice"])) as running:
        with Admin(settings(running, "admin")) as admin:
            admin.topics.create("orders")
        yield running


def settings(node: LocalNode, user: str) -> Settings:
    return login_settings(node.bootstrap_servers, user)


def grant(node: LocalNode, operation: AclOperation, kind: AclResourceType, name: str) -> None:
    with Admin(settings(node, "admin")) as admin:
        admin.acls.create([AclBinding("User:alice", operation, kind, name, PatternType.LITERAL)])


def refused(call: Callable[[], object]) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as raised:
        call()
    return raised.value.code, str(raised.value)


def test_errors_name_what_is_missing(node: LocalNode) -> None:
    alice = settings(node, "alice")

    def produce() -> None:
        with Producer(alice) as producer:
            producer.send("orders", b"x")

    def consume(group: str | None = "g") -> None:
        with Consumer(alice, group_id=group, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            while not consumer.poll(timeout_ms=60_000):
                pass

    code, text = refused(produce)
    assert code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "Missing ACL: User:alice DESCRIBE on topic orders." in text
    grant(node, AclOperation.DESCRIBE, AclResourceType.TOPIC, "orders")
    code, text = refused(produce)
    assert "Missing ACL: User:alice " in text  # WRITE on the topic, or IDEMPOTENT_WRITE on the cluster
    grant(node, AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, "kafka-cluster")
    code, text = refused(produce)
    assert "Missing ACL: User:alice WRITE on topic orders." in text
    grant(node, AclOperation.WRITE, AclResourceType.TOPIC, "orders")
    produce()
    code, text = refused(consume)
    assert code is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert "on group g." in text
    grant(node, AclOperation.READ, AclResourceType.GROUP, "g")
    code, text = refused(consume)
    assert "Missing ACL: User:alice READ on topic orders." in text
    grant(node, AclOperation.READ, AclResourceType.TOPIC, "orders")
    consume()


def test_errors_of_the_admin_client(node: LocalNode) -> None:
    with Admin(settings(node, "alice")) as admin:
        code, text = refused(lambda: admin.topics.create("new"))
        assert code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "Missing ACL: User:alice CREATE on topic new." in text
        code, text = refused(lambda: admin.acls.describe())
        assert code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert "Missing ACL: User:alice DESCRIBE on the cluster." in text
        for call in (lambda: admin.topics.describe("hidden"), lambda: admin.offsets.end("hidden")):
            assert "Missing ACL: User:alice DESCRIBE on topic hidden." in refused(call)[1]
        grant(node, AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, "tx")
        code, text = refused(lambda: admin.transactions.fence("tx"))
        assert code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert "Missing ACL: User:alice WRITE on transactional id tx." in text


@pytest.mark.parametrize(
    ("given", "principal"),
    [
        ({}, "User:ANONYMOUS"),
        ({"security.protocol": "SSL"}, "User:ANONYMOUS"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": (
                    "org.apache.kafka.common.security.plain.PlainLoginModule required "
                    'username="bob" password="x";'
                ),
            },
            "User:bob",
        ),
    ],
)
def test_the_principal_is_that_of_the_login(given: Settings, principal: str | None) -> None:
    assert principal_of(SecuritySettings.of(given)) == principal
