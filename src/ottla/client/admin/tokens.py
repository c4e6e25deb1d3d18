"""Delegation tokens: with one, a program logs in as its owner by SCRAM, without the secrets of the owner."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.client.admin.requests import AdminRequests
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from ottla.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


@dataclass(frozen=True, slots=True)
class DelegationTokenInfo:
    """A token. Principals are written as `User:alice`. `hmac` is its password and is not in its `repr`."""

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    max_timestamp_ms: int

    @property
    def password(self) -> str:
        """What to log in with, as `sasl.password`; `token_id` is the name, and `tokenauth=true` an option of
        the login module.
        """
        return base64.b64encode(self.hmac).decode()


class DelegationTokensAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    async def create(
        self, *, renewers: Iterable[str] = (), max_lifetime_ms: int = -1, owner: str | None = None
    ) -> DelegationTokenInfo:
        """Create a token for the principal of this client or, with the permission, for another owner. It can
        be renewed for at most `max_lifetime_ms`; -1 is the longest that brokers allow.
        """
        renewer_names = [_split(each) for each in renewers]
        # Brokers from before 3.3 have no place for an owner; an empty one is the requester.
        owner_type, owner_name = _split(owner) if owner is not None else ("", "")
        request = CreateDelegationTokenRequest(
            owner_principal_type=owner_type,
            owner_principal_name=owner_name,
            renewers=[CreatableRenewers(principal_type=t, principal_name=n) for t, n in renewer_names],
            max_lifetime_ms=max_lifetime_ms,
        )
        answer = await self._requests.controller(
            request, CreateDelegationTokenResponse, lambda r: (r.error_code,)
        )
        _check(answer.error_code)
        of = f"{answer.principal_type}:{answer.principal_name}"
        requester = f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}"
        return DelegationTokenInfo(
            answer.token_id,
            bytes(answer.hmac),
            of,
            of if requester == ":" else requester,
            tuple(f"{kind}:{name}" for kind, name in renewer_names),
            answer.issue_timestamp_ms,
            answer.expiry_timestamp_ms,
            answer.max_timestamp_ms,
        )

    async def renew(self, hmac: bytes, *, period_ms: int = -1) -> int:
        """Renew a token for a period, -1 for the usual one, and return when it then ends."""
        answer = await self._requests.controller(
            RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms),
            RenewDelegationTokenResponse,
            lambda r: (r.error_code,),
        )
        _check(answer.error_code)
        return answer.expiry_timestamp_ms

    async def expire(self, hmac: bytes, *, period_ms: int = -1) -> int:
        """End a token after a period, or at once if that is negative, and return when it ends."""
        answer = await self._requests.controller(
            ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms),
            ExpireDelegationTokenResponse,
            lambda r: (r.error_code,),
        )
        _check(answer.error_code)
        return answer.expiry_timestamp_ms

    async def describe(self, *owners: str) -> list[DelegationTokenInfo]:
        """The tokens that the client may see: those that these principals own or may renew, or all."""
        asked = [
            DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
            for kind, name in map(_split, owners)
        ]
        request = DescribeDelegationTokenRequest(owners=asked or None)
        answer = await self._requests.any(request, DescribeDelegationTokenResponse)
        _check(answer.error_code)
        return sorted((_info(each) for each in answer.tokens), key=lambda each: (each.owner, each.token_id))


def _info(token: DescribedDelegationToken) -> DelegationTokenInfo:
    owner = f"{token.principal_type}:{token.principal_name}"
    requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
    return DelegationTokenInfo(
        token.token_id,
        bytes(token.hmac),
        owner,
        owner if requester == ":" else requester,
        tuple(f"{each.principal_type}:{each.principal_name}" for each in token.renewers),
        token.issue_timestamp,
        token.expiry_timestamp,
        token.max_timestamp,
    )


def _check(error_code: int) -> None:
    if error_code:
        code = ErrorCode.of(error_code)
        hint = ""
        if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED:
            hint = " Set delegation.token.secret.key, to the same text on all brokers and controllers."
        raise KafkaError(code, f"delegation token: {code.text}{hint}")


def _split(principal: str) -> tuple[str, str]:
    kind, colon, name = principal.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"{principal!r} is no principal; write it as User:name")
    return kind, name
