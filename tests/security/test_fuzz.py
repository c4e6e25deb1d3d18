"""Fuzzed bytes at a `SASL_SSL` listener: nothing gets in, nothing hangs, and others do not notice.

TLS is broken after its first message: the end of the handshake and the records behind it are changed, cut,
doubled, put into another order or mixed with records of other kinds. Inside a good TLS session, the frames of
a login are broken in the same ways. `FUZZ_SECONDS` and `FUZZ_SEED` make it longer, or repeat a run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator

import psutil
import pytest

from ottla.protocol.messages.metadata import MetadataRequest
from ottla.testing.local_node import LocalNode
from ottla.testing.security import LocalSecurity
from tests.security.sasl_exchange import api_versions, authenticate, frame, handshake
from tests.security.test_sasl_attacks import mutated, token_of

SECONDS = float(os.environ.get("FUZZ_SECONDS", "4"))
SEED = int(os.environ.get("FUZZ_SEED", "20261117"))
DEADLINE_SECONDS = 60
MAX_GROWTH_BYTES = 60 * 1024 * 1024
METADATA_ID = 4242
# Change cipher spec, alerts, a message of the handshake, a heartbeat, a record of no kind, and one too long.
STRANGE_RECORDS = (
    b"\x14\x03\x03\x00\x01\x01",
    b"\x15\x03\x03\x00\x02\x01\x00",
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"\x16\x03\x03\x00\x04\x00\x00\x00\x00",
    b"\x18\x03\x03\x00\x03\x01\x40\x00",
    b"\xff\x03\x03\x00\x01\x00",
    b"\x17\x03\x03\xff\xff" + bytes(100),
    b"\x17\x03\x03\x00\x00",
)


class TlsClient:
    """A TLS client whose records pass through our hands before they are sent."""

    def __init__(self, node: LocalNode, version: ssl.TLSVersion) -> None:
        context = ssl.create_default_context(cafile=str(node.security.directory / "ca.crt"))
        context.minimum_version = context.maximum_version = version
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self.socket = socket.create_connection(("127.0.0.1", node.port), DEADLINE_SECONDS)

    def begin_handshake(self) -> bytes:
        """Shake hands up to the client's last flight, which is returned and not sent."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                flight = self._out.read()
                if self._tls.version() == "TLSv1.2" and b"\x14\x03\x03" in flight:
                    return flight
                self.socket.sendall(flight)
                received = self.socket.recv(65536)
                assert received, "the node ended a good handshake"
                self._in.write(received)
            else:
                return self._out.read()

    def shake_hands(self) -> None:
        self.socket.sendall(self.begin_handshake())
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                try:
                    self._tls.do_handshake()
                    return
                except ssl.SSLWantReadError:
                    self._in.write(self.socket.recv(65536))

    def records(self, body: bytes) -> bytes:
        """A frame of Kafka's protocol as TLS sends it."""
        self._tls.write(struct.pack(">i", len(body)) + body)
        return self._out.read()

    def send(self, data: bytes) -> None:
        """The node may have closed the connection."""
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def answers(self) -> bytes:
        """All that the node has to say until it ends the connection, in plain text."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        return self._received(lambda _: False)

    def answers_until(self, number: int) -> bytes:
        """What the node says up to the answer to a request. The client does not end before: over TLS the node
        would end the connection at once.
        """
        return self._received(lambda found: number in correlation_ids(found))

    def _received(self, is_enough: Callable[[bytes], bool]) -> bytes:
        found = bytearray()
        while not is_enough(bytes(found)):
            try:
                received = self.socket.recv(65536)
            except ConnectionError:
                received = b""
            if not received:
                return bytes(found)
            self._in.write(received)
            with contextlib.suppress(ssl.SSLError):
                while part := self._tls.read(65536):
                    found += part
        return bytes(found)


def correlation_ids(plain: bytes) -> list[int]:
    found, at = [], 0
    while at + 8 <= len(plain):
        size, number = struct.unpack_from(">ii", plain, at)
        found.append(number)
        at += 4 + size
    return found


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    settings = {"connection.failed.authentication.delay.ms": 0}
    with LocalNode(settings, security=LocalSecurity("SASL_SSL", client_auth="none")) as node:
        yield node


def good_login(client: TlsClient, node: LocalNode) -> bytes:
    """The records of a login that succeeds, and of a request."""
    frames = (handshake("PLAIN"), authenticate(token_of(node)), frame(MetadataRequest(), 9, METADATA_ID))
    return b"".join(map(client.records, frames))


def broken_handshake(chance: random.Random, client: TlsClient, node: LocalNode) -> None:
    """The last flight of the client is another than it should be."""
    flight = client.begin_handshake()
    client.send(changed(chance, flight))
    client.send(chance.randbytes(chance.randrange(200)))


def broken_records(chance: random.Random, client: TlsClient, node: LocalNode) -> None:
    """A record is changed, cut or doubled, or two have changed places; good ones follow."""
    client.shake_hands()
    first, second = client.records(api_versions()), client.records(handshake("PLAIN"))
    client.send(
        chance.choice(
            (changed(chance, first), first[: chance.randrange(1, len(first))], first + first, second + first)
        )
    )
    client.send(good_login(client, node))


def strange_records(chance: random.Random, client: TlsClient, node: LocalNode) -> None:
    """Records of other kinds, in plain text, between those of a session."""
    client.shake_hands()
    for _ in range(chance.randint(1, 5)):
        client.send(chance.choice(STRANGE_RECORDS) + chance.randbytes(chance.choice((0, 0, 30))))
        if chance.random() < 0.5:
            client.send(client.records(api_versions()))


def broken_login(chance: random.Random, client: TlsClient, node: LocalNode) -> None:
    """In a good session, a login that is not one."""
    client.shake_hands()
    scram = b"n,,n=client,r=abcdefghijklmnop"
    frames = (
        chance.choice((api_versions(), handshake("PLAIN"), handshake("OAUTHBEARER"), b"")),
        chance.choice((handshake("PLAIN"), handshake("PLAIN", 0), handshake("SCRAM-SHA-512"))),
        chance.choice(
            (authenticate(token_of(node)[:-1]), authenticate(scram), scram, chance.randbytes(5000))
        ),
    )
    for each in frames:
        client.send(client.records(mutated(chance, each) if chance.random() < 0.7 else each))
    client.send(client.records(frame(MetadataRequest(), 9, METADATA_ID)))


def changed(chance: random.Random, data: bytes) -> bytes:
    while (found := mutated(chance, data)) == data:
        pass
    return found


def assert_serves(node: LocalNode) -> None:
    client = TlsClient(node, ssl.TLSVersion.TLSv1_3)
    with client.socket:
        client.shake_hands()
        client.send(good_login(client, node))
        assert METADATA_ID in correlation_ids(client.answers_until(METADATA_ID))


ATTACKS = (broken_handshake, broken_records, strange_records, broken_login)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_fuzzed_tls_and_logins_get_nothing(node: LocalNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    chance, done = random.Random(SEED), Counter[str]()
    assert_serves(node)
    before = psutil.Process().memory_info().rss
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline or done.total() < 100:
        attack = chance.choice(ATTACKS)
        client = TlsClient(node, chance.choice((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)))
        with client.socket:
            attack(chance, client, node)
            assert METADATA_ID not in correlation_ids(client.answers()), f"{done}, then {attack.__name__}"
        done[attack.__name__] += 1
        if done.total() % 50 == 0:
            assert_serves(node)
    assert_serves(node)
    assert set(done) == {each.__name__ for each in ATTACKS}
    grown = psutil.Process().memory_info().rss - before
    print(f"{dict(done)}, {grown / 1024 / 1024:.1f} MB more")
    assert grown < MAX_GROWTH_BYTES
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
