"""AlterClientQuotas: set and remove the quotas of users, client ids and addresses.

Version 1 is flexible (KIP-482).
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)


async def handle(context: ApiRequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    context.require_of_cluster(AclOperation.ALTER_CONFIGS)
    return await context.controller.control(lambda controller: controller.alter_client_quotas(request))
