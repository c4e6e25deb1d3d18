"""DeleteGroups: delete groups without members, and their offsets; those of a share group are its states.

Version 2 is flexible (KIP-482).
Version 3 says why a group was not deleted.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from ottla.runtime.turns import Turns

# Groups that are deleted at the same time: their records are committed together.
_AT_ONCE: Final = 100


async def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    turns, results = Turns(context.broker.runtime.clock), list[DeletableGroupResult]()
    for start in range(0, len(names), _AT_ONCE):
        part = names[start : start + _AT_ONCE]
        results += await asyncio.gather(*(_delete(context, group_id) for group_id in part))
        await turns.pause_if_due()
    return DeleteGroupsResponse(results=results)


async def _delete(context: RequestContext, group_id: str) -> DeletableGroupResult:
    try:
        check_group(context, group_id, AclOperation.DELETE)
        await context.broker.coordinators.share_groups.delete_group(group_id)
    except KafkaError as error:
        return DeletableGroupResult(
            group_id=group_id, error_code=int(error.code), error_message=error.message
        )
    return DeletableGroupResult(group_id=group_id)
