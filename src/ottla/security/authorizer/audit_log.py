"""The audit log: the lines of Kafka's `kafka.authorizer.logger`.

Denials are logged at INFO, what was allowed at DEBUG, decisions that only fill in a response (authorized
operations, topics of a list) at DEBUG too, below which Python has no level. Each is one line whatever names
clients send: control characters are escaped and long names are cut. A flood of denials is thinned out, so
that it costs neither the disk nor the event loop more than a bounded part: what was left out is counted, and
the count is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from ottla.metadata.image.entities import AccessControlEntry
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType, enum_name
from ottla.security.principal import KafkaPrincipal

LOGGER_NAME: Final = "kafka.authorizer.logger"
_MAX_NAME: Final = 256
# How many denials are logged at once, and how many for each second after that.
_BURST: Final = 5_000
_PER_SECOND: Final = 500

_log: Final = logging.getLogger(LOGGER_NAME)


class Auditable(Protocol):
    """The request for which an action is authorized."""

    @property
    def principal(self) -> KafkaPrincipal: ...

    @property
    def client_host(self) -> str: ...

    @property
    def request_name(self) -> str: ...


class AuditLog:
    """`now` returns the seconds of a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._left = float(_BURST)
        self._refilled = now()
        self._suppressed = 0
        # How many denials there were, whether they are in the log or were left out.
        self.denials = 0

    def denied(
        self, requester: Auditable, operation: int, resource_type: int, name: str, count: int, rule: object
    ) -> None:
        self.denials += 1
        now = self._now()
        self._left = min(_BURST, self._left + (now - self._refilled) * _PER_SECOND)
        self._refilled = now
        if self._left < 1:
            self._suppressed += 1
            return
        self._left -= 1
        if self._suppressed:
            _log.info("%d more denials were left out of the log: there were too many", self._suppressed)
            self._suppressed = 0
        _log.info("%s", _line("Denied", requester, operation, resource_type, name, count, rule))

    def allowed(
        self, requester: Auditable, operation: int, resource_type: int, name: str, count: int, rule: object
    ) -> None:
        _log.debug("%s", _line("Allowed", requester, operation, resource_type, name, count, rule))

    def changed(self, requester: Auditable, what: str) -> None:
        """Log that an administrator changed something; `what` names it, without secrets."""
        _log.info(
            "Principal = %s changed %s from host = %s by request = %s",
            _printable(str(requester.principal)),
            _printable(what, 1024),
            requester.client_host,
            requester.request_name,
        )


def _line(
    outcome: str,
    requester: Auditable,
    operation: int,
    resource_type: int,
    name: str,
    count: int,
    rule: object,
) -> str:
    return (
        f"Principal = {_printable(str(requester.principal))} is {outcome} "
        f"operation = {enum_name(AclOperation, operation)} from host = {requester.client_host} "
        f"on resource = {resource_type_name(resource_type)}:LITERAL:{_printable(name)} "
        f"for request = {requester.request_name} with resourceRefCount = {count} based on rule {rule}"
    )


def resource_type_name(resource_type: int) -> str:
    """`TransactionalId` of TRANSACTIONAL_ID, as Kafka's tools and logs write it."""
    return "".join(part.capitalize() for part in enum_name(AclResourceType, resource_type).split("_"))


def describe_acl(acl: AccessControlEntry) -> str:
    """An ACL as Kafka's logs write it, on one line."""
    return (
        f"StandardAcl(resourceType={enum_name(AclResourceType, acl.resource_type)}, "
        f"resourceName={_printable(acl.resource_name)}, "
        f"patternType={enum_name(PatternType, acl.pattern_type)}, principal={_printable(acl.principal)}, "
        f"host={_printable(acl.host)}, operation={enum_name(AclOperation, acl.operation)}, "
        f"permissionType={enum_name(AclPermissionType, acl.permission_type)})"
    )


def _printable(text: str, limit: int = _MAX_NAME) -> str:
    """The text on one line, cut if it is long."""
    if len(text) > limit:
        text = f"{text[:limit]}...({len(text)} characters)"
    return text if text.isprintable() else ascii(text)[1:-1]
