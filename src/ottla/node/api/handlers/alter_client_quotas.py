"""AlterClientQuotas: set and remove the quotas of users, client ids and addresses.

Version 1 is flexible.
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)


async def handle(context: ApiRequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    context.require_of_cluster(AclOperation.ALTER_CONFIGS)
    return await context.controller.control(lambda controller: controller.alter_client_quotas(request))


def failure_response(
    request: AlterClientQuotasRequest, code: int, message: str | None
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=int(code), error_message=message, entity=entry.entity
            )
            for entry in request.entries
        ]
    )
