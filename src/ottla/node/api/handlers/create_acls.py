"""CreateAcls: new ACLs, which the controller writes to the metadata log; each has a result of its own."""

from __future__ import annotations

from ottla.metadata.image.entities import AccessControlEntry
from ottla.node.api.context import ApiRequestContext
from ottla.node.network.connection import ProtocolViolation
from ottla.protocol.acl import (
    CLUSTER_NAME,
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSION_TYPES,
    RESOURCE_TYPES,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


async def handle(context: ApiRequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    if any(_is_unknown(each) for each in request.creations):
        raise ProtocolViolation("its CreateAcls request contains unknown elements")
    context.require_of_cluster(AclOperation.ALTER)
    if context.services.node.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    if any(_is_any(each) for each in request.creations):
        # Apache Kafka can not make such an ACL, and fails.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    errors = [_problem(each) for each in request.creations]
    valid = [_entry(each) for each, error in zip(request.creations, errors) if error is None]
    response = await context.controller.control(lambda controller: controller.create_acls(valid))
    results = iter(response.results)
    response.results = [
        next(results)
        if error is None
        else AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=error)
        for error in errors
    ]
    return response


def _is_unknown(acl: AclCreation) -> bool:
    return (
        acl.resource_type not in RESOURCE_TYPES
        or acl.resource_pattern_type not in PATTERN_TYPES
        or acl.operation not in OPERATIONS
        or acl.permission_type not in PERMISSION_TYPES
    )


def _is_any(acl: AclCreation) -> bool:
    return (
        acl.resource_type == AclResourceType.ANY
        or acl.resource_pattern_type in (PatternType.ANY, PatternType.MATCH)
        or acl.operation == AclOperation.ANY
        or acl.permission_type == AclPermissionType.ANY
    )


def _problem(acl: AclCreation) -> str | None:
    if acl.resource_type == AclResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    return None if acl.resource_name else "Invalid empty resource name"


def _entry(acl: AclCreation) -> AccessControlEntry:
    return AccessControlEntry(
        acl.resource_type,
        acl.resource_name,
        acl.resource_pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )
