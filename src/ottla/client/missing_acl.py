"""Say which ACL a client lacks: the principal if the client knows it, the operation and the resource."""

from __future__ import annotations

import re
from typing import Final

from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.security.clients.settings import SecuritySettings

_RESOURCES: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
_JAAS_USER: Final = re.compile(r'\busername\s*=\s*"([^"\\]*)"')


def explain_denial(code: ErrorCode, operation: AclOperation, name: str, principal: str | None) -> str:
    """Return what follows the text of an error: the ACL that is missing, if that is the error.

    >>> explain_denial(ErrorCode.TOPIC_AUTHORIZATION_FAILED, AclOperation.READ, "orders", "User:alice")
    ' Missing ACL: User:alice READ on topic orders.'
    """
    kind = _RESOURCES.get(code)
    if kind is None:
        return ""
    resource = "the cluster" if kind == "cluster" else f"{kind} {name}"
    return f" Missing ACL: {principal or 'the principal of this client'} {operation.name} on {resource}."


def principal_of(security: SecuritySettings, certificate_subject: str | None = None) -> str | None:
    """The principal that brokers probably see, by the user name of a login or the subject of a certificate;
    None if that is not known.
    """
    if not security.protocol.sasl:
        if certificate_subject is not None:
            return f"User:{certificate_subject} (or what ssl.principal.mapping.rules make of it)"
        return "User:ANONYMOUS"
    values = dict(security.values)
    user = values.get("sasl.username")
    if user is None:
        found = _JAAS_USER.search(values.get("sasl.jaas.config", ""))
        user = None if found is None else found[1]
    return None if user is None else f"User:{user}"
