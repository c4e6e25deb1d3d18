"""All ACLs, indexed so that a decision looks only at those that can apply to it.

For a resource type there are at most as many look-ups as prefixes of different lengths, and two more; each
finds the entries of one pattern, of which only those of the principal and those of all users are read.
An entry that is added or removed costs what it is, whatever the others are. Invariant: `_entries` of a
pattern and of a principal are never empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ottla.metadata.image.entities import AccessControlEntry
from ottla.protocol.acl import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclOperation,
    AclPermissionType,
    PatternType,
)
from ottla.runtime.address import is_address_range, is_in_range, plain_host

_ALLOW: Final = int(AclPermissionType.ALLOW)
_DENY: Final = int(AclPermissionType.DENY)
_ALL: Final = int(AclOperation.ALL)
# Which operations of an entry that allows let a client do an operation, beside that one itself and ALL.
_IMPLIED_BY: Final = {
    int(AclOperation.DESCRIBE): frozenset(
        (
            int(AclOperation.READ),
            int(AclOperation.WRITE),
            int(AclOperation.DELETE),
            int(AclOperation.ALTER),
        )
    ),
    int(AclOperation.DESCRIBE_CONFIGS): frozenset((int(AclOperation.ALTER_CONFIGS),)),
}
_NONE: Final[frozenset[int]] = frozenset()

_ByPrincipal = dict[str, list[AccessControlEntry]]


class Finding:
    """What the ACLs say about an action: whether any is for the resource, and those that decide."""

    __slots__ = ("allow", "deny", "has_acls")

    def __init__(self) -> None:
        self.has_acls = False
        self.allow: AccessControlEntry | None = None
        self.deny: AccessControlEntry | None = None


class _Patterns:
    """The ACLs of one type of resource."""

    __slots__ = ("by_principal", "lengths", "literal", "prefixed", "sorted_lengths")

    def __init__(self) -> None:
        # Resource name to principal to entries.
        self.literal: dict[str, _ByPrincipal] = {}
        self.prefixed: dict[str, _ByPrincipal] = {}
        # How many prefixes there are of each length.
        self.lengths: dict[int, int] = {}
        self.sorted_lengths: list[int] = []
        self.by_principal: dict[str, dict[AccessControlEntry, None]] = {}

    def add(self, acl: AccessControlEntry) -> None:
        patterns, name = self._patterns(acl), acl.resource_name
        principals = patterns.get(name)
        if principals is None:
            principals = patterns[name] = {}
            if patterns is self.prefixed:
                self._count_length(len(name), 1)
        principals.setdefault(acl.principal, []).append(acl)
        self.by_principal.setdefault(acl.principal, {})[acl] = None

    def remove(self, acl: AccessControlEntry) -> None:
        patterns, name = self._patterns(acl), acl.resource_name
        principals = patterns[name]
        entries = principals[acl.principal]
        entries.remove(acl)
        if not entries:
            del principals[acl.principal]
            if not principals:
                del patterns[name]
                if patterns is self.prefixed:
                    self._count_length(len(name), -1)
        if acl not in entries:
            owned = self.by_principal[acl.principal]
            del owned[acl]
            if not owned:
                del self.by_principal[acl.principal]

    def _patterns(self, acl: AccessControlEntry) -> dict[str, _ByPrincipal]:
        return self.prefixed if acl.pattern_type == PatternType.PREFIXED else self.literal

    def _count_length(self, length: int, change: int) -> None:
        count = self.lengths.get(length, 0) + change
        if count:
            self.lengths[length] = count
        else:
            del self.lengths[length]
        if (count == 0) if change < 0 else (count == 1):
            self.sorted_lengths = sorted(self.lengths)

    def matching(self, name: str) -> Iterator[_ByPrincipal]:
        """The entries of all patterns that match a resource: literal, by its prefixes, and for all."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        if self.prefixed:
            longest = len(name)
            for length in self.sorted_lengths:
                if length > longest:
                    break
                found = self.prefixed.get(name[:length])
                if found is not None:
                    yield found
        if name != WILDCARD:
            found = self.literal.get(WILDCARD)
            if found is not None:
                yield found


class AclIndex:
    def __init__(self, acls: Iterable[AccessControlEntry] = ()) -> None:
        self._types: dict[int, _Patterns] = {}
        for acl in acls:
            self.add(acl)

    def add(self, acl: AccessControlEntry) -> None:
        acl = _with_plain_host(acl)
        patterns = self._types.get(acl.resource_type)
        if patterns is None:
            patterns = self._types[acl.resource_type] = _Patterns()
        patterns.add(acl)

    def remove(self, acl: AccessControlEntry) -> None:
        self._types[acl.resource_type].remove(_with_plain_host(acl))

    def find(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> Finding:
        """Find what is said about an action; an entry that denies ends the search."""
        finding = Finding()
        patterns = self._types.get(resource_type)
        if patterns is None:
            return finding
        implied_by = _IMPLIED_BY.get(operation, _NONE)
        for principals in patterns.matching(name):
            finding.has_acls = True
            for who in (principal, WILDCARD_PRINCIPAL):
                for acl in principals.get(who, ()):
                    if not _is_of_host(acl, host):
                        continue
                    if acl.permission_type == _DENY:
                        if acl.operation in (_ALL, operation):
                            finding.deny = acl
                            return finding
                    elif finding.allow is None and (
                        acl.operation in (_ALL, operation) or acl.operation in implied_by
                    ):
                        finding.allow = acl
        return finding

    def allows_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether there may be a resource of this type with which the principal may do this: a pattern that
        allows it and that no pattern that denies it covers as a whole.
        """
        patterns = self._types.get(resource_type)
        if patterns is None:
            return False
        denied: set[str] = set()
        denied_prefixes: set[str] = set()
        allowed: set[tuple[str, bool]] = set()
        for who in dict.fromkeys((principal, WILDCARD_PRINCIPAL)):
            for acl in patterns.by_principal.get(who, ()):
                if acl.operation not in (_ALL, operation) or not _is_of_host(acl, host):
                    continue
                name, is_prefix = acl.resource_name, acl.pattern_type == PatternType.PREFIXED
                if acl.permission_type == _ALLOW:
                    allowed.add((name, is_prefix))
                elif is_prefix:
                    denied_prefixes.add(name)
                elif name == WILDCARD:
                    return False
                else:
                    denied.add(name)
        if (WILDCARD, False) in allowed:
            return True
        lengths = sorted({len(prefix) for prefix in denied_prefixes})
        return any(
            (is_prefix or name not in denied)
            and not any(name[:length] in denied_prefixes for length in lengths if length <= len(name))
            for name, is_prefix in allowed
        )


def _is_of_host(acl: AccessControlEntry, host: str) -> bool:
    """Whether an ACL is for clients at this address: for all, for this one, or for a range that has it."""
    if acl.host in (WILDCARD, host):
        return True
    return is_address_range(acl.host) and is_in_range(host, acl.host)


def _with_plain_host(acl: AccessControlEntry) -> AccessControlEntry:
    """The ACL with its address as connections report theirs: an address of IPv6 can be written in many ways
    (Java writes all of its digits), and one that denies must not be passed by because of that.
    """
    host = plain_host(acl.host)
    return acl if host == acl.host else replace(acl, host=host)
