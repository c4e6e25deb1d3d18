"""ListGroups: list the groups that this broker coordinates.

Version 3 is flexible (KIP-482).
Version 4 has states and a filter on them (KIP-518).
Version 5 has types and a filter on them (KIP-848).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.runtime.steps import Steps


def handle(context: RequestContext, request: ListGroupsRequest) -> Awaitable[ListGroupsResponse]:
    return _list(context, request)


async def _list(context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    states = await context.complete(_distinct(request.states_filter))
    types = await context.complete(_distinct(request.types_filter))
    groups = await context.broker.coordinators.groups.list_groups(states, types)
    if not context.allowed(AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=False):
        groups = [
            group
            for group in groups
            if context.allowed(AclOperation.DESCRIBE, AclResourceType.GROUP, group.group_id, log_denied=False)
        ]
    return ListGroupsResponse(groups=groups)


def _distinct(names: Iterable[str]) -> Steps[set[str]]:
    found = set()
    for name in names:
        found.add(name)
        yield
    return found
