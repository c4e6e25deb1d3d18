"""DescribeAcls: the ACLs that match a filter, by resource, as this node has applied them."""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.metadata.image.acl_filter import AclFilter
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.context import RequestContext
from ottla.node.network.connection import ProtocolViolation
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from ottla.runtime.steps import Steps


def handle(
    context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse | Awaitable[DescribeAclsResponse]:
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    if wanted.is_unknown:
        raise ProtocolViolation("its DescribeAcls request contains UNKNOWN elements")
    context.require_of_cluster(AclOperation.DESCRIBE)
    if context.services.node.authorizer is None:
        return DescribeAclsResponse(
            error_code=ErrorCode.SECURITY_DISABLED,
            error_message="No Authorizer is configured on the broker",
        )
    return context.run_bulky(_respond(context.image, wanted), len(context.image.acls))


def _respond(image: MetadataImage, wanted: AclFilter) -> Steps[DescribeAclsResponse]:
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for acl in image.acls.values():
        yield
        if not wanted.matches(acl):
            continue
        pattern = (acl.resource_type, acl.resource_name, acl.pattern_type)
        resource = resources.get(pattern)
        if resource is None:
            resource = resources[pattern] = DescribeAclsResource(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
            )
        resource.acls.append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
        )
    return DescribeAclsResponse(resources=list(resources.values()))
