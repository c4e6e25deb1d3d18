"""Our own clients with OAUTHBEARER: where their tokens come from, and what they say if there is none."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.errors import AuthenticationFailed
from ottla.client.producer.producer import Producer
from ottla.protocol.errors import KafkaError
from ottla.runtime.random import SeededRandom
from ottla.security.oauth.jwks import is_verified, parse_jwks
from ottla.security.oauth.jws import parse_token
from ottla.security.oauth.token_source import (
    ClientToken,
    RefreshingTokens,
    RefreshSettings,
    TokenUnavailable,
    parsed_token,
)
from ottla.security.secret import Secret
from ottla.testing.local_node import LocalNode
from tests.security.test_oauthbearer import MODULE, node_settings
from tests.support.tokens import Issuer, claims, http_server

DEADLINE_SECONDS = 60
SECRET = "p%ss/word+"


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer("ES256")


@pytest.fixture(scope="module")
def node(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    keys = tmp_path_factory.mktemp("keys") / "jwks.json"
    keys.write_bytes(issuer.jwks())
    with LocalNode(node_settings(keys.as_uri())) as node:
        yield node


def cluster_id(node: LocalNode, settings: dict[str, Any]) -> object:
    async def ask() -> object:
        base = {"bootstrap.servers": node.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
        async with Admin(base | {"sasl.mechanism": "OAUTHBEARER"} | settings) as admin:
            return (await admin.cluster.describe()).cluster_id

    return asyncio.run(asyncio.wait_for(ask(), DEADLINE_SECONDS))


class Asked:
    """A token server that takes one client's secret, and remembers its requests."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.forms: list[dict[str, list[str]]] = []
        self.status = 200

    def __call__(self, _path: str, form: dict[str, list[str]], headers: dict[str, str]) -> tuple[int, bytes]:
        self.forms.append(form)
        if self.status != 200:
            self.status = 200
            return 503, b""
        basic = base64.b64encode(f"app:{SECRET}".encode()).decode()
        if "assertion" not in form and headers.get("Authorization") != f"Basic {basic}":
            return 401, b'{"error": "invalid_client", "error_description": "no such client"}'
        return 200, json.dumps({"access_token": self.issuer.token(), "expires_in": 3600}).encode()


JAVA = {
    "sasl.jaas.config": f"{MODULE} required;",
    "sasl.login.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    ),
    "sasl.oauthbearer.client.credentials.client.id": "app",
    "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    "sasl.oauthbearer.scope": "kafka",
}
JAAS = {
    "sasl.jaas.config": (
        f'{MODULE} required clientId="app" clientSecret="{SECRET}" scope="kafka" extension_traceId="7";'
    )
}
LIBRDKAFKA = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "app",
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.scope": "kafka",
    "sasl.oauthbearer.extensions": "traceId=7",
}


@pytest.mark.parametrize("settings", [JAVA, JAAS, LIBRDKAFKA], ids=["java", "jaas", "librdkafka"])
def test_tokens_come_from_a_token_server(node: LocalNode, issuer: Issuer, settings: dict[str, str]) -> None:
    asked = Asked(issuer)
    asked.status = 503
    with http_server(asked) as url:
        assert cluster_id(node, settings | {"sasl.oauthbearer.token.endpoint.url": f"{url}/token"})
    assert asked.forms[-1] == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert len(asked.forms) == 2


def test_tokens_come_for_an_assertion(node: LocalNode, issuer: Issuer, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    own, asked = Issuer(key_id=None), Asked(issuer)
    key = tmp_path / "key.pem"
    key.write_bytes(
        own.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"phrase"))
    )
    with http_server(asked) as url:
        settings = {
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.jwt.retriever.class": (
                "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
            ),
            "sasl.oauthbearer.assertion.private.key.file": str(key),
            "sasl.oauthbearer.assertion.private.key.passphrase": "phrase",
            "sasl.oauthbearer.assertion.claim.iss": "app",
            "sasl.oauthbearer.assertion.claim.jti.include": True,
        }
        assert cluster_id(node, settings)
        with pytest.raises(AuthenticationFailed, match="passphrase is wrong"):
            cluster_id(node, settings | {"sasl.oauthbearer.assertion.private.key.passphrase": "other"})
    assertion = parse_token(asked.forms[0]["assertion"][0])
    assert is_verified(assertion, list(parse_jwks(own.jwks()).keys))
    assert assertion.payload["iss"] == "app"
    assert assertion.payload["exp"] - assertion.payload["iat"] == 300
    assert asked.forms[0]["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]


def test_tokens_come_from_a_file(node: LocalNode, issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    settings = {"sasl.oauthbearer.token.endpoint.url": file.as_uri()}
    with pytest.raises(AuthenticationFailed, match="cannot be read"):
        cluster_id(node, settings)
    file.write_text(issuer.token() + "\n")
    assert cluster_id(node, settings)


def test_tokens_come_from_a_function(node: LocalNode, issuer: Issuer) -> None:
    def blocking(config: str) -> tuple[str, float]:
        assert config == "for the function"
        return issuer.token(), time.time() + 300

    async def waiting(_config: str) -> tuple[str, float, str, dict[str, str]]:
        return issuer.token(), time.time() + 300, "alice", {"traceId": "7"}

    def failing(_config: str) -> str:
        raise LookupError("the vault is closed")

    callbacks: list[Callable[[str], Any]] = [blocking, waiting]
    for callback in callbacks:
        assert cluster_id(node, {"oauth_cb": callback, "sasl.oauthbearer.config": "for the function"})
    with pytest.raises(AuthenticationFailed, match="the vault is closed"):
        cluster_id(node, {"oauth_cb": failing})


def test_what_failed_is_said_without_secrets(
    node: LocalNode, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with http_server(Asked(issuer)) as url:
        settings = JAVA | {
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.client.credentials.client.secret": "wrong-secret",
        }
        with pytest.raises(AuthenticationFailed, match=r"401 \(invalid_client: no such client\)") as failed:
            cluster_id(node, settings)
    assert "wrong-secret" not in str(failed.value) + caplog.text
    bad = Issuer().token()
    with pytest.raises(AuthenticationFailed, match="invalid_token") as failed:
        cluster_id(node, {"oauth_cb": lambda _: bad})
    assert bad[:30] not in str(failed.value) + caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "OAUTHBEARER has no token"),
        ({"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1"}, r"client\.id is missing"),
        ({"sasl.oauthbearer.token.endpoint.url": "gopher://x"}, "no URL of a supported"),
        ({"oauth_cb": 7}, "oauth_cb is not a function"),
    ],
)
def test_settings_without_a_token_are_refused(settings: dict[str, Any], message: str) -> None:
    base = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(ValueError, match=message):
        asyncio.run(_open(base | {"sasl.mechanism": "OAUTHBEARER"} | settings))


async def _open(settings: dict[str, Any]) -> None:
    async with Admin(settings):
        pass


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_session_goes_on_with_the_next_token(node: LocalNode, issuer: Issuer) -> None:
    """A producer works for longer than its first token is valid."""
    given: list[float] = []

    def token(_config: str) -> tuple[str, float]:
        given.append(time.time())
        expires = int(time.time()) + 3
        return issuer.token(claims(exp=expires)), expires

    async def produce() -> None:
        settings = {
            "bootstrap.servers": node.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": token,
        }
        async with Producer(settings) as producer:
            while len(given) < 3:
                await producer.send("renewed", b"x")
                await producer.flush()
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(produce(), DEADLINE_SECONDS))


class StoppedClock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


def test_a_client_waits_for_a_token_server_that_is_away(node: LocalNode, issuer: Issuer) -> None:
    """It connects again and again, and gives up when its own time is over."""
    answers = [503] * 4

    def answer(_path: str, _form: dict[str, list[str]], _headers: dict[str, str]) -> tuple[int, bytes]:
        if answers:
            return answers.pop(), b""
        return 200, json.dumps({"access_token": issuer.token()}).encode()

    with http_server(answer) as url:
        settings = JAVA | {"sasl.login.retry.backoff.ms": "1", "sasl.login.retry.backoff.max.ms": "1"}
        settings["sasl.oauthbearer.token.endpoint.url"] = url

        async def produce() -> None:
            base = {"bootstrap.servers": node.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
            async with Producer(base | {"sasl.mechanism": "OAUTHBEARER"} | settings) as producer:
                await producer.send("late", b"x")
                await producer.flush()

        with pytest.raises(KafkaError, match="status 503") as failed:
            cluster_id(node, settings)
        assert not isinstance(failed.value, AuthenticationFailed)
        answers.clear()
        asyncio.run(asyncio.wait_for(produce(), DEADLINE_SECONDS))


async def test_a_token_is_kept_for_most_of_its_life() -> None:
    clock, fetched, fails = StoppedClock(), [0], [False]

    async def fetch() -> ClientToken:
        if fails[0]:
            raise TokenUnavailable("the server is gone")
        fetched[0] += 1
        return ClientToken(Secret(f"t{fetched[0]}"), clock.now_ms, clock.now_ms + 3_600_000)

    tokens = RefreshingTokens(fetch, clock, SeededRandom(1), RefreshSettings())
    both = await asyncio.gather(tokens.token(), tokens.token())
    assert [each.value.reveal() for each in both] == ["t1", "t1"]
    clock.now_ms += 2_800_000
    assert (await tokens.token()).value.reveal() == "t1"
    clock.now_ms += 300_000
    assert (await tokens.token()).value.reveal() == "t2"
    clock.now_ms += 3_500_000
    fails[0] = True
    assert (await tokens.token()).value.reveal() == "t2"
    clock.now_ms += 200_000
    with pytest.raises(TokenUnavailable):
        await tokens.token()


def test_what_is_no_token_is_not_sent() -> None:
    for text in ("", " ", "a\x01b", "two words", "é"):
        with pytest.raises(TokenUnavailable):
            parsed_token(text)
