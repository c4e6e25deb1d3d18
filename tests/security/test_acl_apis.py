"""CreateAcls, DescribeAcls and DeleteAcls of a node: what is validated, stored, found and removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.protocol.acl import (
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.testing.local_node import LocalNode
from tests.support.principals import ADMIN, client_of, own_settings
from tests.support.wire import CLOSED, WireClient

SETTINGS = own_settings(["alice", "mallory"])
VERSIONS = (1, 2, 3)
Found = set[tuple[int, str, int, str, str, int, int]]


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(SETTINGS) as running:
        yield running


@pytest.fixture
def admin(node: LocalNode) -> Iterator[WireClient]:
    with client_of(node.bootstrap_servers, ADMIN) as client:
        delete(client, DeleteAclsFilter(**ANYTHING))
        yield client


ANYTHING = {
    "resource_type_filter": AclResourceType.ANY,
    "pattern_type_filter": PatternType.ANY,
    "operation": AclOperation.ANY,
    "permission_type": AclPermissionType.ANY,
    "resource_name_filter": None,
    "principal_filter": None,
    "host_filter": None,
}


def creation(name: str = "orders", **changes: object) -> AclCreation:
    return AclCreation(
        resource_type=AclResourceType.TOPIC,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal="User:alice",
        host="*",
        operation=AclOperation.READ,
        permission_type=AclPermissionType.ALLOW,
    ).replace(**changes)


def create(client: WireClient, *acls: AclCreation, version: int = 3) -> list[tuple[int, str | None]]:
    response = client.get(CreateAclsRequest(creations=list(acls)), version, CreateAclsResponse)
    return [(result.error_code, result.error_message) for result in response.results]


def delete(client: WireClient, *filters: DeleteAclsFilter, version: int = 3) -> list[int]:
    """Return how many ACLs each filter has deleted."""
    response = client.get(DeleteAclsRequest(filters=list(filters)), version, DeleteAclsResponse)
    assert all(result.error_code == 0 for result in response.filter_results), response
    return [len(result.matching_acls) for result in response.filter_results]


def found(client: WireClient, version: int = 3, **changes: object) -> Found:
    response = client.get(DescribeAclsRequest(**{**ANYTHING, **changes}), version, DescribeAclsResponse)
    assert response.error_code == 0
    return {
        (
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    }


def row(acl: AclCreation) -> tuple[int, str, int, str, str, int, int]:
    return (
        acl.resource_type,
        acl.resource_name,
        acl.resource_pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_acls_are_created_once_and_deleted_by_filters(admin: WireClient, version: int) -> None:
    one, other = creation(), creation("pay", resource_pattern_type=PatternType.PREFIXED)
    assert create(admin, one, other, one, version=version) == [(0, "")] * 3
    assert create(admin, one, version=version) == [(0, "")]
    assert found(admin, version) == {row(one), row(other)}
    by_name = DeleteAclsFilter(**{**ANYTHING, "resource_name_filter": "orders"})
    assert delete(admin, by_name, by_name, version=version) == [1, 1]
    assert found(admin, version) == {row(other)}


def test_match_finds_what_applies_to_a_name(admin: WireClient) -> None:
    literal, wildcard = creation("orders"), creation("*", principal="User:*")
    prefixed = creation("ord", resource_pattern_type=PatternType.PREFIXED)
    other = creation("orders", resource_type=AclResourceType.GROUP)
    unrelated = creation("payments", host="10.1.1.1")
    create(admin, literal, wildcard, prefixed, other, unrelated)

    def rows(*acls: AclCreation) -> Found:
        return {row(each) for each in acls}

    topic = {"resource_type_filter": AclResourceType.TOPIC, "resource_name_filter": "orders"}
    assert found(admin, **topic, pattern_type_filter=PatternType.MATCH) == rows(literal, wildcard, prefixed)
    assert found(admin, **topic, pattern_type_filter=PatternType.LITERAL) == rows(literal)
    assert found(admin, **topic, pattern_type_filter=PatternType.ANY) == rows(literal)
    assert found(admin, pattern_type_filter=PatternType.PREFIXED) == rows(prefixed)
    assert found(admin, principal_filter="User:*") == rows(wildcard)
    assert found(admin, host_filter="10.1.1.1") == rows(unrelated)
    assert found(admin, operation=AclOperation.WRITE) == set()
    assert found(admin, permission_type=AclPermissionType.DENY) == set()
    assert found(admin, resource_name_filter="orders") == rows(literal, other)


@pytest.mark.parametrize(
    ("acl", "message"),
    [
        (creation(""), "Invalid empty resource name"),
        (
            creation("x", resource_type=AclResourceType.CLUSTER),
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        (
            creation(principal="alice"),
            "Could not parse principal from `alice` (no colon is present separating the principal type from "
            "the principal name)",
        ),
    ],
)
def test_an_acl_without_sense_is_refused_and_others_are_made(
    admin: WireClient, acl: AclCreation, message: str
) -> None:
    assert create(admin, acl, creation()) == [(ErrorCode.INVALID_REQUEST, message), (0, "")]
    assert found(admin) == {row(creation())}


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_type": AclResourceType.ANY},
        {"resource_pattern_type": PatternType.MATCH},
        {"resource_pattern_type": PatternType.ANY},
        {"operation": AclOperation.ANY},
        {"permission_type": AclPermissionType.ANY},
    ],
)
def test_an_acl_is_never_for_any(admin: WireClient, changes: dict[str, int]) -> None:
    answers = create(admin, creation(**changes), creation())
    assert [code for code, _ in answers] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    assert found(admin) == set()


@pytest.mark.parametrize("number", [0, 99])
@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
def test_unknown_numbers_close_the_connection(admin: WireClient, field: str, number: int) -> None:
    assert admin.ask(CreateAclsRequest(creations=[creation(**{field: number})]), 3) is CLOSED
    in_filter = {"resource_type": "resource_type_filter", "resource_pattern_type": "pattern_type_filter"}
    changed = {**ANYTHING, in_filter.get(field, field): number}
    assert admin.ask(DescribeAclsRequest(**changed), 3) is CLOSED
    assert admin.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**changed)]), 3) is CLOSED


def test_only_those_who_may_alter_the_cluster_change_acls(node: LocalNode, admin: WireClient) -> None:
    create(admin, creation())
    with client_of(node.bootstrap_servers, "mallory") as mallory:
        assert [code for code, _ in create(mallory, creation("a"))] == [
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        ]
        response = mallory.get(DescribeAclsRequest(**ANYTHING), 3, DescribeAclsResponse)
        assert (response.error_code, response.resources) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        deletion = mallory.get(
            DeleteAclsRequest(filters=[DeleteAclsFilter(**ANYTHING)]), 3, DeleteAclsResponse
        )
        assert [each.error_code for each in deletion.filter_results] == [
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        ]
    assert found(admin) == {row(creation())}


def test_acls_survive_a_restart(tmp_path: object) -> None:
    for life in (1, 2):
        with (
            LocalNode(SETTINGS, data_dir=str(tmp_path)) as node,
            client_of(node.bootstrap_servers, ADMIN) as client,
        ):
            if life == 1:
                assert create(client, creation()) == [(0, "")]
            assert found(client) == {row(creation())}


def test_without_an_authorizer_there_are_no_acls() -> None:
    with LocalNode() as plain, WireClient(plain.bootstrap_servers) as client:
        assert create(client, creation()) == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")]
        response = client.get(DescribeAclsRequest(**ANYTHING), 3, DescribeAclsResponse)
        assert response.error_code == ErrorCode.SECURITY_DISABLED
        assert response.error_message == "No Authorizer is configured on the broker"
