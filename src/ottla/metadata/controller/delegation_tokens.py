"""DelegationTokenControlManager: create, renew and expire delegation tokens.

A token's password is the HMAC of its id by a secret that all nodes share (`delegation.token.secret.key`), so
the metadata have no password. Those who know the HMAC of a token may renew it, if they are its owner or one
of its renewers. The caller has checked that the client may ask at all, and create tokens for the owner.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.metadata.controller.state import MAX_RECORDS_PER_REQUEST, ControllerState, Result
from ottla.metadata.image.entities import DelegationToken
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from ottla.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from ottla.protocol.metadata_records import RemoveDelegationTokenRecord
from ottla.protocol.names import uuid_text

_USER: Final = "User"
# Tokens that one client has asked for and that have not ended.
MAX_TOKENS_OF_REQUESTER: Final = 10_000
_MAX_TIMESTAMP: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DelegationTokenSettings:
    """`delegation.token.*`; without a secret there are no tokens."""

    secret_key: bytes | None = field(default=None, repr=False)
    max_lifetime_ms: int = 604_800_000
    expiry_time_ms: int = 86_400_000


def token_hmac(secret_key: bytes, token_id: str) -> bytes:
    return hmac.digest(secret_key, token_id.encode(), "sha512")


class DelegationTokenIndex:
    """The tokens of an image by their HMACs. It follows the image as it is asked; an HMAC is made once."""

    def __init__(self) -> None:
        self._secret_key = b""
        self._ids: dict[bytes, str] = {}
        self._known: set[str] = set()

    def find(
        self, tokens: Mapping[str, DelegationToken], secret_key: bytes, given: bytes
    ) -> DelegationToken | None:
        if secret_key != self._secret_key or len(self._known) > 2 * len(tokens) + 100:
            self._secret_key = secret_key
            self._ids.clear()
            self._known.clear()
        for id in tokens:
            if id not in self._known:
                self._known.add(id)
                self._ids[token_hmac(secret_key, id)] = id
        found = self._ids.get(given)
        return None if found is None else tokens.get(found)


def create_delegation_token(
    state: ControllerState,
    request: CreateDelegationTokenRequest,
    requester: tuple[str, str],
    settings: DelegationTokenSettings,
    now_ms: int,
) -> Result[CreateDelegationTokenResponse]:
    """Create a token for the requester, given by its type and name, or for the owner that it names."""
    owner = requester
    if request.owner_principal_name:
        owner = (request.owner_principal_type or "", request.owner_principal_name)
    response = CreateDelegationTokenResponse(
        principal_type=owner[0],
        principal_name=owner[1],
        token_requester_principal_type=requester[0],
        token_requester_principal_name=requester[1],
    )
    error = _unavailable(state, settings)
    if any(each.principal_type != _USER for each in request.renewers):
        error = error or ErrorCode.INVALID_PRINCIPAL_TYPE
    if error or settings.secret_key is None:
        response.error_code = int(error)
        return Result([], response)
    if _has_too_many(state.image.delegation_tokens, _text(requester)):
        response.error_code = int(ErrorCode.POLICY_VIOLATION)
        return Result([], response)
    lifetime_ms = settings.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    max_timestamp = _later(now_ms, lifetime_ms)
    token = DelegationToken(
        id=uuid_text(state.new_uuid()),
        owner=_text(owner),
        requester=_text(requester),
        renewers=tuple(_text((each.principal_type, each.principal_name)) for each in request.renewers),
        issue_timestamp=now_ms,
        max_timestamp=max_timestamp,
        expiration_timestamp=min(max_timestamp, _later(now_ms, settings.expiry_time_ms)),
    )
    response.issue_timestamp_ms = token.issue_timestamp
    response.expiry_timestamp_ms = token.expiration_timestamp
    response.max_timestamp_ms = token.max_timestamp
    response.token_id = token.id
    response.hmac = token_hmac(settings.secret_key, token.id)
    return Result([token.to_record()], response)


def _has_too_many(tokens: Mapping[str, DelegationToken], requester: str) -> bool:
    """Whether a client has all the tokens that it may have: every user may ask for them, and all nodes hold
    them.
    """
    if len(tokens) < MAX_TOKENS_OF_REQUESTER:
        return False
    return sum(token.requester == requester for token in tokens.values()) >= MAX_TOKENS_OF_REQUESTER


def renew_delegation_token(
    state: ControllerState,
    index: DelegationTokenIndex,
    request: RenewDelegationTokenRequest,
    requester: tuple[str, str],
    settings: DelegationTokenSettings,
    now_ms: int,
) -> Result[RenewDelegationTokenResponse]:
    token, error = _find(state, index, request.hmac, settings)
    if token is not None and not error:
        if is_expired(token, now_ms):
            error = ErrorCode.DELEGATION_TOKEN_EXPIRED
        elif not _may_renew(token, requester):
            error = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    if token is None or error:
        return Result([], RenewDelegationTokenResponse(error_code=int(error)))
    period_ms = settings.expiry_time_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    records, expires_at = _moved(token, _later(now_ms, period_ms))
    return Result(records, RenewDelegationTokenResponse(expiry_timestamp_ms=expires_at))


def expire_delegation_token(
    state: ControllerState,
    index: DelegationTokenIndex,
    request: ExpireDelegationTokenRequest,
    requester: tuple[str, str],
    settings: DelegationTokenSettings,
    now_ms: int,
) -> Result[ExpireDelegationTokenResponse]:
    """Change when a token ends; a negative period removes it at once."""
    token, error = _find(state, index, request.hmac, settings)
    if token is not None and not error:
        if not _may_renew(token, requester):
            error = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        elif request.expiry_time_period_ms < 0:
            removal = RemoveDelegationTokenRecord(token_id=token.id)
            return Result([removal], ExpireDelegationTokenResponse(expiry_timestamp_ms=now_ms))
        elif is_expired(token, now_ms):
            error = ErrorCode.DELEGATION_TOKEN_EXPIRED
    if token is None or error:
        return Result([], ExpireDelegationTokenResponse(error_code=int(error)))
    records, expires_at = _moved(token, _later(now_ms, request.expiry_time_period_ms))
    return Result(records, ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_at))


def sweep_expired_delegation_tokens(state: ControllerState, now_ms: int) -> Result[bool]:
    """Remove tokens that have ended. Whether there are more than one batch takes."""
    expired = [token.id for token in state.image.delegation_tokens.values() if is_expired(token, now_ms)]
    removals = [RemoveDelegationTokenRecord(token_id=id) for id in expired[:MAX_RECORDS_PER_REQUEST]]
    return Result(removals, len(expired) > len(removals))


def is_expired(token: DelegationToken, now_ms: int) -> bool:
    return token.max_timestamp < now_ms or token.expiration_timestamp < now_ms


def is_owner_or_renewer(token: DelegationToken, principal: str) -> bool:
    return principal == token.owner or principal in token.renewers


def _unavailable(state: ControllerState, settings: DelegationTokenSettings) -> ErrorCode:
    if settings.secret_key is None:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    return ErrorCode.NONE if state.version.delegation_tokens else ErrorCode.UNSUPPORTED_VERSION


def _find(
    state: ControllerState, index: DelegationTokenIndex, given: bytes, settings: DelegationTokenSettings
) -> tuple[DelegationToken | None, ErrorCode]:
    error = _unavailable(state, settings)
    if error or settings.secret_key is None:
        return None, error
    token = index.find(state.image.delegation_tokens, settings.secret_key, bytes(given))
    return token, ErrorCode.NONE if token is not None else ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def _may_renew(token: DelegationToken, requester: tuple[str, str]) -> bool:
    return is_owner_or_renewer(token, _text(requester))


def _moved(token: DelegationToken, expires_at: int) -> tuple[list[MetadataRecord], int]:
    """The record of a token that ends at another time, and that time."""
    expires_at = min(token.max_timestamp, expires_at)
    return [replace(token, expiration_timestamp=expires_at).to_record()], expires_at


def _later(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, _MAX_TIMESTAMP)


def _text(principal: tuple[str, str]) -> str:
    return f"{principal[0]}:{principal[1]}"
