"""The filter that selects ACLs to show or to delete: Kafka's `AclBindingFilter`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.metadata.image.entities import AccessControlEntry
from ottla.protocol.acl import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSION_TYPES,
    RESOURCE_TYPES,
    WILDCARD,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)

# Members of an enum take longer to find, and a filter may be held against all ACLs.
_ANY_TYPE: Final = int(AclResourceType.ANY)
_ANY_OPERATION: Final = int(AclOperation.ANY)
_ANY_PERMISSION: Final = int(AclPermissionType.ANY)
_ANY_PATTERN: Final = int(PatternType.ANY)
_MATCH: Final = int(PatternType.MATCH)
_PREFIXED: Final = int(PatternType.PREFIXED)


@dataclass(frozen=True, slots=True)
class AclFilter:
    """What an ACL must be like; None, and the number of ANY, stand for everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    @property
    def is_unknown(self) -> bool:
        """Whether one of its numbers has no meaning."""
        return (
            self.resource_type not in RESOURCE_TYPES
            or self.pattern_type not in PATTERN_TYPES
            or self.operation not in OPERATIONS
            or self.permission_type not in PERMISSION_TYPES
        )

    def matches(self, acl: AccessControlEntry) -> bool:
        return (
            self.resource_type in (_ANY_TYPE, acl.resource_type)
            and self.operation in (_ANY_OPERATION, acl.operation)
            and self.permission_type in (_ANY_PERMISSION, acl.permission_type)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: AccessControlEntry) -> bool:
        wanted, name = self.pattern_type, self.resource_name
        if wanted not in (_ANY_PATTERN, _MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if wanted != _MATCH:
            return name == acl.resource_name
        # All patterns that apply to the resource of this name.
        if acl.pattern_type == _PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)
