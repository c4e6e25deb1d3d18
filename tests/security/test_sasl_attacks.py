"""Attempts to get past a login, or to hurt a node before one: none gets in, and others are still served."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Iterator

import pytest

from ottla.client.admin.admin import Admin
from ottla.node.network import login
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.testing.local_node import LocalNode
from tests.security.sasl_exchange import api_versions, authenticate, frame, handshake
from tests.support.principals import login_settings
from tests.support.wire import CLOSED, WireClient

SECONDS = 60
HALF_OPEN = 400


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    settings = {"connection.failed.authentication.delay.ms": 0, "connections.max.idle.ms": 10_000}
    with LocalNode(settings, security="SASL_PLAINTEXT") as node:
        yield node


def token_of(node: LocalNode) -> bytes:
    return b"\0client\0" + node.security.password.encode()


def assert_serves(node: LocalNode) -> None:
    with WireClient(node.bootstrap_servers) as wire:
        wire.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
        token = SaslAuthenticateRequest(auth_bytes=token_of(node))
        assert wire.get(token, 2, SaslAuthenticateResponse).error_code == 0
        wire.get(MetadataRequest(), 9, MetadataResponse)


def mutated(source: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(source.randint(1, 4)):
        where = source.randrange(len(out)) if out else 0
        match source.randrange(4):
            case 0 if out:
                out[where] ^= 1 << source.randrange(8)
            case 1 if out:
                del out[where : where + source.randint(1, 8)]
            case 2:
                out[where:where] = source.randbytes(source.randint(1, 16))
            case _:
                out += source.randbytes(source.randint(1, 64))
    return bytes(out)


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_logins_get_nothing(node: LocalNode, seed: int) -> None:
    """After broken frames a request for metadata is never answered, unless they were a good login."""
    source = random.Random(seed)
    good = token_of(node)
    scram = b"n,,n=client,r=abcdefghijklmnop"
    for _ in range(60):
        frames = [
            source.choice([api_versions(), handshake("PLAIN"), handshake("SCRAM-SHA-256"), b""]),
            source.choice([handshake("PLAIN"), handshake("PLAIN", 0), handshake("SCRAM-SHA-512")]),
            source.choice([authenticate(good[:-1]), authenticate(scram), scram, authenticate(b"x" * 5000)]),
        ]
        with WireClient(node.bootstrap_servers) as wire:
            try:
                for each in frames:
                    wire.send_frame(mutated(source, each) if source.random() < 0.7 else each)
                wire.send_frame(frame(MetadataRequest(), 9, 4242))
            except ConnectionError:
                continue
            answered = []
            while (received := wire.receive_frame()) is not None:
                answered.append(received[:4])
            assert (4242).to_bytes(4, "big") not in answered
    assert_serves(node)


def test_frame_larger_than_a_login_needs(node: LocalNode) -> None:
    for size in (524_289, 2**31 - 1, 2**32 - 1):
        with WireClient(node.bootstrap_servers) as wire:
            wire.send_bytes(size.to_bytes(4, "big"))
            assert wire.receive_frame() is None
    assert_serves(node)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_logins_that_are_never_finished(node: LocalNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold little, do not keep others from logging in, and are closed in time."""
    monkeypatch.setattr(login, "_LOGIN_SECONDS", 3.0)
    open_ones = []
    for n in range(HALF_OPEN):
        client = socket.create_connection(("127.0.0.1", node.port), SECONDS)
        open_ones.append(client)
        request = handshake("PLAIN")
        with contextlib.suppress(ConnectionError):  # on a slow machine its time may be over
            client.sendall(len(request).to_bytes(4, "big") + request)
            if n % 2:
                client.sendall((500_000).to_bytes(4, "big") + b"the beginning of a token")
    assert_serves(node)
    deadline = time.monotonic() + SECONDS
    for client in open_ones:
        client.settimeout(max(0.1, deadline - time.monotonic()))
        data = b"."
        while data:
            try:
                data = client.recv(4096)
            except ConnectionError:
                break
        client.close()
    monkeypatch.undo()
    assert_serves(node)


def test_client_without_a_login_learns_why(node: LocalNode) -> None:
    async def run() -> None:
        async with Admin(node.bootstrap_servers, socket_connection_setup_timeout_ms=60_000) as admin:
            await admin.topics.list()

    with pytest.raises(KafkaError, match=r"expect a login\? see security\.protocol"):
        asyncio.run(run())


async def test_session_outlives_the_credential(node: LocalNode) -> None:
    """As in Kafka: the user who is removed cannot log in any more, and who has logged in stays."""
    settings = {"bootstrap.servers": node.bootstrap_servers, **node.client_settings}
    async with Admin(settings) as admin:
        await admin.users.set_password("eve", "eve-secret")
        login_of_eve = login_settings(node.bootstrap_servers, "eve", "eve-secret", mechanism="SCRAM-SHA-512")
        async with Admin(login_of_eve) as other:
            await other.topics.list()
            await admin.users.remove("eve", mechanism="SCRAM-SHA-512")
            await other.topics.list()
            with pytest.raises(KafkaError) as caught:
                async with Admin(login_of_eve):
                    pass
            assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_request_before_the_last_token_is_not_served(node: LocalNode) -> None:
    """All frames of a login at once, with a request between handshake and token."""
    with WireClient(node.bootstrap_servers) as wire:
        for each in (handshake("PLAIN"), frame(MetadataRequest(), 9), authenticate(token_of(node))):
            wire.send_frame(each)
        assert wire.receive_frame() is not None
        assert wire.receive_frame() is None
    with WireClient(node.bootstrap_servers) as wire:
        for each in (handshake("PLAIN"), authenticate(token_of(node)), frame(MetadataRequest(), 9)):
            wire.send_frame(each)
        assert [wire.receive_frame() is not None for _ in range(3)] == [True, True, True]
        assert wire.ask(MetadataRequest(), 9) is not CLOSED
