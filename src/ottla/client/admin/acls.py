"""ACLs: who may do what with which resource."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ottla.client.admin.requests import AdminRequests
from ottla.protocol.acl import (
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
    enum_name,
)
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from ottla.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

__all__ = [
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermissionType",
    "AclResourceType",
    "AclsAdmin",
    "PatternType",
]


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL. A principal is written as `User:alice`, and `User:*` is every user; the name `*` of a literal
    pattern is every resource of the type.
    """

    principal: str
    operation: AclOperation
    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType = PatternType.LITERAL
    permission_type: AclPermissionType = AclPermissionType.ALLOW
    host: str = "*"

    @property
    def text(self) -> str:
        """
        >>> AclBinding("User:a", AclOperation.READ, AclResourceType.TOPIC, "orders").text
        'allow User:a READ on topic orders'
        """
        kind = enum_name(AclResourceType, self.resource_type).lower().replace("_", "-")
        prefixed = " with prefix" if self.pattern_type == PatternType.PREFIXED else ""
        host = "" if self.host == "*" else f" from {self.host}"
        return (
            f"{enum_name(AclPermissionType, self.permission_type).lower()} {self.principal} "
            f"{enum_name(AclOperation, self.operation)} on {kind}{prefixed} {self.resource_name}{host}"
        )


@dataclass(frozen=True, slots=True)
class AclBindingFilter:
    """What ACLs must be like; None and ANY stand for everything. The pattern type MATCH finds those that
    apply to the resource of this name: literal, by its prefixes, and for all.
    """

    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    permission_type: AclPermissionType = AclPermissionType.ANY
    host: str | None = None


class AclsAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    async def describe(self, filter: AclBindingFilter | None = None) -> list[AclBinding]:
        """The ACLs that match; all if there is no filter. SECURITY_DISABLED without an authorizer."""
        wanted = filter or AclBindingFilter()
        request = DescribeAclsRequest(
            resource_type_filter=wanted.resource_type,
            resource_name_filter=wanted.resource_name,
            pattern_type_filter=wanted.pattern_type,
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=wanted.operation,
            permission_type=wanted.permission_type,
        )
        answer = await self._requests.any(request, DescribeAclsResponse)
        self._requests.raise_error(answer, "ACLs")
        found = [
            _binding(
                acl.principal,
                acl.operation,
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                acl.permission_type,
                acl.host,
            )
            for resource in answer.resources
            for acl in resource.acls
        ]
        return sorted(found, key=_order)

    async def create(self, acls: Iterable[AclBinding]) -> None:
        """Create ACLs; those that exist stay as they are. Those before one that is refused are created, and
        so are those after it; the error names the first.
        """
        bindings = list(acls)
        request = CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource_type,
                    resource_name=acl.resource_name,
                    resource_pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
                for acl in bindings
            ]
        )
        answer = await self._requests.controller(
            request, CreateAclsResponse, lambda r: (each.error_code for each in r.results)
        )
        for acl, result in zip(bindings, answer.results, strict=True):
            self._requests.raise_error(result, acl.text)

    async def delete(self, filters: Sequence[AclBindingFilter]) -> list[AclBinding]:
        """Delete the ACLs that match one of the filters, and return them."""
        request = DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=each.resource_type,
                    resource_name_filter=each.resource_name,
                    pattern_type_filter=each.pattern_type,
                    principal_filter=each.principal,
                    host_filter=each.host,
                    operation=each.operation,
                    permission_type=each.permission_type,
                )
                for each in filters
            ]
        )
        answer = await self._requests.controller(
            request, DeleteAclsResponse, lambda r: (each.error_code for each in r.filter_results)
        )
        deleted: dict[AclBinding, None] = {}
        for result in answer.filter_results:
            self._requests.raise_error(result, "ACLs")
            for acl in result.matching_acls:
                self._requests.raise_error(acl, "ACLs")
                binding = _binding(
                    acl.principal,
                    acl.operation,
                    acl.resource_type,
                    acl.resource_name,
                    acl.pattern_type,
                    acl.permission_type,
                    acl.host,
                )
                deleted[binding] = None
        return sorted(deleted, key=_order)


def _binding(
    principal: str,
    operation: int,
    resource_type: int,
    resource_name: str,
    pattern_type: int,
    permission_type: int,
    host: str,
) -> AclBinding:
    return AclBinding(
        principal,
        AclOperation(operation),
        AclResourceType(resource_type),
        resource_name,
        PatternType(pattern_type),
        AclPermissionType(permission_type),
        host,
    )


def _order(acl: AclBinding) -> tuple[int, str, int, str, int, int, str]:
    return (
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.permission_type,
        acl.operation,
        acl.host,
    )
