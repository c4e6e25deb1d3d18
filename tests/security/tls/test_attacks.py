"""Clients that try to get in, to hang the node, or to make it hold memory, before they are known."""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from typing import cast

import pytest

from ottla.client.blocking import Admin
from ottla.client.errors import BootstrapFailed
from ottla.runtime import network
from ottla.runtime.network import RealNetwork
from ottla.runtime.tls import TlsConnection
from ottla.testing.local_node import LocalNode
from tests.runtime.test_network import Acceptor, Received
from tests.support import certificates
from tests.support.waiting import wait_until

DEADLINE_SECONDS = 60
LIMITS = {"max.connections.per.ip": 1000, "socket.listen.backlog.size": 1000}
OPENSSL = shutil.which("openssl")


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "_MAX_HANDSHAKES", 200)
        patch.setattr(network, "_HANDSHAKE_SECONDS", 3.0)
        with LocalNode(LIMITS, security="SSL") as node:
            yield node


def is_serving(node: LocalNode) -> bool:
    try:
        with Admin({"bootstrap.servers": node.bootstrap_servers, **node.client_settings}) as admin:
            return admin.topics.list() == []
    except BootstrapFailed:
        return False


def ended(connection: socket.socket) -> bool:
    """Whether the node has closed the connection; the rest of what it sent is dropped."""
    connection.settimeout(DEADLINE_SECONDS)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.slow
def test_half_open_handshakes_are_given_up_and_give_their_places_back(node: LocalNode) -> None:
    hello = client_hello()
    with ExitStack() as stack:
        silent = []
        for number in range(500):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
            if number % 2:
                connection.sendall(hello[: 1 + number % len(hello)])
            silent.append(connection)
        # The oldest ones are given up, the client's too while most of them are still on their way.
        wait_until(lambda: is_serving(node), "the node does not serve")
        assert all(ended(connection) for connection in silent)
    # More connections than one address may have: each place came back.
    for _ in range(3):
        with ExitStack() as stack:
            for _ in range(400):
                stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
    wait_until(lambda: is_serving(node), "the node does not serve")


def test_bytes_that_are_no_tls_get_no_answer_and_do_no_harm(node: LocalNode) -> None:
    hello, chance = client_hello(), random.Random(7)
    attempts = [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x10" + bytes(16),
        b"\x16\x03\x01\xff\xff" + bytes(70000),
    ]
    for _ in range(60):
        broken = bytearray(hello)
        for _ in range(chance.randrange(1, 8)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        attempts += [bytes(broken), chance.randbytes(chance.randrange(1, 3000))]
    for data in attempts:
        with socket.create_connection(("127.0.0.1", node.port)) as connection:
            connection.settimeout(DEADLINE_SECONDS)
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                continue
            assert ended(connection), data[:40]
    assert is_serving(node)


def test_old_versions_of_tls_are_refused(node: LocalNode) -> None:
    context = ssl.create_default_context(cafile=str(node.security.directory / "ca.crt"))
    context.load_cert_chain(node.security.directory / "client.pem")
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", node.port)) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.slow
@pytest.mark.skipif(OPENSSL is None, reason="there is no openssl")
def test_a_client_cannot_renegotiate(node: LocalNode) -> None:
    assert OPENSSL is not None
    directory = node.security.directory
    files = ["-CAfile", directory / "ca.crt", "-cert", directory / "client.pem"]
    done = subprocess.run(
        [OPENSSL, "s_client", "-tls1_2", "-connect", node.bootstrap_servers, *map(str, files)],
        input="R\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert "RENEGOTIATING" in done.stdout + done.stderr
    assert "no renegotiation" in done.stderr
    assert is_serving(node)


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


class Sender(Received):
    """Sends much at once, and closes once that has gone out."""

    def __init__(self, made: asyncio.Future[Sender], data: bytes) -> None:
        self.made, self.data = made, data
        self.paused = False
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(1024 * 1024, 256 * 1024)
        self.transport.writelines([self.data[:10], memoryview(self.data)[10:]])
        self.made.set_result(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        raise AssertionError("nothing was sent")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


async def test_what_a_client_does_not_read_is_encrypted_later_and_counted_all_the_time() -> None:
    data = random.Random(1).randbytes(30 * 1024 * 1024)
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Sender] = loop.create_future()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    from ottla.runtime.key_files import load_certificate_chain

    issued = certificates.server_certificate()
    load_certificate_chain(server, (issued.key_pem() + issued.chain_pem()).encode())
    client = ssl.create_default_context(cadata=certificates.authority().certificate_pem())
    listener = await RealNetwork().listen(lambda: Sender(made, data), "127.0.0.1", 0, tls=Acceptor(server))

    def read(connection: ssl.SSLSocket) -> bytes:
        found = bytearray()
        while part := connection.recv(1024 * 1024):
            found += part
        return bytes(found)

    def connect() -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", listener.port), DEADLINE_SECONDS)
        return client.wrap_socket(plain, server_hostname="localhost")

    connection = await asyncio.to_thread(connect)
    sender = await made
    transport = sender.transport
    assert isinstance(transport, TlsConnection)
    assert sender.paused
    # The system has taken a part; of the rest, little is encrypted, and all is counted.
    held = transport.get_write_buffer_size()
    assert 15 * 1024 * 1024 < held <= len(data)
    assert held - transport._backlog_bytes < 1024 * 1024
    assert await asyncio.to_thread(read, connection) == data
    assert await sender.lost is None
    connection.close()
    await listener.close()
