"""DescribeDelegationToken: the tokens of some owners, or of all, that the client may see.

Those are its own, those that it may renew, and those that ACLs let it see: DESCRIBE on the token, or
DESCRIBE_TOKENS on its owner. The answer has their HMACs, as in Kafka.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.metadata.controller.delegation_tokens import is_owner_or_renewer, token_hmac
from ottla.metadata.image.entities import DelegationToken
from ottla.node.api.context import RequestContext
from ottla.node.api.delegation_tokens import may_use_tokens, token_settings
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.security.principal import KafkaPrincipal

_FIRST_WITH_REQUESTER: Final = 3
_TOKENS_IN_A_TURN: Final = 100


async def handle(
    context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    if not may_use_tokens(context):
        return _error(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    secret_key = token_settings(context.config).secret_key
    if secret_key is None:
        return _error(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    tokens = []
    for number, token in enumerate(context.image.delegation_tokens.values(), 1):
        if _is_asked_for(token, owners) and _is_visible(context, token):
            tokens.append(_described(token, token_hmac(secret_key, token.id)))
        if number % _TOKENS_IN_A_TURN == 0:
            await asyncio.sleep(0)
    if context.version < _FIRST_WITH_REQUESTER:
        for each in tokens:
            each.token_requester_principal_type = each.token_requester_principal_name = ""
    return DescribeDelegationTokenResponse(tokens=tokens)


def _error(code: ErrorCode) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=int(code))


def _is_asked_for(token: DelegationToken, owners: set[str] | None) -> bool:
    return owners is None or token.owner in owners or not owners.isdisjoint(token.renewers)


def _is_visible(context: RequestContext, token: DelegationToken) -> bool:
    return (
        is_owner_or_renewer(token, str(context.principal))
        or context.allowed(
            AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, token.id, log_denied=False
        )
        or context.allowed(AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, token.owner, log_denied=False)
    )


def _described(token: DelegationToken, hmac: bytes) -> DescribedDelegationToken:
    owner, requester = KafkaPrincipal.parse(token.owner), KafkaPrincipal.parse(token.requester or token.owner)
    return DescribedDelegationToken(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.id,
        hmac=hmac,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=renewer.type, principal_name=renewer.name)
            for renewer in map(KafkaPrincipal.parse, token.renewers)
        ],
    )
