"""Our own clients on SASL listeners: they log in, again before a session ends, and explain failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ottla.client.admin.admin import Admin
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import AuthenticationFailed, ConnectionLost
from ottla.client.producer.producer import Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.names import TopicPartition
from ottla.rpc.connection import BrokerConnection
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime
from ottla.security.clients.client_security import client_security
from ottla.security.clients.settings import SecuritySettings
from ottla.testing.local_node import LocalNode
from tests.support.principals import login_settings
from tests.support.wire import CLOSED, WireClient

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
DEADLINE_SECONDS = 60
# Half of the least that is left of a session of four seconds when the client logs in again.
SHORT_PAUSE_S = 0.1


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="alice-secret";',
        "scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }
    with LocalNode(settings) as node:
        plain = login_settings(node.bootstrap_servers, "alice", "alice-secret")
        admin = AdminClient(plain)
        users = {"bob": ScramMechanism.SCRAM_SHA_256, "carol": ScramMechanism.SCRAM_SHA_512}
        for user, mechanism in users.items():
            info = ScramCredentialInfo(mechanism, 4096)
            changes = [UserScramCredentialUpsertion(user, info, f"{user}-secret".encode())]
            for done in admin.alter_user_scram_credentials(changes).values():
                done.result(DEADLINE_SECONDS)
        yield node


def with_sessions_of(lifetime_ms: int) -> LocalNode:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": f"{lifetime_ms}",
        "plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="alice-secret" user_bob="b";',
        "connection.failed.authentication.delay.ms": "0",
    }
    return LocalNode(settings)


@pytest.fixture
def forgetful_node() -> Iterator[LocalNode]:
    """A node whose sessions are short."""
    with with_sessions_of(1_200) as node:
        yield node


@pytest.fixture
def slowly_forgetful_node() -> Iterator[LocalNode]:
    """A node that serves what is sent right before a client logs in again, in the 5 to 15 % of the session
    that are left then, also on a busy machine.
    """
    with with_sessions_of(4_000) as node:
        yield node


def settings(node: LocalNode, mechanism: str, user: str, password: str) -> dict[str, str]:
    return login_settings(node.bootstrap_servers, user, password, mechanism=mechanism)


@pytest.mark.parametrize(
    ("mechanism", "user"), [("PLAIN", "alice"), ("SCRAM-SHA-256", "bob"), ("SCRAM-SHA-512", "carol")]
)
async def test_what_one_writes_another_reads(node: LocalNode, mechanism: str, user: str) -> None:
    given = settings(node, mechanism, user, f"{user}-secret")
    async with Producer(given) as producer:
        await producer.send(f"of-{user}", b"hello")
    async with Consumer(given, group_id=user, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([f"of-{user}"])
        records = await consumer.poll(timeout_ms=DEADLINE_SECONDS * 1000)
        assert [record.value for record in records] == [b"hello"]


async def test_java_settings_mean_the_same(node: LocalNode) -> None:
    given = {
        "bootstrap.servers": node.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{SCRAM_MODULE} required username="bob" password="bob-secret";',
    }
    async with Admin(given) as admin:
        assert await admin.cluster.describe()


@pytest.mark.parametrize(
    ("mechanism", "user", "password", "message"),
    [
        ("PLAIN", "alice", "wrong", "Authentication failed: Invalid username or password"),
        ("PLAIN", "bob", "bob-secret", "Authentication failed: Invalid username or password"),
        ("SCRAM-SHA-256", "bob", "wrong", "due to invalid credentials with SASL mechanism SCRAM-SHA-256"),
        ("SCRAM-SHA-256", "carol", "carol-secret", "due to invalid credentials"),
    ],
)
def test_failures_are_explained_at_once(
    node: LocalNode, mechanism: str, user: str, password: str, message: str
) -> None:
    async def run() -> None:
        async with Admin(settings(node, mechanism, user, password)):
            pass

    with pytest.raises(AuthenticationFailed, match=message) as caught:
        asyncio.run(run())
    assert password not in str(caught.value)
    assert not caught.value.retriable


def test_mechanism_that_is_not_offered(forgetful_node: LocalNode) -> None:
    async def run() -> None:
        async with Admin(settings(forgetful_node, "SCRAM-SHA-256", "bob", "bob-secret")):
            pass

    with pytest.raises(AuthenticationFailed, match=r"does not offer .* SCRAM-SHA-256; it offers: PLAIN"):
        asyncio.run(run())


@pytest.mark.slow
def test_connection_logs_in_again_before_its_session_ends(slowly_forgetful_node: LocalNode) -> None:
    """Requests that are made meanwhile wait, and no connection is lost."""

    async def run() -> bool:
        runtime = Runtime.real(guest=True)
        given = settings(slowly_forgetful_node, "PLAIN", "alice", "alice-secret")
        del given["bootstrap.servers"]
        connection = await BrokerConnection.open(
            runtime.network,
            Address("127.0.0.1", slowly_forgetful_node.port),
            client_id="c",
            timeout_ms=DEADLINE_SECONDS * 1000,
            security=client_security(runtime, SecuritySettings.of(given)),
        )
        loop = asyncio.get_running_loop()
        begun, sent = loop.time(), 0
        try:
            while loop.time() - begun < 4.8 or sent <= 100:
                asked = loop.time()
                await connection.request(
                    MetadataRequest(), MetadataResponse, timeout_ms=DEADLINE_SECONDS * 1000
                )
                sent += 1
            assert connection.is_open
            return True
        except ConnectionLost:
            # The machine stood still until the session was over.
            if loop.time() - asked < SHORT_PAUSE_S:
                raise
            return False
        finally:
            await connection.close()
            runtime.close()

    assert any(asyncio.run(run()) for _ in range(10))


ALICE = b"\0alice\0alice-secret"


def log_in(wire: WireClient, token: bytes = ALICE) -> SaslAuthenticateResponse:
    wire.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
    return wire.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)


def test_session_is_renewed_and_not_at_once_again() -> None:
    with with_sessions_of(600_000) as node, WireClient(node.bootstrap_servers) as wire:
        for _ in range(2):
            assert log_in(wire).session_lifetime_ms == 600_000
            wire.get(MetadataRequest(), 9, MetadataResponse)
        handshake = SaslHandshakeRequest(mechanism="PLAIN")
        # It is taken again when the machine has stood still for a second.
        while not (early := wire.get(handshake, 1, SaslHandshakeResponse)).error_code:
            wire.get(SaslAuthenticateRequest(auth_bytes=ALICE), 2, SaslAuthenticateResponse)
        assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE
        wire.get(MetadataRequest(), 9, MetadataResponse)


@pytest.mark.slow
def test_session_that_has_ended_is_closed_unless_it_is_renewed(forgetful_node: LocalNode) -> None:
    with (
        WireClient(forgetful_node.bootstrap_servers) as wire,
        WireClient(forgetful_node.bootstrap_servers) as other,
    ):
        for client in (wire, other):
            assert log_in(client).session_lifetime_ms == 1200
        ends = time.monotonic() + 1.2
        while time.monotonic() < ends:
            time.sleep(0.01)
        assert wire.ask(MetadataRequest(), 9) is CLOSED
        # It may still be renewed, but by the same user only.
        answer = log_in(other, b"\0bob\0b")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message is not None
        assert "Cannot change principals" in answer.error_message
        assert other.receive_frame() is None


def test_a_password_that_changes_ends_what_waits(node: LocalNode) -> None:
    """A client that must connect again and is refused says so at once, rather than try until a timeout."""

    async def run() -> None:
        given = settings(node, "SCRAM-SHA-512", "erin", "before")
        async with Admin(settings(node, "PLAIN", "alice", "alice-secret")) as admin:
            await admin.users.set_password("erin", "before")
            async with Producer(given) as producer, Consumer(given, auto_offset_reset="earliest") as consumer:
                await producer.send("of-erin", b"1")
                consumer.assign([TopicPartition("of-erin", 0)])
                while not await consumer.poll(timeout_ms=1000):
                    pass
                await admin.users.set_password("erin", "after")
                for client in (producer, consumer):
                    for channel in client._cluster._channels.values():
                        channel.abort()
                with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-512"):
                    await producer.send("of-erin", b"2")
                with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-512"):
                    await consumer.poll(timeout_ms=DEADLINE_SECONDS * 1000)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_SECONDS))
