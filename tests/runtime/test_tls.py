"""TLS over a transport: how much one connection may read at once."""

from __future__ import annotations

import _ssl
import asyncio
import contextlib
import ctypes
import ssl
from pathlib import Path
from typing import cast

import pytest

from ottla.runtime.tls import TlsConnection

CERTIFICATE = Path(__file__).parent / "localhost.pem"
SENT_BYTES = 8 * 1024 * 1024
# A turn, and the buffer that was given out at its end.
MOST_BYTES = 1024 * 1024 + 256 * 1024


class Wire(asyncio.Transport):
    """A transport between two TLS sides in memory, which knows whether its reader has paused it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_paused = False
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0


class Counter(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(1024 * 1024))
        self.bytes = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes += nbytes


class Connected:
    """A server's side that has shaken hands, and the bytes that a client sends it."""

    def __init__(self, sent_bytes: int = SENT_BYTES) -> None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(CERTIFICATE)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
        self.wire, self.counter = Wire(), Counter()
        self.tls = TlsConnection(self.counter, lambda: server, lambda _error: None, is_server=True)
        self.tls.connection_made(self.wire)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(incoming, outgoing)
        while self.counter.transport is None:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            self.receive(bytearray(outgoing.read()))
            incoming.write(bytes(self.wire.written))
            self.wire.written.clear()
        self.outgoing = outgoing
        self.sent = self.data(sent_bytes)

    def data(self, size: int) -> bytearray:
        """So many bytes of data, as the client sends them."""
        if size:
            self.client.write(b"x" * size)
        return bytearray(self.outgoing.read())

    def key_update(self, *, requested: bool) -> bytearray:
        """A change of the client's keys, which may ask for one of the server's."""
        # CPython keeps OpenSSL's object behind the head of its own and the reference to a socket.
        pointer = ctypes.cast(id(self.client._sslobj) + 24, ctypes.POINTER(ctypes.c_void_p))[0]  # type: ignore[attr-defined]
        library = ctypes.CDLL(_ssl.__file__)
        try:
            update = library.SSL_key_update
        except AttributeError:
            pytest.skip("OpenSSL's functions are not reachable in this Python")
        update.argtypes = [ctypes.c_void_p, ctypes.c_int]
        assert update(pointer, int(requested)) == 1
        self.client.do_handshake()
        return bytearray(self.outgoing.read())

    def receive(self, data: bytearray) -> None:
        """Give the data to the server until it pauses reading, as an event loop does in one turn."""
        while data and not self.wire.is_paused:
            buffer = self.tls.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            del data[:size]
            self.tls.buffer_updated(size)


async def test_a_connection_gives_way_after_a_megabyte() -> None:
    it = Connected()
    turns = 0
    while it.sent:
        before = it.counter.bytes
        it.receive(it.sent)
        assert it.counter.bytes - before <= MOST_BYTES
        turns += 1
        await asyncio.sleep(0)
    assert it.counter.bytes == SENT_BYTES
    assert turns >= SENT_BYTES // MOST_BYTES


async def test_who_has_paused_reading_is_not_woken_by_the_next_turn() -> None:
    it = Connected()
    transport = it.counter.transport
    assert transport is not None
    it.receive(it.sent)
    transport.pause_reading()
    await asyncio.sleep(0)
    assert it.wire.is_paused
    assert not transport.is_reading()
    transport.resume_reading()
    assert not it.wire.is_paused
    it.receive(it.sent)
    transport.pause_reading()
    transport.resume_reading()
    assert it.wire.is_paused, "others have not had their turn"
    await asyncio.sleep(0)
    assert not it.wire.is_paused


@pytest.mark.parametrize("requested", [True, False])
async def test_a_connection_on_which_only_keys_are_changed_ends(requested: bool) -> None:
    it = Connected(0)
    it.receive(it.data(10))
    flood = bytearray().join(it.key_update(requested=requested) for _ in range(5_000))
    size = len(flood)
    while flood and not it.wire.is_closed:
        it.receive(flood)
        await asyncio.sleep(0)
    assert it.tls.ended is not None
    assert "changes the keys" in str(it.tls.ended)
    assert len(it.wire.written) < size / 6
    assert it.counter.bytes == 10


async def test_answers_to_changes_of_keys_are_bounded_also_with_data_between_them() -> None:
    it = Connected(0)
    sent = 0
    while not it.wire.is_closed:
        it.receive(it.key_update(requested=True) + it.data(1_000))
        sent += 1
        await asyncio.sleep(0)
    assert 32 < sent <= 40


async def test_a_connection_with_little_data_and_many_changes_of_keys_has_small_turns() -> None:
    it = Connected(0)
    mixed = bytearray()
    for _ in range(300):
        for _ in range(30):
            mixed += it.key_update(requested=False)
        mixed += it.data(1)
    it.receive(mixed)
    turns = 1
    while mixed:
        await asyncio.sleep(0)
        before = len(mixed)
        it.receive(mixed)
        assert before - len(mixed) <= 17 * 1024
        turns += 1
    assert turns > 5
    assert not it.wire.is_closed
    assert it.counter.bytes == 300


async def test_a_change_of_keys_now_and_then_is_answered() -> None:
    it = Connected(0)
    for _ in range(100):
        for sent in (it.key_update(requested=True), it.data(1024 * 1024)):
            while sent:
                it.receive(sent)
                await asyncio.sleep(0)
    assert it.counter.bytes == 100 * 1024 * 1024
    assert not it.wire.is_closed
    assert len(it.wire.written) >= 100 * 22
