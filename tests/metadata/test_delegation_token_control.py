"""The controller's decisions about delegation tokens over time, with the answers of Kafka's controller."""

from __future__ import annotations

import hmac
from typing import Any

import pytest

from ottla.metadata.controller import delegation_tokens
from ottla.metadata.controller.delegation_tokens import DelegationTokenIndex, DelegationTokenSettings
from ottla.metadata.image.entities import DelegationToken
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from ottla.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from tests.metadata.controller_harness import ControllerHarness

ALICE = ("User", "alice")
SETTINGS = DelegationTokenSettings(b"secret", max_lifetime_ms=10_000, expiry_time_ms=1_000)
FOREVER = 2**63 - 1


def create(harness: ControllerHarness, now_ms: int, lifetime_ms: int = -1) -> Any:
    request = CreateDelegationTokenRequest(max_lifetime_ms=lifetime_ms)
    return harness.do(harness.controller.create_delegation_token(request, ALICE, SETTINGS, now_ms))


def renew(harness: ControllerHarness, given: bytes, now_ms: int, period_ms: int = -1) -> Any:
    request = RenewDelegationTokenRequest(hmac=given, renew_period_ms=period_ms)
    return harness.do(harness.controller.renew_delegation_token(request, ALICE, SETTINGS, now_ms))


def expire(harness: ControllerHarness, given: bytes, now_ms: int, period_ms: int = -1) -> Any:
    request = ExpireDelegationTokenRequest(hmac=given, expiry_time_period_ms=period_ms)
    return harness.do(harness.controller.expire_delegation_token(request, ALICE, SETTINGS, now_ms))


def test_a_token_lives_as_long_as_it_is_renewed_and_no_longer_than_allowed() -> None:
    harness = ControllerHarness()
    token = create(harness, 100)
    assert token.hmac == hmac.digest(b"secret", token.token_id.encode(), "sha512")
    assert (token.issue_timestamp_ms, token.expiry_timestamp_ms, token.max_timestamp_ms) == (
        100,
        1_100,
        10_100,
    )
    assert renew(harness, token.hmac, 1_100).expiry_timestamp_ms == 2_100
    assert renew(harness, token.hmac, 2_000, 50).expiry_timestamp_ms == 2_050
    assert renew(harness, token.hmac, 2_050, 5_000).expiry_timestamp_ms == 3_050
    assert renew(harness, token.hmac, 3_051).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    late = ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(harness, token.hmac, 3_051, 1_000).error_code == late
    assert expire(harness, token.hmac, 3_051).expiry_timestamp_ms == 3_051
    assert expire(harness, token.hmac, 3_051).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert harness.image.delegation_tokens == {}


def test_the_longest_life_bounds_every_renewal() -> None:
    harness = ControllerHarness()
    token = create(harness, 0, 1_500)
    assert (token.expiry_timestamp_ms, token.max_timestamp_ms) == (1_000, 1_500)
    assert renew(harness, token.hmac, 900).expiry_timestamp_ms == 1_500
    assert expire(harness, token.hmac, 900, FOREVER).expiry_timestamp_ms == 1_500
    assert expire(harness, token.hmac, 900, 0).expiry_timestamp_ms == 900
    unbounded = DelegationTokenSettings(b"secret", FOREVER, FOREVER)
    request = CreateDelegationTokenRequest(max_lifetime_ms=FOREVER)
    decided = harness.controller.create_delegation_token(request, ALICE, unbounded, 5)
    assert (decided.response.max_timestamp_ms, decided.response.expiry_timestamp_ms) == (FOREVER, FOREVER)


def test_a_client_does_not_fill_the_metadata_with_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "MAX_TOKENS_OF_REQUESTER", 3)
    harness = ControllerHarness()
    first = [create(harness, 0) for _ in range(3)]
    assert [each.error_code for each in first] == [0, 0, 0]
    assert create(harness, 0).error_code == ErrorCode.POLICY_VIOLATION
    assert len(harness.image.delegation_tokens) == 3
    request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
    other = harness.controller.create_delegation_token(request, ("User", "bob"), SETTINGS, 0)
    assert harness.do(other).error_code == 0
    expire(harness, first[0].hmac, 0)
    assert create(harness, 0).error_code == 0


def test_tokens_that_have_ended_are_swept() -> None:
    harness = ControllerHarness()
    ended, lasting = create(harness, 0), create(harness, 500)
    harness.do(harness.controller.sweep_expired_delegation_tokens(1_000))
    assert set(harness.image.delegation_tokens) == {ended.token_id, lasting.token_id}
    harness.do(harness.controller.sweep_expired_delegation_tokens(1_001))
    assert set(harness.image.delegation_tokens) == {lasting.token_id}


def test_the_index_follows_the_tokens() -> None:
    def token(id: str) -> DelegationToken:
        return DelegationToken(id, "User:a", "User:a", (), 0, 0, 0)

    def mac(id: str, secret: bytes = b"s") -> bytes:
        return hmac.digest(secret, id.encode(), "sha512")

    index = DelegationTokenIndex()
    tokens = {id: token(id) for id in ("1", "2")}
    assert index.find(tokens, b"s", mac("1")) is tokens["1"]
    del tokens["1"]
    tokens["3"] = token("3")
    assert index.find(tokens, b"s", mac("1")) is None
    assert index.find(tokens, b"s", mac("3")) is tokens["3"]
    assert index.find(tokens, b"other", mac("3")) is None
    assert index.find(tokens, b"other", mac("3", b"other")) is tokens["3"]
    many = {str(n): token(str(n)) for n in range(1_000)}
    assert index.find(many, b"s", mac("999")) is many["999"]
    assert index.find(tokens, b"s", mac("999")) is None
    assert len(index._known) == len(tokens)
