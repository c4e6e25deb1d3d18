"""StandardAuthorizer: what clients may do, by super users and the ACLs of the metadata.

It follows the image (`load`, `apply`), and `version` changes with each change of the ACLs. A decision that
was taken before under the same ACLs is looked up; how many are kept is bounded, as clients choose the names
that they ask for. Brokers and controllers ask the same object in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import AccessControlEntry
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.authorizer.acl_index import AclIndex
from ottla.security.authorizer.audit_log import LOGGER_NAME, Auditable, AuditLog, describe_acl
from ottla.security.principal import KafkaPrincipal

CLASS_NAME: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"

# Decisions are kept in two generations: when the younger is full it becomes the older, which is dropped.
_GENERATION: Final = 8_192
# The decisions about longer names are not kept.
_MAX_KEPT_NAME: Final = 300
# The name by which Kafka asks whether a principal may do something with any resource at all.
_ANY_NAME: Final = "hardcode"

_Key = tuple[str, str, str, int, int, str]


class MatchingRule:
    """Why a decision was taken, and the decision."""

    __slots__ = ("_text", "acl", "is_allowed")

    def __init__(self, *, is_allowed: bool, text: str = "", acl: AccessControlEntry | None = None) -> None:
        self.is_allowed = is_allowed
        self.acl = acl
        self._text = text

    def __str__(self) -> str:
        return self._text if self.acl is None else f"MatchingAcl(acl={describe_acl(self.acl)})"


_SUPER_USER: Final = MatchingRule(is_allowed=True, text="SuperUser")
_DEFAULT_ALLOW: Final = MatchingRule(is_allowed=True, text="DefaultAllow")
_DEFAULT_DENY: Final = MatchingRule(is_allowed=False, text="DefaultDeny")


class StandardAuthorizer:
    """Before `complete_initial_load` only super users may do anything."""

    def __init__(self, super_users: frozenset[str], audit: AuditLog, *, allow_everyone: bool) -> None:
        self.audit: Final = audit
        self._logs: Final = logging.getLogger(LOGGER_NAME).isEnabledFor
        # Changes whenever a decision may be another than before.
        self.version = 0
        self._super_users: Final = super_users
        self._no_acl_rule: Final = _DEFAULT_ALLOW if allow_everyone else _DEFAULT_DENY
        # What the index has.
        self._acls: Mapping[bytes, AccessControlEntry] = {}
        self._index = AclIndex()
        self._is_loaded = False
        self._younger: dict[_Key, MatchingRule] = {}
        self._older: dict[_Key, MatchingRule] = {}

    @classmethod
    def configured(cls, settings: Mapping[str, str], audit: AuditLog) -> StandardAuthorizer:
        """Make one by `super.users` and `allow.everyone.if.no.acl.found`. ValueError if a user is no
        principal.
        """
        return cls(
            parse_super_users(settings.get(SUPER_USERS, "")),
            audit,
            allow_everyone=settings.get(ALLOW_EVERYONE, "").strip().lower() == "true",
        )

    # The ACLs

    def load(self, image: MetadataImage) -> None:
        """Start from the ACLs of an image."""
        self._acls = image.acls
        self._index = AclIndex(image.acls.values())
        self._on_change()

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Follow the image from the one before."""
        before, after = self._acls, image.acls
        if after is before:
            return
        if delta.base.acls is not before:
            self.load(image)
            return
        self._acls = after
        for id in sorted(delta.changed_acls):
            if (acl := before.get(id)) is not None:
                self._index.remove(acl)
            if (acl := after.get(id)) is not None:
                self._index.add(acl)
        self._on_change()

    def complete_initial_load(self, image: MetadataImage) -> None:
        """Decide by the ACLs from here on: the image has all that were committed when this node started."""
        self._is_loaded = True
        self.load(image)

    def _on_change(self) -> None:
        self.version += 1
        self._younger.clear()
        self._older.clear()

    # Decisions

    @property
    def logs_allowed(self) -> bool:
        """Whether each decision that allows something is logged."""
        return self._logs(logging.DEBUG)

    def allowed(
        self,
        requester: Auditable,
        operation: int,
        resource_type: int,
        name: str,
        *,
        count: int = 1,
        log_denied: bool = True,
    ) -> bool:
        """Decide whether a client may do this to the resource, and log it. `count` is how often the request
        names the resource; a denial that only leaves something out of a response is not logged.
        """
        principal = requester.principal
        key = (principal.name, requester.client_host, name, operation, resource_type, principal.type)
        rule = self._younger.get(key)
        if rule is None:
            rule = self._decide(key, principal)
        if rule.is_allowed:
            if self.logs_allowed:
                self.audit.allowed(requester, operation, resource_type, name, count, rule)
            return True
        if log_denied:
            self.audit.denied(requester, operation, resource_type, name, count, rule)
        return False

    def allowed_by_resource_type(self, requester: Auditable, operation: int, resource_type: int) -> bool:
        """Decide whether a client may do this to at least one resource of the type."""
        if self.allowed(requester, operation, resource_type, _ANY_NAME, count=0, log_denied=False):
            return True
        return self._index.allows_any(
            str(requester.principal), requester.client_host, operation, resource_type
        )

    def _decide(self, key: _Key, principal: KafkaPrincipal) -> MatchingRule:
        rule = self._older.pop(key, None)
        if rule is None:
            rule = self._find_rule(key, str(principal))
        if len(key[2]) <= _MAX_KEPT_NAME:
            if len(self._younger) >= _GENERATION:
                self._older, self._younger = self._younger, {}
            self._younger[key] = rule
        return rule

    def _find_rule(self, key: _Key, principal: str) -> MatchingRule:
        if principal in self._super_users:
            return _SUPER_USER
        if not self._is_loaded:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "The authorizer has not read the ACLs yet; try again."
            )
        _, host, name, operation, resource_type, _ = key
        found = self._index.find(principal, host, operation, resource_type, name)
        if found.deny is not None:
            return MatchingRule(is_allowed=False, acl=found.deny)
        if found.allow is not None:
            return MatchingRule(is_allowed=True, acl=found.allow)
        return _DEFAULT_DENY if found.has_acls else self._no_acl_rule


def parse_super_users(text: str) -> frozenset[str]:
    """Read `super.users`: principals, separated by semicolons as their names may have commas. ValueError if
    one is no principal.
    """
    users = [part.strip() for part in text.split(";")]
    return frozenset(str(KafkaPrincipal.parse(user)) for user in users if user)
