"""AlterUserScramCredentials: set and delete the SCRAM credentials of users.

Sessions of a user whose credential is gone go on until they end by themselves, as in Kafka.
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)


async def handle(
    context: ApiRequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    context.require_of_cluster(AclOperation.ALTER)
    return await context.controller.control(
        lambda controller: controller.alter_user_scram_credentials(request)
    )


def failure_response(
    request: AlterUserScramCredentialsRequest, code: int, message: str | None
) -> AlterUserScramCredentialsResponse:
    users = {each.name for each in request.deletions} | {each.name for each in request.upsertions}
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=user, error_code=int(code), error_message=message)
            for user in sorted(users)
        ]
    )
