"""Tokens of OAuth, delegation tokens and Kerberos beside Apache Kafka: the same logins and requests get the
same answers, and Kafka's own tools and clients do with Ottla what they do with Kafka.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from ottla.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.schema import Request
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode
from tests.security.test_tokens import BAD_TOKENS, RS
from tests.support import java, java_startup
from tests.support.apache_kafka import ApacheKafka
from tests.support.certificates import server_settings, write_ca
from tests.support.kdc import KERBEROS_SKIP, REALM, missing_requirement, running_kdc
from tests.support.principals import client_of, sasl_settings
from tests.support.tokens import AUDIENCE, ISSUER, claims, compact
from tests.support.waiting import wait_until
from tests.support.wire import CLOSED, WireClient

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

OAUTH = "org.apache.kafka.common.security.oauthbearer"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
TOPICS = "org.apache.kafka.tools.TopicCommand"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
USERS = ("alice", "bob", "carol")
MASKS = [
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d"), "TIME"),
    (re.compile(r"\S{22}\s+\S{88}"), "ID HMAC"),
    (re.compile(r"tokenId : \S{22}"), "tokenId : ID"),
]


@dataclass(frozen=True, slots=True)
class Both:
    """The listeners for users of Apache Kafka and of Ottla."""

    kafka: str
    ottla: str


def settings_of(listener: str, jwks_url: str) -> dict[str, str]:
    prefix = f"listener.name.{listener}"
    return {
        **sasl_settings(USERS, listener),
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER,SCRAM-SHA-256",
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
        f"{prefix}.oauthbearer.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        f"{prefix}.oauthbearer.sasl.server.callback.handler.class": (
            f"{OAUTH}.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": jwks_url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": f"{AUDIENCE},another",
        "delegation.token.secret.key": "the-secret-of-all-nodes",
        "connection.failed.authentication.delay.ms": "10",
    }


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    directory = tmp_path_factory.mktemp("tokens")
    keys = directory / "jwks.json"
    keys.write_bytes(RS.jwks())
    url = f"file:{keys}"
    port, plain, controller = free_ports(3)
    properties = {
        **settings_of("users", url),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "listeners": (
            f"PLAINTEXT://127.0.0.1:{plain},USERS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"
        ),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},USERS://127.0.0.1:{port}",
    }
    jvm = (*java.LIGHT_JVM, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}")
    kafka = ApacheKafka(directory / "kafka", properties=properties, jvm=jvm)
    (directory / "kafka").mkdir()
    kafka.port, kafka.controller_port = plain, controller
    own = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"}
    with kafka, LocalNode({**settings_of("sasl_plaintext", url), **own}) as node:
        yield Both(f"127.0.0.1:{port}", node.bootstrap_servers)


Answers = list[tuple[int, str | None, bytes]]


def login(address: str, tokens: Sequence[bytes]) -> Answers:
    """What is answered to the tokens of one exchange."""
    answers: Answers = []
    with WireClient(address) as wire:
        wire.get(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1, SaslHandshakeResponse)
        for token in tokens:
            answer = wire.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
            if answer is CLOSED:
                answers.append((-1, "closed", b""))
                break
            assert isinstance(answer, SaslAuthenticateResponse)
            answers.append((answer.error_code, answer.error_message, bytes(answer.auth_bytes)))
            if answer.error_code:
                break
    return answers


def bearer(token: str, authzid: str = "", more: str = "") -> bytes:
    return f"n,{authzid},\x01auth=Bearer {token}{more}\x01\x01".encode()


def test_logins_with_tokens_get_the_same_answers(both: Both) -> None:
    now = int(time.time())
    # Padding is no base64url, though Kafka takes it; the others are too much for Java.
    left_out = {"padding", "claims that are nested deeply", "huge"}
    tokens = {name: token for name, token in BAD_TOKENS.items() if name not in left_out}
    exchanges: dict[str, tuple[bytes, ...]] = {
        **{name: (bearer(token), b"\x01") for name, token in tokens.items()},
        "good": (bearer(RS.token()),),
        "good, with a list of audiences": (bearer(RS.token(claims(aud=["x", AUDIENCE]))),),
        "good, with a fraction": (bearer(RS.token(claims(exp=now + 600.5))),),
        "good, after a bad one": (bearer("a.b.c"), bearer(RS.token())),
        "good, expired within the skew": (bearer(RS.token(claims(iat=now - 60, exp=now - 5))),),
        "issued in the future": (bearer(RS.token(claims(iat=now + 300))),),
        "extensions": (bearer(RS.token(), more="\x01traceId=7\x01other=a b"),),
        "its own name": (bearer(RS.token(), "a=alice"),),
        "another name": (bearer(RS.token(), "a=admin"),),
        "confirmed without an error": (b"\x01",),
        "no auth": (b"n,,\x01x=y\x01\x01",),
        "channel binding": (b"p=tls-unique,,\x01auth=Bearer a\x01\x01",),
        "no end": (b"n,,\x01auth=Bearer a\x01",),
        "no message": (b"\xff\xfe",),
        "unsecured": (bearer(compact({"alg": "none"}, claims())), b"\x01"),
    }
    # Each refusal takes Kafka a third of a second.
    with ThreadPoolExecutor(16) as pool:
        expected, found = (
            dict(zip(exchanges, pool.map(partial(login, address), exchanges.values()), strict=True))
            for address in (both.kafka, both.ottla)
        )
    assert found == expected


def shown(answer: object) -> Any:
    """An answer without what differs from run to run."""
    if answer is CLOSED:
        return "closed"
    members = answer.to_dict()  # type: ignore[attr-defined]
    for name in ("issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms"):
        if members.get(name, 0) > 0:
            members[name] = "a time"
    for name in ("hmac", "token_id"):
        if members.get(name):
            members[name] = len(members[name])
    if "tokens" in members:
        members["tokens"] = sorted(
            (each["principal_name"], each["token_requester_principal_name"], str(each["renewers"]))
            for each in members["tokens"]
        )
    return members


def token_answers(address: str) -> list[Any]:
    """What users are answered who create, renew, expire and describe tokens, wrongly too."""
    answers: list[Any] = []

    def ask(user: str, request: Request, version: int) -> Any:
        with client_of(address, user) as wire:
            answer = wire.ask(request, version)
            answers.append((user, type(request).__name__, version, shown(answer)))
            return answer

    def created(user: str, version: int = 3, **fields: Any) -> bytes:
        request = CreateDelegationTokenRequest(**{"max_lifetime_ms": -1, **fields})
        answer = ask(user, request, version)
        assert isinstance(answer, CreateDelegationTokenResponse)
        if answer.token_id:
            described = DescribeDelegationTokenRequest(owners=None)
            with client_of(address, user) as wire:
                wait_until(
                    lambda: any(
                        each["token_id"] == answer.token_id
                        for each in wire.ask(described, 3).to_dict()["tokens"]  # type: ignore[union-attr]
                    ),
                    "the broker does not know of a token",
                )
        return bytes(answer.hmac)

    renewer = [CreatableRenewers(principal_type="User", principal_name="bob")]
    for version in (1, 2, 3):
        hmac = created("alice", version, renewers=renewer, max_lifetime_ms=3_600_000)
    created("alice", renewers=[CreatableRenewers(principal_type="Group", principal_name="x")])
    created("carol", owner_principal_type="User", owner_principal_name="alice")
    created("admin", owner_principal_type="User", owner_principal_name="carol")
    for user in ("alice", "bob", "carol"):
        for version in (1, 2):
            ask(user, RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=60_000), version)
            ask(user, ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=60_000), version)
    ask("alice", RenewDelegationTokenRequest(hmac=b"unknown", renew_period_ms=-1), 2)
    ask("alice", ExpireDelegationTokenRequest(hmac=b"", expiry_time_period_ms=-1), 2)
    owner = DescribeDelegationTokenOwner(principal_type="User", principal_name="carol")
    for user in ("alice", "bob", "carol", "admin"):
        for version in (1, 2, 3):
            for owners in (None, [], [owner]):
                ask(user, DescribeDelegationTokenRequest(owners=owners), version)
    ask("bob", ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=-1), 2)
    return answers


def test_delegation_tokens_get_the_same_answers(both: Both) -> None:
    expected, found = token_answers(both.kafka), token_answers(both.ottla)
    assert len(expected) == len(found)
    for theirs, ours in zip(expected, found):
        assert theirs == ours


def write(path: Path, properties: dict[str, str]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)


def test_kafkas_tool_and_clients_use_tokens(both: Both, tmp_path: Path) -> None:
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    base = {"security.protocol": "SASL_PLAINTEXT"}
    alice = write(
        tmp_path / "alice.properties",
        {
            **base,
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{plain} required username="alice" password="alice";',
        },
    )

    def tool(*args: str) -> list[str]:
        texts = []
        for address in (both.kafka, both.ottla):
            done = java.run_tool(TOKENS, "--bootstrap-server", address, "--command-config", alice, *args)
            texts.append(done.out)
        masked = []
        for text in texts:
            for pattern, mask in MASKS:
                text = pattern.sub(mask, text)
            masked.append(re.sub(r"\s+", " ", text))
        assert masked[0] == masked[1]
        return texts

    texts = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    found = re.search(r"^(\S{22})\s+(\S{88})\s", texts[1], re.MULTILINE)
    assert found is not None, texts[1]
    token_id, hmac = found[1], found[2]
    bearer_file = write(
        tmp_path / "token.properties",
        {
            **base,
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": (
                f'{SCRAM} required username="{token_id}" password="{hmac}" tokenauth="true";'
            ),
        },
    )
    java.run_tool(TOPICS, "--bootstrap-server", both.ottla, "--command-config", bearer_file, "--list")
    ours = ("--bootstrap-server", both.ottla, "--command-config", alice)
    java.run_tool(TOKENS, *ours, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    tool("--describe")  # of no owner, in both
    described = ("--describe", "--owner-principal", "User:alice")
    assert token_id in java.run_tool(TOKENS, *ours, *described).out
    java.run_tool(TOKENS, *ours, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert token_id not in java.run_tool(TOKENS, *ours, *described).out


def test_javas_client_logs_in_with_tokens_of_oauth(both: Both, tmp_path: Path) -> None:
    token = tmp_path / "token"
    url = f"file:{token}"
    config = write(
        tmp_path / "oauth.properties",
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f'{OAUTH}.OAuthBearerLoginModule required extension_traceId="7";',
            "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": url,
        },
    )
    jvm = (*java.LIGHT_JVM, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}")
    args = ("--bootstrap-server", both.ottla, "--command-config", config, "--list")
    token.write_text(RS.token())
    java.run_tool(TOPICS, *args, jvm=jvm)
    token.write_text(RS.token(claims(aud="elsewhere")))
    refused = java.run_tool(TOPICS, *args, jvm=jvm, check=False)
    assert refused.exit_code != 0
    assert '{"status":"invalid_token"}' in refused.text


@pytest.mark.parametrize(
    "protocol", ["SASL_SSL", pytest.param("SASL_PLAINTEXT", marks=pytest.mark.exhaustive)]
)
def test_javas_client_logs_in_by_kerberos(tmp_path: Path, protocol: str) -> None:
    if (missing := missing_requirement()) is not None:
        pytest.skip(f"{KERBEROS_SKIP}{missing}")
    if "jdk.security.jgss" not in java_startup.modules():
        pytest.skip(f"{KERBEROS_SKIP}this Java knows no GSSAPI")
    with running_kdc(tmp_path) as kdc, pytest.MonkeyPatch.context() as patch:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        service, alice = kdc.key_tab("kafka/localhost"), kdc.key_tab("alice")
        login = f'{KERBEROS} required useKeyTab=true storeKey=true keyTab="%s" principal="%s";'
        settings = {
            **server_settings(tmp_path),
            "listeners": f"{protocol}://localhost:0,PLAINTEXT://127.0.0.1:0",
            "security.inter.broker.protocol": "PLAINTEXT",
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "gssapi.sasl.jaas.config": login % (service, "kafka/localhost"),
        }
        config = write(
            tmp_path / "kerberos.properties",
            {
                "security.protocol": protocol,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": write_ca(tmp_path),
                "sasl.kerberos.service.name": "kafka",
                "sasl.jaas.config": login % (alice, f"alice@{REALM}"),
            },
        )
        jvm = (*java.LIGHT_JVM, f"-Djava.security.krb5.conf={kdc.directory / 'krb5.conf'}")
        with LocalNode(settings) as node:
            args = ("--bootstrap-server", f"localhost:{node.port}", "--command-config", config)
            java.run_tool(TOPICS, *args, "--create", "--topic", "by-kerberos", jvm=jvm)
            assert "by-kerberos" in java.run_tool(TOPICS, *args, "--list", jvm=jvm).out
