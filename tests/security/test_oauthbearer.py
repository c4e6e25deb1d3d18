"""A listener with OAUTHBEARER, and the clients that log in there with tokens."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from kafka import KafkaProducer
from ottla.client.producer.producer import Producer as OurProducer
from ottla.node.config.errors import NodeFailed
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.runtime.http import HttpError
from ottla.runtime.runtime import Runtime
from ottla.security.oauth.jwks import JwksError
from ottla.security.oauth.key_source import UrlKeySource
from ottla.testing.local_node import LocalNode
from tests.support.certificates import server_certificate, server_settings, write_ca, write_pem
from tests.support.tokens import AUDIENCE, ISSUER, Issuer, claims, compact, http_server
from tests.support.wire import CLOSED, WireClient

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PREFIX = "listener.name.sasl_plaintext.oauthbearer."
DEADLINE_SECONDS = 60


def node_settings(jwks_url: str, **more: str | int) -> dict[str, str | int]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{PREFIX}sasl.jaas.config": f"{MODULE} required ;",
        f"{PREFIX}sasl.server.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": jwks_url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": f"{AUDIENCE},other",
        "connection.failed.authentication.delay.ms": 20,
        **more,
    }


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def node(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    keys = tmp_path_factory.mktemp("keys") / "jwks.json"
    keys.write_bytes(issuer.jwks())
    with LocalNode(node_settings(keys.as_uri())) as node:
        yield node


def librdkafka(node: LocalNode, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


class Login:
    """A login by hand."""

    opened: ClassVar[list[WireClient]] = []

    def __init__(self, bootstrap_servers: str) -> None:
        self.wire = WireClient(bootstrap_servers)
        self.opened.append(self.wire)
        handshake = SaslHandshakeRequest(mechanism="OAUTHBEARER")
        assert self.wire.get(handshake, 1, SaslHandshakeResponse).error_code == 0

    def send(self, token: bytes) -> SaslAuthenticateResponse:
        request = SaslAuthenticateRequest(auth_bytes=token)
        return self.wire.get(request, 2, SaslAuthenticateResponse)

    def bearer(self, token: str, authzid: str = "", extensions: str = "") -> SaslAuthenticateResponse:
        return self.send(f"n,{authzid},\x01auth=Bearer {token}{extensions}\x01\x01".encode())


@pytest.fixture(autouse=True)
def _closed_logins() -> Iterator[None]:
    yield
    while Login.opened:
        Login.opened.pop().close()


@pytest.mark.slow
def test_librdkafka_logs_in_with_a_callback(node: LocalNode, issuer: Issuer) -> None:
    def token(_config: str) -> tuple[str, float, str, dict[str, str]]:
        return issuer.token(), time.time() + 300, "", {"traceId": "7"}

    settings = librdkafka(node) | {"oauth_cb": token}
    producer = Producer(settings)
    producer.produce("tokens", b"hello")
    assert producer.flush(DEADLINE_SECONDS) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["tokens"])
    message = consumer.poll(DEADLINE_SECONDS)
    consumer.close()
    assert message is not None
    assert message.value() == b"hello"


def test_librdkafka_logs_in_with_oidc(node: LocalNode, issuer: Issuer) -> None:
    asked: list[dict[str, list[str]]] = []

    def answer(_path: str, form: dict[str, list[str]], _headers: dict[str, str]) -> tuple[int, bytes]:
        asked.append(form)
        return 200, json.dumps({"access_token": issuer.token(), "expires_in": 3600}).encode()

    with http_server(answer) as url:
        settings = librdkafka(
            node,
            sasl_oauthbearer_method="oidc",
            sasl_oauthbearer_client_id="app",
            sasl_oauthbearer_client_secret="secret",
            sasl_oauthbearer_scope="kafka",
            sasl_oauthbearer_token_endpoint_url=f"{url}/token",
        )
        assert AdminClient(settings).list_topics(timeout=DEADLINE_SECONDS).brokers
    assert asked[0]["grant_type"] == ["client_credentials"]


def test_kafka_python_logs_in(node: LocalNode, issuer: Issuer) -> None:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return issuer.token()

    producer = KafkaProducer(
        bootstrap_servers=node.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Tokens(),
    )
    producer.send("tokens", b"hello").get(DEADLINE_SECONDS)
    producer.close()


def test_aiokafka_logs_in(node: LocalNode, issuer: Issuer) -> None:
    class Tokens(AioTokenProvider):
        async def token(self) -> str:
            return issuer.token()

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=node.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Tokens(),
        )
        async with producer:
            await producer.send_and_wait("tokens", b"hello")

    asyncio.run(asyncio.wait_for(produce(), DEADLINE_SECONDS))


@pytest.mark.slow
def test_a_session_ends_with_its_token(node: LocalNode, issuer: Issuer) -> None:
    login = Login(node.bootstrap_servers)
    answer = login.bearer(issuer.token(claims(exp=int(time.time()) + 600)))
    assert answer.error_code == 0
    assert 590_000 < answer.session_lifetime_ms <= 600_000
    login = Login(node.bootstrap_servers)
    assert login.bearer(issuer.token(claims(exp=int(time.time()) + 2))).error_code == 0
    deadline = time.monotonic() + DEADLINE_SECONDS
    while login.wire.ask(MetadataRequest(), 9) is not CLOSED:
        assert time.monotonic() < deadline
        time.sleep(0.1)


BAD = {
    "none": lambda issuer: compact({"alg": "none"}, claims()),
    "another key": lambda issuer: Issuer().token(),
    "expired": lambda issuer: issuer.token(claims(exp=int(time.time()) - 60)),
    "another cluster": lambda issuer: issuer.token(claims(aud="another")),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_token_is_answered_as_kafka_answers(node: LocalNode, issuer: Issuer, name: str) -> None:
    login = Login(node.bootstrap_servers)
    answer = login.bearer(BAD[name](issuer))
    assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
    assert login.wire.ask(MetadataRequest(), 9) is CLOSED
    login = Login(node.bootstrap_servers)
    login.bearer(BAD[name](issuer))
    answer = login.send(b"\x01")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == '{"status":"invalid_token"}'


@pytest.mark.slow
def test_librdkafka_is_told_that_its_token_is_invalid(node: LocalNode) -> None:
    errors: list[KafkaError] = []
    settings = librdkafka(node) | {"oauth_cb": lambda _: (Issuer().token(), time.time() + 300)}
    producer = Producer(settings, error_cb=errors.append)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "invalid_token" in str(errors[0])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01host=a\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01x=\xff\xfe\x01\x01",
        b"n,a=" + b"=" * 1000 + b",\x01auth=Bearer a\x01\x01",
        b"n," * 100_000,
    ],
)
def test_what_is_no_message_of_the_mechanism_fails_without_a_reason(node: LocalNode, message: bytes) -> None:
    answer = Login(node.bootstrap_servers).send(message)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        "OAUTHBEARER"
    )


def test_an_authorization_id_must_be_that_of_the_token(node: LocalNode, issuer: Issuer) -> None:
    assert Login(node.bootstrap_servers).bearer(issuer.token(), "a=alice", "\x01x=y z").error_code == 0
    answer = Login(node.bootstrap_servers).bearer(issuer.token(), "a=admin")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        "Authentication failed: Client requested an authorization id (admin) that is different from "
        "the token's principal name (alice)"
    )


@pytest.mark.slow
def test_keys_behind_a_url_are_exchanged_while_the_node_runs() -> None:
    old, new = Issuer(key_id="old"), Issuer("ES256", key_id="new")
    served, asked = [old], []

    def answer(path: str, _form: dict[str, list[str]], _headers: dict[str, str]) -> tuple[int, bytes]:
        asked.append(path)
        if not served:
            return 503, b""
        return 200, json.dumps({"keys": [each.jwk() for each in served]}).encode()

    def wait_for(node: LocalNode, issuer: Issuer) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while Login(node.bootstrap_servers).bearer(issuer.token()).auth_bytes:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    more = {"sasl.oauthbearer.jwks.endpoint.refresh.ms": 2_000}
    with http_server(answer) as url, LocalNode(node_settings(f"{url}/keys") | more) as node:
        wait_for(node, old)
        # Made-up key ids ask the server once.
        begin, before = time.monotonic(), len(asked)
        for number in range(20):
            assert Login(node.bootstrap_servers).bearer(old.token(kid=f"made-up-{number}")).auth_bytes
        assert len(asked) - before <= 2 + (time.monotonic() - begin) / 2
        served[:] = []
        wait_for(node, old)
        served[:] = [new]
        wait_for(node, new)
        assert Login(node.bootstrap_servers).bearer(old.token()).auth_bytes
        assert set(asked) == {"/keys"}


@pytest.mark.parametrize(("status", "body"), [(403, b""), (200, b"no keys")])
async def test_messages_do_not_show_what_is_secret_in_the_address_of_keys(status: int, body: bytes) -> None:
    runtime = Runtime.real(guest=True)
    with closing(runtime), http_server(lambda *_: (status, body)) as url:
        secret = url.replace("://", "://name:sesame@") + "/keys?api_key=sesame"
        source = UrlKeySource(
            secret, runtime.pool, runtime.clock, refresh_ms=1, backoff_ms=1, max_backoff_ms=1
        )
        with pytest.raises((HttpError, JwksError)) as failed:
            source._fetch()
        assert f"{url}/keys" in str(failed.value)
        for shown in (str(failed.value), source.name, repr(source._request)):
            assert "sesame" not in shown


def test_changed_files_of_keys_are_read_again(tmp_path: Path) -> None:
    old, new = Issuer(), Issuer()
    keys = tmp_path / "keys.json"
    keys.write_bytes(old.jwks())
    with LocalNode(node_settings(f"file:{keys}")) as node:
        assert not Login(node.bootstrap_servers).bearer(old.token()).auth_bytes
        keys.write_bytes(b"no keys")
        assert not Login(node.bootstrap_servers).bearer(old.token()).auth_bytes
        keys.write_bytes(new.jwks())
        deadline = time.monotonic() + DEADLINE_SECONDS
        while Login(node.bootstrap_servers).bearer(new.token()).auth_bytes:
            assert time.monotonic() < deadline
        assert Login(node.bootstrap_servers).bearer(old.token()).auth_bytes


def test_unsecured_tokens_only_where_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = node_settings("")
    del settings["sasl.oauthbearer.jwks.endpoint.url"]
    with pytest.raises(NodeFailed, match=r"jwks\.endpoint\.url is required"), LocalNode(settings):
        pass
    del settings[f"{PREFIX}sasl.server.callback.handler.class"]
    with pytest.raises(NodeFailed, match=r"jwks\.endpoint\.url is missing"), LocalNode(settings):
        pass
    settings[f"{PREFIX}sasl.jaas.config"] = f'{MODULE} required unsecuredValidatorRequiredScope="kafka";'
    with LocalNode(settings) as node:
        assert "every client may say that it is anyone" in caplog.text
        token = compact({"alg": "none"}, claims(scope=["kafka"]))
        assert not Login(node.bootstrap_servers).bearer(token).auth_bytes
        token = compact({"alg": "none"}, claims(scope=["other"]))
        answer = Login(node.bootstrap_servers).bearer(token)
        assert answer.auth_bytes == b'{"status":"insufficient_scope", "scope":"[kafka]"}'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://example/keys"}, "no URL of a supported"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:/nowhere/jwks"}, "/nowhere/jwks cannot be read"),
        ({f"{PREFIX}sasl.oauthbearer.jwt.validator.class": "com.example.Own"}, "com.example.Own is not supp"),
        ({f"{PREFIX}sasl.server.callback.handler.class": "com.example.Own"}, "com.example.Own is not supp"),
    ],
)
def test_a_listener_that_cannot_verify_tokens_is_refused(changes: dict[str, str], message: str) -> None:
    settings = node_settings("file:/nowhere/jwks") | changes
    with pytest.raises(NodeFailed, match=message), LocalNode(settings):
        pass


def test_addresses_may_be_restricted(issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(issuer.jwks())
    monkeypatch.setenv("OTTLA_SASL_OAUTHBEARER_ALLOWED_URLS", "https://issuer.example/keys")
    with pytest.raises(NodeFailed, match="due to restrictions"), LocalNode(node_settings(keys.as_uri())):
        pass


def test_keys_come_by_https_from_a_server_that_is_trusted(issuer: Issuer, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write_pem(tmp_path, "server", server_certificate()))
    asked: list[str] = []

    def answer(path: str, _form: dict[str, list[str]], _headers: dict[str, str]) -> tuple[int, bytes]:
        asked.append(path)
        return 200, issuer.jwks()

    with http_server(answer, context) as url:
        settings = node_settings(f"{url}/keys")
        with LocalNode(settings) as node:
            assert Login(node.bootstrap_servers).bearer(issuer.token()).auth_bytes
            assert asked == []
        options = f'ssl.truststore.type="PEM" ssl.truststore.location="{write_ca(tmp_path)}"'
        settings[f"{PREFIX}sasl.jaas.config"] = f"{MODULE} required {options};"
        with LocalNode(settings) as node:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while Login(node.bootstrap_servers).bearer(issuer.token()).auth_bytes:
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_the_default_mechanism_is_named() -> None:
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"}
    with pytest.raises(NodeFailed, match=r"enabled\.mechanisms is not set, and its default is GSSAPI"):
        LocalNode(settings).start()


@pytest.mark.slow
def test_tokens_over_tls(issuer: Issuer, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(issuer.jwks())
    settings = {
        **{
            name.replace("sasl_plaintext", "sasl_ssl"): value
            for name, value in node_settings(keys.as_uri()).items()
        },
        **server_settings(tmp_path, "SASL_SSL"),
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": (tmp_path / "node-token").as_uri(),
    }
    (tmp_path / "node-token").write_text(issuer.token(claims(sub="node")))
    with LocalNode(settings) as node:
        client = librdkafka(node, ssl_ca_location=write_ca(tmp_path)) | {
            "security.protocol": "SASL_SSL",
            "oauth_cb": lambda _: (issuer.token(), time.time() + 300),
        }
        assert AdminClient(client).list_topics(timeout=DEADLINE_SECONDS).brokers

        async def produce() -> None:
            ours = {**client, "sasl.mechanism": "OAUTHBEARER"}
            del ours["sasl.mechanisms"]
            async with OurProducer(ours) as producer:
                await producer.send("over-tls", b"hello")
                await producer.flush()

        asyncio.run(asyncio.wait_for(produce(), DEADLINE_SECONDS))
