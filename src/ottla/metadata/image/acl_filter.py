"""The filter that selects ACLs to show or to delete: Kafka's `AclBindingFilter`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ottla.metadata.image.entities import AccessControlEntry
from ottla.protocol.acl import WILDCARD, AclOperation, AclPermissionType, AclResourceType, PatternType

K = TypeVar("K")


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
            self.resource_type not in tuple(AclResourceType)
            or self.pattern_type not in tuple(PatternType)
            or self.operation not in tuple(AclOperation)
            or self.permission_type not in tuple(AclPermissionType)
        )

    def matches(self, acl: AccessControlEntry) -> bool:
        return (
            self.resource_type in (AclResourceType.ANY, acl.resource_type)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission_type in (AclPermissionType.ANY, acl.permission_type)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self._matches_pattern(acl)
        )

    def select(self, acls: Mapping[K, AccessControlEntry]) -> list[tuple[K, AccessControlEntry]]:
        """Return those of the ACLs that match, with their keys."""
        return [(key, acl) for key, acl in acls.items() if self.matches(acl)]

    def _matches_pattern(self, acl: AccessControlEntry) -> bool:
        wanted, name = self.pattern_type, self.resource_name
        if wanted not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if wanted != PatternType.MATCH:
            return name == acl.resource_name
        # All patterns that apply to the resource of this name.
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)
