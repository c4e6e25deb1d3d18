"""Delegation tokens: who may create, see, renew and end them, and how clients log in with one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.admin.tokens import DelegationTokenInfo
from ottla.client.errors import AuthenticationFailed
from ottla.client.producer.producer import Producer
from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ottla.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine
from tests.support.principals import ADMIN, client_of, own_settings
from tests.support.wire import WireClient

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
DEADLINE_SECONDS = 60
T = TypeVar("T")
SETTINGS: dict[str, str | int] = {
    **own_settings(["alice", "bob", "carol", "dave"]),
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
    "scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
    "delegation.token.secret.key": "the-secret-of-all-nodes",
    "delegation.token.expiry.check.interval.ms": 200,
    "connection.failed.authentication.delay.ms": 20,
}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(SETTINGS) as running:
        yield running


def user(node: LocalNode, name: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN} required username="{name}" password="{name}";',
    }


def bearer(node: LocalNode, token: DelegationTokenInfo, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
    login = f'username="{token.token_id}" password="{token.password}" tokenauth="true"'
    return {
        "bootstrap.servers": node.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{SCRAM} required {login};",
    }


def as_client(settings: dict[str, Any], work: Callable[[Admin], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Admin(settings) as admin:
            return await work(admin)

    return asyncio.run(asyncio.wait_for(run(), DEADLINE_SECONDS))


def code_of(settings: dict[str, Any], work: Callable[[Admin], Awaitable[object]]) -> ErrorCode:
    with pytest.raises(KafkaError) as failed:
        as_client(settings, work)
    return failed.value.code


def create(node: LocalNode, name: str = "alice", **options: Any) -> DelegationTokenInfo:
    return as_client(user(node, name), lambda admin: admin.tokens.create(**options))


def described(node: LocalNode, name: str, *owners: str) -> list[str]:
    return [each.token_id for each in as_client(user(node, name), lambda a: a.tokens.describe(*owners))]


def allow(node: LocalNode, name: str, operation: int, resource_type: int, resource: str) -> None:
    acl = AclCreation(
        resource_type=resource_type,
        resource_name=resource,
        resource_pattern_type=PatternType.LITERAL,
        principal=f"User:{name}",
        host="*",
        operation=operation,
        permission_type=AclPermissionType.ALLOW,
    )
    with client_of(node.bootstrap_servers, ADMIN) as wire:
        wire.get(CreateAclsRequest(creations=[acl]), 3, CreateAclsResponse)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_bearer_of_a_token_is_its_owner(node: LocalNode, mechanism: str) -> None:
    allow(node, "alice", AclOperation.WRITE, AclResourceType.TOPIC, "of-alice")
    allow(node, "alice", AclOperation.CREATE, AclResourceType.TOPIC, "of-alice")
    allow(node, "alice", AclOperation.DESCRIBE, AclResourceType.TOPIC, "of-alice")
    token = create(node)

    async def produce() -> None:
        async with Producer(bearer(node, token, mechanism)) as producer:
            await producer.send("of-alice", b"hello")
            await producer.flush()

    asyncio.run(asyncio.wait_for(produce(), DEADLINE_SECONDS))


def test_a_token_says_when_it_ends(node: LocalNode) -> None:
    before = time.time_ns() // 1_000_000
    token = create(node, renewers=["User:bob"], max_lifetime_ms=3_600_000)
    after = time.time_ns() // 1_000_000
    assert (token.owner, token.requester, token.renewers) == ("User:alice", "User:alice", ("User:bob",))
    assert before <= token.issued_at_ms <= after
    assert token.max_timestamp_ms == token.expires_at_ms == token.issued_at_ms + 3_600_000
    usual = create(node)
    assert usual.expires_at_ms == usual.issued_at_ms + 86_400_000
    assert usual.max_timestamp_ms == usual.issued_at_ms + 604_800_000
    assert as_client(user(node, "alice"), lambda admin: admin.tokens.describe())[0].hmac
    assert {token.token_id, usual.token_id} <= set(described(node, "alice"))


def test_owner_and_renewers_renew_and_expire(node: LocalNode) -> None:
    token = create(node, renewers=["User:bob"], max_lifetime_ms=3_600_000)
    for name in ("alice", "bob"):
        settings = user(node, name)
        now = time.time_ns() // 1_000_000
        moved = as_client(settings, lambda admin: admin.tokens.renew(token.hmac, period_ms=60_000))
        assert now + 60_000 <= moved <= now + 120_000
        assert as_client(settings, lambda a: a.tokens.renew(token.hmac)) == token.max_timestamp_ms
        moved = as_client(settings, lambda a: a.tokens.expire(token.hmac, period_ms=90_000))
        assert now + 90_000 <= moved <= now + 150_000
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert code_of(user(node, "carol"), lambda a: a.tokens.renew(token.hmac)) is mismatch
    assert code_of(user(node, "carol"), lambda a: a.tokens.expire(token.hmac)) is mismatch
    unknown = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert code_of(user(node, "alice"), lambda a: a.tokens.renew(b"another")) is unknown
    as_client(user(node, "bob"), lambda admin: admin.tokens.expire(token.hmac))
    assert code_of(user(node, "alice"), lambda a: a.tokens.renew(token.hmac)) is unknown
    with pytest.raises(AuthenticationFailed):
        as_client(bearer(node, token), lambda admin: admin.tokens.describe())


def test_a_bearer_of_a_token_manages_no_tokens(node: LocalNode) -> None:
    token = create(node)
    settings, refused = bearer(node, token), ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert code_of(settings, lambda a: a.tokens.create()) is refused
    assert code_of(settings, lambda a: a.tokens.renew(token.hmac)) is refused
    assert code_of(settings, lambda a: a.tokens.expire(token.hmac)) is refused
    assert code_of(settings, lambda a: a.tokens.describe()) is refused


def test_a_wrong_hmac_does_not_let_in(node: LocalNode) -> None:
    token = create(node)
    other = create(node, "bob")
    for bad in (
        bearer(node, token)
        | {
            "sasl.jaas.config": f'{SCRAM} required username="{token.token_id}" '
            f'password="{other.password}" tokenauth="true";'
        },
        # A token's id is no user, and its HMAC no user's password.
        bearer(node, token)
        | {"sasl.jaas.config": f'{SCRAM} required username="{token.token_id}" password="{token.password}";'},
        bearer(node, token)
        | {
            "sasl.jaas.config": f'{SCRAM} required username="alice" '
            f'password="{token.password}" tokenauth="true";'
        },
    ):
        with pytest.raises(AuthenticationFailed):
            as_client(bad, lambda admin: admin.tokens.describe())


def test_tokens_that_have_ended_are_removed(node: LocalNode) -> None:
    token = create(node, "dave", max_lifetime_ms=300)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while described(node, "dave"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(AuthenticationFailed):
        as_client(bearer(node, token), lambda admin: admin.tokens.describe())
    unknown = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert code_of(user(node, "dave"), lambda a: a.tokens.renew(token.hmac)) is unknown


def test_acls_let_others_create_and_see_tokens(node: LocalNode) -> None:
    of_alice = create(node)
    denied = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert code_of(user(node, "carol"), lambda a: a.tokens.create(owner="User:alice")) is denied
    assert of_alice.token_id not in described(node, "carol")
    allow(node, "carol", AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, of_alice.token_id)
    assert described(node, "carol") == [of_alice.token_id]
    allow(node, "carol", AclOperation.CREATE_TOKENS, AclResourceType.USER, "User:alice")
    token = create(node, "carol", owner="User:alice")
    assert (token.owner, token.requester) == ("User:alice", "User:carol")
    assert token.token_id in described(node, "alice")
    assert described(node, "carol") == [of_alice.token_id]
    allow(node, "carol", AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, "User:alice")
    assert {of_alice.token_id, token.token_id} <= set(described(node, "carol"))
    assert described(node, "carol", "User:dave") == []
    assert token.token_id in described(node, "carol", "User:dave", "User:alice")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_answers_of_all_versions(node: LocalNode, version: int) -> None:
    with client_of(node.bootstrap_servers, "alice") as wire:
        request = CreateDelegationTokenRequest(
            renewers=[CreatableRenewers(principal_type="Group", principal_name="x")], max_lifetime_ms=-1
        )
        answer = wire.get(request, version, CreateDelegationTokenResponse)
        assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        assert (answer.principal_name, answer.issue_timestamp_ms, answer.hmac) == ("alice", -1, b"")
        request.renewers = []
        created = wire.get(request, version, CreateDelegationTokenResponse)
        assert (created.error_code, len(created.hmac)) == (0, 64)
        renewal = RenewDelegationTokenRequest(hmac=created.hmac, renew_period_ms=-1)
        renewed = wire.get(renewal, min(version, 2), RenewDelegationTokenResponse)
        assert (renewed.error_code, renewed.expiry_timestamp_ms >= created.expiry_timestamp_ms) == (0, True)
        none = wire.get(DescribeDelegationTokenRequest(owners=[]), version, DescribeDelegationTokenResponse)
        assert (none.error_code, none.tokens) == (0, [])
        all_ = wire.get(DescribeDelegationTokenRequest(owners=None), version, DescribeDelegationTokenResponse)
        assert created.token_id in {each.token_id for each in all_.tokens}


def test_clients_without_a_login_manage_no_tokens(node: LocalNode) -> None:
    """The second listener of the node is in plain text."""
    from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse

    settings = {**SETTINGS, "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}
    with LocalNode(settings) as plain, WireClient(plain.bootstrap_servers) as wire:
        assert wire.get(MetadataRequest(), 9, MetadataResponse).brokers
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        answer = wire.get(request, 3, CreateDelegationTokenResponse)
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert (answer.principal_name, answer.expiry_timestamp_ms) == ("ANONYMOUS", -1)


def test_without_a_secret_there_are_no_tokens() -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "delegation.token.secret.key"}
    disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    with LocalNode(settings) as node:
        alice = user(node, "alice")
        assert code_of(alice, lambda a: a.tokens.create()) is disabled
        assert code_of(alice, lambda a: a.tokens.renew(b"x")) is disabled
        assert code_of(alice, lambda a: a.tokens.expire(b"x")) is disabled
        assert code_of(alice, lambda a: a.tokens.describe()) is disabled


def test_the_hmac_is_in_no_text(node: LocalNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = create(node)
    as_client(bearer(node, token), lambda admin: admin.cluster.describe())
    answer = CreateDelegationTokenResponse(hmac=token.hmac)
    for text in (repr(token), repr(answer), repr(RenewDelegationTokenRequest(hmac=token.hmac)), caplog.text):
        assert token.password not in text
        assert repr(token.hmac) not in text
    assert "hmac=[hidden]" in repr(answer)


def test_tokens_by_the_command_line(node: LocalNode, tmp_path: Path) -> None:
    file = tmp_path / "alice.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in user(node, "alice").items()))
    ottla, config = CommandLine(node.bootstrap_servers), ("--command-config", str(file))
    created = ottla.ok("tokens", "create", "--renewer", "User:bob", "--json", *config).json
    assert created["owner"] == "User:alice"
    listed = ottla.ok("tokens", "list", "--owner", "User:alice", "--json", *config).json
    (found,) = [each for each in listed if each["token_id"] == created["token_id"]]
    assert found["renewers"] == ["User:bob"]
    assert "hmac" not in found
    assert created["token_id"] in ottla.ok("tokens", "list", *config).out
    assert created["hmac"] in ottla.ok("tokens", "list", "--hmac", *config).out
    renewed = ottla.ok("tokens", "renew", "-", "--json", *config, stdin=created["hmac"] + "\n").json
    assert renewed["expires_at_ms"] >= created["expires_at_ms"]
    assert "expired: the token ends at" in ottla.ok("tokens", "expire", created["hmac"], *config).out
    assert created["token_id"] not in ottla.ok("tokens", "list", *config).out
    assert ottla("tokens", "renew", "no base64", *config).status == 2
    assert ottla("tokens", "create", "--renewer", "bob", *config).status == 2
    failed = ottla("tokens", "renew", created["hmac"], *config)
    assert (failed.status, "no such delegation token" in failed.err) == (1, True)
