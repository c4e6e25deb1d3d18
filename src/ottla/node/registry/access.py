"""Who may do what with the registry: what they may do with its topic, or with the topic of a subject.

A client that may read or write the registry's topic could do to it all that the API does, so that is what
counts for the whole registry. Others may do with a subject what they may do with its topic: `orders-value`
and `orders-key` are those of `orders`, as the names that serializers give them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.node.http.access import HttpRequester
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.registry.rest import RegistryRight
from ottla.registry.subjects import QualifiedSubject
from ottla.security.principal import KafkaPrincipal

if TYPE_CHECKING:
    from ottla.runtime.http_server import HttpServerRequest
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer

_OPERATIONS: Final = {
    RegistryRight.READ: AclOperation.READ,
    RegistryRight.WRITE: AclOperation.WRITE,
    RegistryRight.DELETE: AclOperation.DELETE,
    RegistryRight.CONFIGURE: AclOperation.ALTER_CONFIGS,
}


class TopicAccess:
    """`RegistryAccess` by the ACLs of topics; without an authorizer, all may do everything."""

    def __init__(self, topic: str, authorizer: StandardAuthorizer | None) -> None:
        self._topic: Final = topic
        self._authorizer: Final = authorizer

    def allows(self, request: HttpServerRequest, right: RegistryRight, subject: str | None) -> bool:
        if self._authorizer is None:
            return True
        assert isinstance(request.principal, KafkaPrincipal)
        requester = HttpRequester(request.principal, request.peer.host)
        topics = [self._topic] if subject is None else [_topic_of(subject), self._topic]
        return any(
            self._authorizer.allowed(
                requester,
                _OPERATIONS[right],
                AclResourceType.TOPIC,
                topic,
                log_denied=topic == topics[-1] and right is not RegistryRight.READ,
            )
            for topic in topics
        )


def _topic_of(subject: str) -> str:
    """The topic whose records a subject is for.

    >>> _topic_of(":.staging:orders-value"), _topic_of("orders")
    ('orders', 'orders')
    """
    return QualifiedSubject.parse(subject).subject.removesuffix("-value").removesuffix("-key")
