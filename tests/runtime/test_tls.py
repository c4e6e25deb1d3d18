"""TLS over a transport: how much one connection may read at once."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import cast

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

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return False


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

    def __init__(self) -> None:
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
        self.client.write(b"x" * SENT_BYTES)
        self.sent = bytearray(outgoing.read())

    def receive(self, data: bytearray) -> None:
        """Give the data to the server until it pauses reading, as an event loop does in one turn."""
        while data and not self.wire.is_paused:
            buffer = self.tls.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            del data[:size]
            self.tls.buffer_updated(size)


def test_a_connection_gives_way_after_a_megabyte() -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_who_has_paused_reading_is_not_woken_by_the_next_turn() -> None:
    async def main() -> None:
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

    asyncio.run(main())
