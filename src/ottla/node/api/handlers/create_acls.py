"""CreateAcls: new ACLs, which the controller writes to the metadata log; each has a result of its own."""

from __future__ import annotations

from collections.abc import Iterator

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
from ottla.runtime.steps import Steps


async def handle(context: ApiRequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    has_any = await context.complete(_look_for_any(request))
    context.require_of_cluster(AclOperation.ALTER)
    if context.services.node.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    if has_any:
        # Apache Kafka can not make such an ACL, and fails.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    valid, errors = await context.complete(_validate(request))
    response = await context.controller.control(lambda controller: controller.create_acls(valid))
    if any(errors):
        response.results = await context.complete(_results(errors, iter(response.results)))
    return response


def _look_for_any(request: CreateAclsRequest) -> Steps[bool]:
    """Whether there is an element that stands for several. ProtocolViolation if one is unknown."""
    has_any = False
    for each in request.creations:
        if _is_unknown(each):
            raise ProtocolViolation("its CreateAcls request contains unknown elements")
        has_any = has_any or _is_any(each)
        yield
    return has_any


def _validate(request: CreateAclsRequest) -> Steps[tuple[list[AccessControlEntry], list[str | None]]]:
    """The entries that may be created, and for each that was asked for what is wrong with it."""
    valid: list[AccessControlEntry] = []
    errors: list[str | None] = []
    for each in request.creations:
        error = _problem(each)
        errors.append(error)
        if error is None:
            valid.append(_entry(each))
        yield
    return valid, errors


def _results(
    errors: list[str | None], created: Iterator[AclCreationResult]
) -> Steps[list[AclCreationResult]]:
    results: list[AclCreationResult] = []
    for error in errors:
        results.append(
            next(created)
            if error is None
            else AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=error)
        )
        yield
    return results


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
