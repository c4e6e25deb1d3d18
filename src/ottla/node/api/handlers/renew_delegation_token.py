"""RenewDelegationToken: move the end of a token further out, within its longest life.

Its owner and its renewers may, if they know its HMAC; not a client that has logged in with a token.
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.node.api.delegation_tokens import decided, may_use_tokens
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


async def handle(
    context: ApiRequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    if not may_use_tokens(context):
        return RenewDelegationTokenResponse(
            error_code=int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED), expiry_timestamp_ms=-1
        )
    requester = context.principal
    return await decided(
        context,
        request,
        lambda controller, settings, now_ms: controller.renew_delegation_token(
            request, (requester.type, requester.name), settings, now_ms
        ),
    )
