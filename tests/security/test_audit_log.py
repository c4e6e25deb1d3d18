"""The audit log of a node: who was denied what, and what administrators have changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import incremental_alter_configs as configs
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.security.authorizer.audit_log import LOGGER_NAME
from ottla.testing.local_node import LocalNode
from tests.support.principals import ADMIN, UserClient, client_of, own_settings


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(own_settings(["alice"])) as running:
        yield running


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == LOGGER_NAME]
    caplog.clear()
    return found


def create(client: UserClient, *names: str, validate_only: bool = False) -> list[int]:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    request = CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)
    return [each.error_code for each in client.get(request, 7, CreateTopicsResponse).topics]


def test_changes_have_a_line_each_and_no_secrets(node: LocalNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER_NAME)
    with client_of(node.bootstrap_servers, ADMIN) as admin:
        assert create(admin, "orders", "bad name", "payments") == [0, ErrorCode.INVALID_TOPIC_EXCEPTION, 0]
        assert create(admin, "checked", validate_only=True) == [0]
        changed = "Principal = User:admin changed {} from host = 127.0.0.1 by request = {}"
        assert logged(caplog) == [
            changed.format("Topic:orders, created", "CreateTopics"),
            changed.format("Topic:payments, created", "CreateTopics"),
        ]
        secret = configs.AlterableConfig(name="ssl.key.password", config_operation=0, value="hunter2")
        admin.get(
            configs.IncrementalAlterConfigsRequest(
                resources=[
                    configs.AlterConfigsResource(
                        resource_type=4, resource_name=str(node_id(admin)), configs=[secret]
                    )
                ]
            ),
            1,
            configs.IncrementalAlterConfigsResponse,
        )
        acl = AclCreation(
            resource_type=AclResourceType.TOPIC,
            resource_name="orders",
            principal="User:alice",
            host="*",
            operation=AclOperation.READ,
            permission_type=AclPermissionType.ALLOW,
        )
        admin.get(CreateAclsRequest(creations=[acl]), 3, CreateAclsResponse)
        topics = [DeleteTopicState(name="payments"), DeleteTopicState(name="none")]
        admin.get(DeleteTopicsRequest(topics=topics, timeout_ms=30_000), 6, DeleteTopicsResponse)
        admin.get(DeleteGroupsRequest(groups_names=["none"]), 2, DeleteGroupsResponse)
    found = logged(caplog)
    assert found[-2:] == [
        changed.format("Acl(ALLOW User:alice from * READ on TOPIC:LITERAL:orders), created", "CreateAcls"),
        changed.format("Topic:payments, deleted", "DeleteTopics"),
    ]
    assert "hunter2" not in str(found)


def node_id(client: UserClient) -> int:
    return client.get(MetadataRequest(topics=[]), 12, MetadataResponse).brokers[0].node_id


def test_denials_are_logged_and_what_is_left_out_of_lists_is_not(
    node: LocalNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER_NAME)
    with client_of(node.bootstrap_servers, "alice") as alice:
        alice.get(MetadataRequest(topics=None), 12, MetadataResponse)
        assert logged(caplog) == []
        for _ in range(2):  # a response that is kept does not swallow it
            hidden = MetadataRequest(topics=[MetadataRequestTopic(name="hidden")])
            answer = alice.get(hidden, 12, MetadataResponse)
            assert answer.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert logged(caplog) == [
                "Principal = User:alice is Denied operation = DESCRIBE from host = 127.0.0.1 on resource = "
                "Topic:LITERAL:hidden for request = Metadata with resourceRefCount = 1 based on rule "
                "DefaultDeny"
            ]
        assert create(alice, "mine") == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        (line,) = logged(caplog)
        assert "Denied operation = CREATE" in line
        assert "Topic:LITERAL:mine for request = CreateTopics" in line


def test_many_changes_of_one_request_are_bounded(node: LocalNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER_NAME)
    acls = [
        AclCreation(
            resource_type=AclResourceType.GROUP,
            resource_name=f"g{n}",
            principal="User:x",
            host="*",
            operation=AclOperation.READ,
            permission_type=AclPermissionType.ALLOW,
        )
        for n in range(150)
    ]
    with client_of(node.bootstrap_servers, ADMIN) as admin:
        admin.get(CreateAclsRequest(creations=acls), 3, CreateAclsResponse)
    found = logged(caplog)
    assert len(found) == 101
    assert "changed 50 more" in found[-1]
