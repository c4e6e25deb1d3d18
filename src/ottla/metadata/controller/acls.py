"""AclControlManager: create and delete ACLs.

An ACL that exists already is not written again, and its creation succeeds. The caller has checked that the
client may alter the cluster.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from ottla.metadata.controller.state import (
    MAX_RECORDS_PER_REQUEST,
    ControllerState,
    Decision,
    Result,
    check_record_count,
)
from ottla.metadata.features import MetadataVersion
from ottla.metadata.image.acl_filter import AclFilter
from ottla.metadata.image.entities import AccessControlEntry
from ottla.metadata.records import MetadataRecord
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType, enum_name
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_acls import AclCreationResult, CreateAclsResponse
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
)
from ottla.protocol.metadata_records import RemoveAccessControlEntryRecord
from ottla.runtime.address import address_range, is_address_range

_RESOURCE_TYPES: Final = frozenset(AclResourceType) - {AclResourceType.ANY}
_OPERATIONS: Final = frozenset(AclOperation) - {AclOperation.ANY}


def create_acls(
    state: ControllerState, acls: Sequence[AccessControlEntry], existing: Container[AccessControlEntry]
) -> Decision[CreateAclsResponse]:
    """Create those of the ACLs that are valid and not among the existing ones."""
    records: list[MetadataRecord] = []
    results: list[AclCreationResult] = []
    created: set[AccessControlEntry] = set()
    for acl in acls:
        yield
        try:
            _validate(acl, state.version)
        except KafkaError as error:
            results.append(AclCreationResult(error_code=int(error.code), error_message=error.message))
            continue
        if acl not in existing and acl not in created:
            created.add(acl)
            records.append(acl.to_record(state.new_uuid()))
        results.append(AclCreationResult())
    check_record_count(records)
    return Result(records, CreateAclsResponse(results=results))


def _validate(acl: AccessControlEntry, version: MetadataVersion) -> None:
    if acl.resource_type not in _RESOURCE_TYPES:
        raise _invalid(f"Invalid resourceType {enum_name(AclResourceType, acl.resource_type)}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {enum_name(PatternType, acl.pattern_type)}")
    if acl.operation not in _OPERATIONS:
        raise _invalid(f"Invalid operation {enum_name(AclOperation, acl.operation)}")
    if acl.permission_type not in (AclPermissionType.DENY, AclPermissionType.ALLOW):
        raise _invalid(f"Invalid permissionType {enum_name(AclPermissionType, acl.permission_type)}")
    if not acl.resource_name:
        raise _invalid("Resource name should not be empty")
    if ":" not in acl.principal:
        raise _invalid(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    if is_address_range(acl.host):
        if not version.address_ranges_in_acls:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "CIDR-based ACL host patterns require metadata version 4.4-IV1 or later; the current one is "
                f"{version}.",
            )
        try:
            address_range(acl.host)
        except ValueError as error:
            raise _invalid(f"Invalid CIDR notation in host pattern '{acl.host}': {error}") from None
    elif not acl.host and version.address_ranges_in_acls:
        raise _invalid("Host pattern should not be empty")


def delete_acls(state: ControllerState, filters: Sequence[AclFilter]) -> Decision[DeleteAclsResponse]:
    """Delete all ACLs that match one of the filters; an ACL is in the result of each filter that matches."""
    deleted: dict[bytes, None] = {}
    results = []
    for each in filters:
        matching = []
        for id, acl in state.image.acls.items():
            yield
            if each.matches(acl):
                deleted[id] = None
                matching.append(_matching(acl))
        if len(deleted) > MAX_RECORDS_PER_REQUEST:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Cannot remove more than {MAX_RECORDS_PER_REQUEST} acls in a single delete operation.",
            )
        results.append(DeleteAclsFilterResult(error_message=None, matching_acls=matching))
    records = [RemoveAccessControlEntryRecord(id=id) for id in deleted]
    return Result(records, DeleteAclsResponse(filter_results=results))


def _matching(acl: AccessControlEntry) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
