"""CreateDelegationToken: a token with which others log in as its owner, by SCRAM.

A client that has itself logged in with a token, or that is not authenticated, gets none. The broker whose
listener the client uses checks that, as only it knows; the controller decides the rest.

Version 2 is flexible (KIP-482).
Version 3 creates tokens for other owners, which takes CREATE_TOKENS on that user (KIP-373).
"""

from __future__ import annotations

from typing import Final

from ottla.node.api.context import ApiRequestContext
from ottla.node.api.delegation_tokens import decided, may_use_tokens
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.security.principal import USER_TYPE, KafkaPrincipal

_NO_TIME: Final = -1
_FIRST_WITH_REQUESTER: Final = 3


async def handle(
    context: ApiRequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    response = await _create(context, request)
    if context.version < _FIRST_WITH_REQUESTER:
        response.token_requester_principal_type = response.token_requester_principal_name = ""
    return response


async def _create(
    context: ApiRequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    requester = context.principal
    owner = requester
    if request.owner_principal_name:
        owner = KafkaPrincipal(request.owner_principal_type or "", request.owner_principal_name)
    if not may_use_tokens(context):
        return _refusal(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, owner, requester)
    if owner != requester and not context.allowed(
        AclOperation.CREATE_TOKENS, AclResourceType.USER, str(owner)
    ):
        return _refusal(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, owner, requester)
    if any(each.principal_type != USER_TYPE for each in request.renewers):
        return _refusal(ErrorCode.INVALID_PRINCIPAL_TYPE, owner, requester)
    return await decided(
        context,
        request,
        lambda controller, settings, now_ms: controller.create_delegation_token(
            request, (requester.type, requester.name), settings, now_ms
        ),
    )


def _refusal(
    code: ErrorCode, owner: KafkaPrincipal, requester: KafkaPrincipal
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=int(code),
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=_NO_TIME,
        expiry_timestamp_ms=_NO_TIME,
        max_timestamp_ms=_NO_TIME,
    )
