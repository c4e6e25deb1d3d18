"""Principals for tests of a node in this process, without authentication: the client id says who it is.

`speaking_client_ids` lets a request with the client id `as:alice` come from User:alice. Other client ids stay
anonymous.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from ottla.node.api.context import RequestContext
from ottla.security.principal import USER_TYPE, KafkaPrincipal
from tests.support.wire import WireClient

_PREFIX = "as:"


@contextmanager
def speaking_client_ids() -> Iterator[None]:
    def principal(context: RequestContext) -> KafkaPrincipal:
        client_id = context.client_id or ""
        if client_id.startswith(_PREFIX):
            return KafkaPrincipal(USER_TYPE, client_id[len(_PREFIX) :])
        return context.pending.connection.principal

    with mock.patch.object(RequestContext, "principal", property(principal)):
        yield


def client_of(address: str, user: str) -> WireClient:
    """A connection whose requests come from a user."""
    return WireClient(address, client_id=f"{_PREFIX}{user}")
