"""The order of a login: what a client may send when, and what it gets for everything else."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.runtime.random import SeededRandom
from ottla.security.principal import KafkaPrincipal
from ottla.security.sasl.plain import PlainServerFactory
from ottla.security.sasl.server_authenticator import (
    MAX_FRAMES,
    SaslServerAuthenticator,
    SaslSession,
    ServerMechanism,
)
from ottla.security.secret import Secret
from tests.security.sasl_exchange import Exchange, api_versions, authenticate, frame, handshake, read

ALICE = KafkaPrincipal("User", "alice")
TOKEN = b"\0alice\0secret"
INVALID = "Authentication failed: Invalid username or password"


def exchange(max_reauth_ms: int = 0, previous: SaslSession | None = None) -> Exchange:
    users = PlainServerFactory({"alice": Secret("secret"), "bob": Secret("x")}, SeededRandom(1))
    mechanisms = {"PLAIN": ServerMechanism(users, max_reauth_ms), "OTHER": ServerMechanism(users)}
    return Exchange(SaslServerAuthenticator(mechanisms, previous))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_login_in_requests(version: int) -> None:
    login = exchange()
    assert login.send(api_versions()).is_api_versions
    answer = login.handshake("PLAIN")
    assert (answer.error_code, answer.mechanisms) == (0, ["PLAIN", "OTHER"])
    done = login.authenticate(TOKEN, version)
    assert (done.error_code, done.auth_bytes, done.session_lifetime_ms) == (0, b"", 0)
    assert login.last.session == SaslSession("PLAIN", ALICE, None)


def test_login_with_bare_tokens() -> None:
    login = exchange()
    assert login.handshake("PLAIN", version=0).error_code == 0
    reply = login.send(TOKEN)
    assert reply.parts == [b"\0\0\0\0"]
    assert reply.session is not None
    assert reply.session.principal == ALICE


def test_wrong_bare_token_gets_no_answer() -> None:
    login = exchange()
    login.handshake("PLAIN", version=0)
    reply = login.send(b"\0alice\0wrong")
    assert reply.parts is None
    assert reply.failure is not None


@pytest.mark.parametrize("token", [b"\0alice\0wrong", b"\0carol\0secret", b"\0carol\0x"])
def test_unknown_user_and_wrong_password_get_the_same_answer(token: bytes) -> None:
    login = exchange()
    login.handshake("PLAIN")
    answer = login.authenticate(token)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == INVALID
    assert login.last.failure == f"PLAIN: {INVALID}"
    assert login.last.session is None


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"a\0b", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0a\0b\0c", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (
            b"bob\0alice\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"\0\xff\xfe\0\xff", INVALID),
    ],
)
def test_tokens_that_are_none(token: bytes, message: str) -> None:
    login = exchange()
    login.handshake("PLAIN")
    assert login.authenticate(token).error_message == message


def test_unknown_mechanism_gets_the_list() -> None:
    login = exchange()
    answer = login.handshake("SCRAM-SHA-256")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN", "OTHER"]
    assert login.last.failure is not None


@pytest.mark.parametrize(
    "first",
    [
        frame(ProduceRequest(), 9),
        frame(MetadataRequest(), 9),
        authenticate(TOKEN),
        b"",
        b"\0",
        b"\x60\x82\x01\x00 a GSSAPI token",
        handshake("PLAIN")[:9],
        b"\x00\x11\x00\x09\0\0\0\x07\xff\xff",
        TOKEN,
    ],
)
def test_anything_else_before_the_handshake_ends_the_connection(first: bytes) -> None:
    reply = exchange().send(first)
    assert reply.failure is not None
    assert reply.parts is None
    assert not reply.is_api_versions


def test_api_versions_come_once_and_before_the_handshake() -> None:
    login = exchange()
    assert login.send(api_versions(99)).is_api_versions
    assert login.send(api_versions(4)).is_api_versions
    assert login.send(api_versions(4)).failure is not None
    login = exchange()
    login.handshake("PLAIN")
    assert login.send(api_versions(0)).failure is not None


@pytest.mark.parametrize("second", [frame(ProduceRequest(), 9), handshake("PLAIN"), handshake("OTHER"), b"x"])
def test_anything_else_than_a_token_ends_the_connection(second: bytes) -> None:
    login = exchange()
    login.handshake("PLAIN")
    reply = login.send(second)
    assert reply.failure is not None
    assert reply.session is None


def test_a_request_in_place_of_a_token_learns_why() -> None:
    login = exchange()
    login.handshake("PLAIN")
    request = frame(InitProducerIdRequest(), 4)
    answer = read(login.send(request).parts, request, InitProducerIdResponse)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_frames_before_the_login_are_counted() -> None:
    login = exchange()
    for _ in range(MAX_FRAMES):
        assert login.send(api_versions(99)).failure is None
    assert login.send(handshake("PLAIN")).failure is not None


def test_session_has_a_lifetime() -> None:
    login = exchange(max_reauth_ms=3_000)
    login.handshake("PLAIN")
    assert login.authenticate(TOKEN).session_lifetime_ms == 3_000
    assert login.last.session == SaslSession("PLAIN", ALICE, 8_000.0)


def test_session_is_renewed() -> None:
    renewal = exchange(3_000, SaslSession("PLAIN", ALICE, 6_000.0))
    assert renewal.handshake("PLAIN").error_code == 0
    assert renewal.authenticate(TOKEN).session_lifetime_ms == 3_000
    assert renewal.last.session == SaslSession("PLAIN", ALICE, 8_000.0)


def test_renewal_keeps_the_principal_and_the_mechanism() -> None:
    session = SaslSession("PLAIN", ALICE, 6_000.0)
    renewal = exchange(3_000, session)
    renewal.handshake("PLAIN")
    answer = renewal.authenticate(b"\0bob\0x")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    renewal = exchange(3_000, session)
    assert renewal.handshake("OTHER").error_code == 0
    assert renewal.send(authenticate(TOKEN)).failure is not None
    renewal = exchange(3_000, session)
    assert renewal.send(api_versions()).failure is not None
