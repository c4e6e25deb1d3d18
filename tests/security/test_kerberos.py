"""GSSAPI: clients and nodes that prove themselves by Kerberos, with a real KDC."""

from __future__ import annotations

import asyncio
import builtins
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from ottla.client.admin.admin import Admin
from ottla.client.errors import AuthenticationFailed
from ottla.client.producer.producer import Producer
from ottla.node.config.errors import NodeFailed
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from ottla.security.sasl.kerberos_rules import KerberosShortNamer, NoMatchingRule, parse_rules
from ottla.testing.local_node import LocalNode
from tests.support.certificates import authority, server_settings, write_ca
from tests.support.kdc import KERBEROS_SKIP, REALM, Kdc, missing_requirement, running_kdc
from tests.support.wire import WireClient

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
DEADLINE_SECONDS = 60


def short(name: str, *rules: str) -> str:
    return KerberosShortNamer(parse_rules(rules or ("DEFAULT",)), REALM).short_name(name)


def test_names_become_users_by_rules() -> None:
    assert short(f"alice@{REALM}") == "alice"
    assert short(f"kafka/host.example@{REALM}") == "kafka"
    assert short("alice") == "alice"
    assert short("alice@ELSEWHERE", "RULE:[1:$1@$0](.*@ELSEWHERE)s/@.*//", "DEFAULT") == "alice"
    assert short("App/host@X", "RULE:[2:$1-$2](App-.*)s/-/_/g/L") == "app_host"
    assert short("app@X", "RULE:[1:$1]/U") == "APP"
    assert short("svc-a-b@X", r"RULE:[1:$1]s/svc-(.*)-(.*)/$2.$1/") == "b.a"
    for name, rules in (
        ("alice@ELSEWHERE", ["DEFAULT"]),
        ("a/b@X", ["RULE:[1:$1]"]),
        ("alice@X", ["RULE:[1:$1@$0]"]),
        ("a/b/c@X", ["DEFAULT"]),
        ("a@b@c", ["DEFAULT"]),
    ):
        with pytest.raises(NoMatchingRule):
            short(name, *rules)
    for rule in ("RULE", "RULE:[1:$2]", "RULE:[:x]", "DEFAULT x", "RULE:[1:$1](*)", "RULE:[1:$1]s/(a/b/"):
        with pytest.raises(ValueError, match="Invalid rule"):
            parse_rules([rule])


def settings_of(key_tab: str, principal: str, **more: str) -> dict[str, str | int]:
    login = f'useKeyTab=true storeKey=true keyTab="{key_tab}" principal="{principal}"'
    return {
        "listeners": "SASL_PLAINTEXT://localhost:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": f"{MODULE} required {login};",
        "connection.failed.authentication.delay.ms": 20,
        **more,
    }


def test_without_the_package_a_listener_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "gssapi":
            raise ImportError("No module named 'gssapi'")
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NodeFailed, match=r"pip install 'ottla\[kerberos\]'"):
        LocalNode(settings_of("/nowhere", "kafka/localhost")).start()
    with pytest.raises(ValueError, match=r"pip install 'ottla\[kerberos\]'"):
        Admin({"bootstrap.servers": "localhost:1", "security.protocol": "SASL_PLAINTEXT"})


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    if (missing := missing_requirement()) is not None:
        pytest.skip(f"{KERBEROS_SKIP}{missing}")
    with running_kdc(tmp_path_factory.mktemp("kdc")) as kdc, pytest.MonkeyPatch.context() as patch:
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        yield kdc


@pytest.fixture(scope="module")
def service(kdc: Kdc) -> str:
    return kdc.key_tab("kafka/localhost")


@pytest.fixture(scope="module")
def node(service: str) -> Iterator[LocalNode]:
    rules = "RULE:[1:$1](adm-.*)s/adm-//,DEFAULT"
    more = {"sasl.kerberos.principal.to.local.rules": rules}
    with LocalNode(settings_of(service, "kafka/localhost", **more)) as node:
        yield node


@pytest.fixture(scope="module")
def tls_node(service: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    """A node on whose `SASL_SSL` listener Kerberos is the login, also that of the node itself."""
    settings = settings_of(service, "kafka/localhost")
    settings["listener.name.sasl_ssl.gssapi.sasl.jaas.config"] = settings.pop(
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config"
    )
    settings |= {
        **server_settings(tmp_path_factory.mktemp("tls"), "SASL_SSL"),
        "listeners": "SASL_SSL://localhost:0",
        "authorizer.class.name": CLASS_NAME,
        "super.users": "User:kafka;User:ivan",
    }
    with LocalNode(settings) as node:
        yield node


def client(node: LocalNode, key_tab: str, principal: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"localhost:{node.port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": f'{MODULE} required useKeyTab=true keyTab="{key_tab}" principal="{principal}";',
    }


def brokers(settings: dict[str, Any]) -> int:
    async def ask() -> int:
        async with Admin(settings) as admin:
            return len((await admin.cluster.describe()).brokers)

    return asyncio.run(asyncio.wait_for(ask(), DEADLINE_SECONDS))


@pytest.mark.slow
def test_our_client_logs_in_with_a_key_tab(kdc: Kdc, node: LocalNode) -> None:
    settings = client(node, kdc.key_tab("alice"), f"alice@{REALM}")
    assert brokers(settings) == 1

    async def produce() -> None:
        async with Producer(settings) as producer:
            await producer.send("kerberos", b"hello")
            await producer.flush()

    asyncio.run(asyncio.wait_for(produce(), DEADLINE_SECONDS))


@pytest.mark.slow
def test_our_client_logs_in_with_a_ticket_cache(kdc: Kdc, node: LocalNode) -> None:
    settings = client(node, "", "") | {"sasl.jaas.config": f"{MODULE} required useTicketCache=true;"}
    with pytest.raises(AuthenticationFailed, match="there is no ticket for kafka@localhost"):
        brokers(settings)
    kdc.run("kinit", "-k", "-t", kdc.key_tab("bob"), "bob")
    assert brokers(settings) == 1


@pytest.mark.slow
def test_a_service_that_is_another_is_refused(kdc: Kdc, node: LocalNode) -> None:
    kdc.key_tab("another/localhost")
    settings = client(node, kdc.key_tab("carol"), "carol") | {"sasl.kerberos.service.name": "another"}
    with pytest.raises(AuthenticationFailed):
        brokers(settings)


@pytest.mark.slow
def test_a_name_that_no_rule_maps_is_refused(kdc: Kdc, service: str) -> None:
    more = {"sasl.kerberos.principal.to.local.rules": "RULE:[1:$1](adm-.*)s/adm-//"}
    with LocalNode(settings_of(service, "kafka/localhost", **more)) as node:
        assert brokers(client(node, kdc.key_tab("adm-dave"), "adm-dave")) == 1
        with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism GSSAPI"):
            brokers(client(node, kdc.key_tab("erin"), "erin"))


@pytest.mark.slow
@pytest.mark.parametrize("token", [b"", b"\0", b"x" * 300_000, bytes(range(256))])
def test_what_is_no_token_of_kerberos_is_refused(node: LocalNode, token: bytes) -> None:
    with WireClient(f"localhost:{node.port}") as wire:
        wire.get(SaslHandshakeRequest(mechanism="GSSAPI"), 1, SaslHandshakeResponse)
        answer = wire.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            "GSSAPI"
        )


@pytest.mark.slow
def test_an_exchange_cannot_be_replayed(kdc: Kdc, node: LocalNode) -> None:
    """The first token of a client, taken from the wire and sent again by another."""
    import gssapi

    key_tab = kdc.key_tab("frank")
    kdc.run("kinit", "-k", "-t", key_tab, "-c", f"FILE:{kdc.directory / 'frank'}", "frank")
    store = {"ccache": f"FILE:{kdc.directory / 'frank'}"}
    context = gssapi.SecurityContext(
        name=gssapi.Name("kafka@localhost", gssapi.NameType.hostbased_service),
        creds=gssapi.Credentials(usage="initiate", store=store),
        flags=(gssapi.RequirementFlag.mutual_authentication,),
        usage="initiate",
    )
    token = context.step(None)
    codes = []
    for _ in range(2):
        with WireClient(f"localhost:{node.port}") as wire:
            wire.get(SaslHandshakeRequest(mechanism="GSSAPI"), 1, SaslHandshakeResponse)
            answer = wire.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
            codes.append(answer.error_code)
    assert codes == [0, ErrorCode.SASL_AUTHENTICATION_FAILED]


@pytest.mark.slow
def test_a_listener_without_keys_is_refused(kdc: Kdc, tmp_path: Path) -> None:
    with pytest.raises(NodeFailed, match="there are no keys for kafka/localhost"):
        LocalNode(settings_of(str(tmp_path / "none"), "kafka/localhost")).start()
    bad = {"sasl.kerberos.principal.to.local.rules": "RULE:[x]"}
    with pytest.raises(NodeFailed, match="Invalid rule"):
        LocalNode(settings_of(str(tmp_path / "none"), "kafka/localhost", **bad)).start()


@pytest.mark.slow
def test_librdkafka_logs_in(kdc: Kdc, node: LocalNode) -> None:
    """The wheels of confluent-kafka have no GSSAPI; where one does, it must work."""
    key_tab = kdc.key_tab("grace")
    settings = {
        "bootstrap.servers": f"localhost:{node.port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": f"grace@{REALM}",
        "sasl.kerberos.keytab": key_tab,
    }
    try:
        admin = AdminClient(settings)
    except KafkaException as error:
        if "GSSAPI" not in str(error):
            raise
        pytest.skip("this confluent-kafka is built without GSSAPI")
    assert admin.list_topics(timeout=DEADLINE_SECONDS).brokers


@pytest.mark.slow
def test_kafka_python_logs_in(kdc: Kdc, node: LocalNode) -> None:
    from kafka import KafkaProducer

    kdc.run("kinit", "-k", "-t", kdc.key_tab("heidi"), "heidi")
    assert os.environ["KRB5CCNAME"]
    producer = KafkaProducer(
        bootstrap_servers=f"localhost:{node.port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name="kafka",
        sasl_kerberos_domain_name="localhost",
    )
    producer.send("kerberos", b"hello").get(DEADLINE_SECONDS)
    producer.close()


@pytest.mark.slow
def test_our_client_and_kafka_python_log_in_over_tls(kdc: Kdc, tls_node: LocalNode, tmp_path: Path) -> None:
    from kafka import KafkaProducer

    tls = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": write_ca(tmp_path),
    }
    ivan = kdc.key_tab("ivan")
    settings = client(tls_node, ivan, f"ivan@{REALM}") | tls
    assert brokers(settings) == 1

    async def produce(settings: dict[str, Any]) -> None:
        async with Producer(settings) as producer:
            await producer.send("kerberos", b"hello")
            await producer.flush()

    asyncio.run(asyncio.wait_for(produce(settings), DEADLINE_SECONDS))
    # The principal is that of the ticket: another user is let in, and may not write.
    judy = client(tls_node, kdc.key_tab("judy"), f"judy@{REALM}") | tls
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        asyncio.run(asyncio.wait_for(produce(judy), DEADLINE_SECONDS))
    kdc.run("kinit", "-k", "-t", ivan, "ivan")
    producer = KafkaProducer(
        bootstrap_servers=f"localhost:{tls_node.port}",
        security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(cadata=authority().certificate_pem()),
        sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name="kafka",
        sasl_kerberos_domain_name="localhost",
    )
    assert producer.send("kerberos", b"hello").get(DEADLINE_SECONDS).offset == 1
    producer.close()
