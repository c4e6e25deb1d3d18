"""Listening and connecting, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from ottla.runtime import loop as loops
from ottla.runtime import network, process
from ottla.runtime.address import Address
from ottla.runtime.network import HostNotFound, RealNetwork, SocketOptions, TlsHandshakeFailed

DEADLINE_MS = 60_000
CERTIFICATE = Path(__file__).parent / "localhost.pem"
HAS_IPV6_LOOPBACK = any(
    entry[0] == socket.AF_INET6 for entry in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
)


class Received(asyncio.BufferedProtocol):
    """Gives what it gets to `data_received`."""

    buffer: memoryview | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self.buffer is None:
            self.buffer = memoryview(bytearray(65536))
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self.buffer is not None
        self.data_received(bytes(self.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError


class Acceptor:
    """The TLS of a listener, and the handshakes that failed."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = lambda: context
        self.failures: asyncio.Queue[str] = asyncio.Queue()

    def on_handshake_failed(self, peer: Address, reason: str) -> None:
        self.failures.put_nowait(reason)


class Echo(Received):
    """Sends back what it gets."""

    transport: asyncio.Transport

    def __init__(self, made: asyncio.Queue[Echo] | None = None) -> None:
        self.made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.made is not None:
            self.made.put_nowait(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def eof_received(self) -> None:
        self.transport.close()


class Caller(Received):
    def __init__(self) -> None:
        self.stream = asyncio.StreamReader()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.stream.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    def runner(main: Awaitable[None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(DEADLINE_MS / 1000):
                await main

        factory = loops.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as it:
            it.run(bounded())
        gc.collect()

    return runner


async def echo(host: str, port: int, data: bytes, *, tls: ssl.SSLContext | None = None) -> bytes:
    transport, caller = await RealNetwork().connect(Caller, host, port, timeout_ms=DEADLINE_MS, tls=tls)
    transport.write(data)
    received = await caller.stream.readexactly(len(data))
    transport.close()
    await caller.lost
    return received


Run = Callable[[Awaitable[None]], None]


def test_a_connection_carries_bytes_both_ways(run: Run) -> None:
    async def main() -> None:
        listener = await RealNetwork().listen(Echo, "127.0.0.1", 0)
        assert listener.addresses == (("127.0.0.1", listener.port),)
        assert listener.port > 0
        assert await echo("127.0.0.1", listener.port, b"x" * 100_000) == b"x" * 100_000
        await listener.close()

    run(main())


def test_a_name_with_two_addresses_gets_one_port_for_both(run: Run) -> None:
    async def main() -> None:
        listener = await RealNetwork().listen(Echo, "localhost", 0)
        assert {address.port for address in listener.addresses} == {listener.port}
        for host, _ in listener.addresses:
            assert await echo(host, listener.port, b"hello") == b"hello"
        await listener.close()

    run(main())


def test_an_empty_host_is_every_interface(run: Run) -> None:
    async def main() -> None:
        listener = await RealNetwork().listen(Echo, "", 0)
        assert await echo("127.0.0.1", listener.port, b"four") == b"four"
        if HAS_IPV6_LOOPBACK:
            assert await echo("::1", listener.port, b"six") == b"six"
        await listener.close()

    run(main())


def test_a_port_in_use_is_refused_by_name_and_free_after_closing(run: Run) -> None:
    async def main() -> None:
        real = RealNetwork()
        first = await real.listen(Echo, "127.0.0.1", 0)
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{first.port}: ") as raised:
            await real.listen(Echo, "127.0.0.1", first.port)
        assert raised.value.errno == errno.EADDRINUSE
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{first.port}: ") as checked:
            await real.check_listen("127.0.0.1", first.port)
        assert checked.value.errno == errno.EADDRINUSE
        # A connection closed from the listener's side stays in TIME_WAIT on its port.
        made: asyncio.Queue[Echo] = asyncio.Queue()
        again = await real.listen(lambda: Echo(made), "127.0.0.1", 0)
        transport, caller = await real.connect(Caller, "127.0.0.1", again.port, timeout_ms=DEADLINE_MS)
        (await made.get()).transport.close()
        await caller.lost
        transport.close()
        await again.close()
        await real.check_listen("127.0.0.1", again.port)
        with pytest.raises(ConnectionRefusedError):
            await real.connect(Caller, "127.0.0.1", again.port, timeout_ms=DEADLINE_MS)
        await (await real.listen(Echo, "127.0.0.1", again.port)).close()
        await first.close()

    run(main())


def test_closing_stops_accepting_and_leaves_connections_alone(run: Run) -> None:
    async def main() -> None:
        real = RealNetwork()
        listener = await real.listen(Echo, "127.0.0.1", 0)
        transport, caller = await real.connect(Caller, "127.0.0.1", listener.port)
        transport.write(b"before")
        assert await caller.stream.readexactly(6) == b"before"
        await listener.close()
        await listener.close()
        transport.write(b", after")
        assert await caller.stream.readexactly(7) == b", after"
        with pytest.raises(ConnectionRefusedError):
            await real.connect(Caller, "127.0.0.1", listener.port)
        transport.close()
        await caller.lost

    run(main())


def test_options_reach_accepted_and_made_connections(run: Run) -> None:
    async def main() -> None:
        real = RealNetwork()
        options = SocketOptions(send_buffer_bytes=32_768, receive_buffer_bytes=65_536)
        made: asyncio.Queue[Echo] = asyncio.Queue()
        listener = await real.listen(lambda: Echo(made), "127.0.0.1", 0, options=options)
        transport, caller = await real.connect(Caller, "127.0.0.1", listener.port, options=options)
        for side in (transport, (await made.get()).transport):
            sock = side.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            # Linux doubles what is asked for, to have room for its own book-keeping.
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (32_768, 65_536)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (65_536, 131_072)
        transport.close()
        await caller.lost
        await listener.close()

    run(main())


def test_a_connection_attempt_ends_at_its_deadline(run: Run) -> None:
    async def main() -> None:
        # A listener that never says a word of TLS: the handshake hangs.
        listener = await RealNetwork().listen(asyncio.Protocol, "127.0.0.1", 0)
        with pytest.raises(TimeoutError):
            await RealNetwork().connect(
                Caller, "127.0.0.1", listener.port, timeout_ms=100, tls=ssl.create_default_context()
            )
        await listener.close()

    run(main())


def test_tls_is_spoken_where_a_context_is_given(run: Run) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(CERTIFICATE)
    client = ssl.create_default_context(cafile=str(CERTIFICATE))

    async def main() -> None:
        acceptor = Acceptor(server)
        listener = await RealNetwork().listen(Echo, "127.0.0.1", 0, tls=acceptor)
        assert await echo("127.0.0.1", listener.port, b"secret", tls=client) == b"secret"
        many = bytes(range(256)) * 20_000
        assert await echo("127.0.0.1", listener.port, many, tls=client) == many
        with pytest.raises(
            TlsHandshakeFailed, match=r"is for another host name than elsewhere\.example"
        ) as raised:
            await RealNetwork().connect(
                Caller, "127.0.0.1", listener.port, tls=client, server_hostname="elsewhere.example"
            )
        assert raised.value.__cause__ is not None
        assert isinstance(raised.value.__cause__.__cause__, ssl.SSLCertVerificationError)
        assert await acceptor.failures.get() == "the other side does not accept the certificate"
        await listener.close()

    run(main())


def test_names_are_resolved_to_all_their_addresses(run: Run) -> None:
    async def main() -> None:
        real = RealNetwork()
        assert await real.resolve("127.0.0.1", 9092) == [("127.0.0.1", 9092)]
        assert ("127.0.0.1", 9092) in await real.resolve("localhost", 9092)
        with pytest.raises(HostNotFound, match=r"'no-such-host\.invalid' cannot be resolved"):
            await real.resolve("no-such-host.invalid", 9092)
        with pytest.raises(HostNotFound, match=r"'no-such-host\.invalid' cannot be resolved"):
            await real.connect(Caller, "no-such-host.invalid", 9092)
        with pytest.raises(HostNotFound):
            await real.listen(Echo, "no-such-host.invalid", 0)

    run(main())


@pytest.mark.parametrize("host", ["a" * 300, "a..b", "ö" * 70, "nul\0"], ids=["long", "dots", "idna", "nul"])
def test_a_name_that_is_none_is_a_host_that_is_not_found(run: Run, host: str) -> None:
    async def main() -> None:
        real = RealNetwork()
        with pytest.raises(HostNotFound):
            await real.connect(Caller, host, 9092)
        with pytest.raises(HostNotFound):
            await real.resolve(host, 9092)

    run(main())


def test_the_machine_has_a_name() -> None:
    assert RealNetwork().host_name()


async def two_addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Address]]:
    second = (socket.AF_INET6, "::1") if HAS_IPV6_LOOPBACK else (socket.AF_INET, "127.0.0.2")
    return [(socket.AF_INET, Address("127.0.0.1", port)), (second[0], Address(second[1], port))]


def test_a_port_taken_on_the_second_address_is_drawn_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    original = network._bound_socket

    def sometimes_taken(
        family: socket.AddressFamily, address: Address, backlog: int, options: SocketOptions
    ) -> socket.socket:
        if address.port and len(taken) < 3:
            taken.append(address.port)
            raise OSError(errno.EADDRINUSE, "taken")
        return original(family, address, backlog, options)

    async def main() -> None:
        listener = await RealNetwork().listen(Echo, "two addresses", 0)
        assert len(taken) == 3
        assert len(listener.addresses) == 2
        assert {address.port for address in listener.addresses} == {listener.port}
        await listener.close()

    monkeypatch.setattr(network, "_bound_socket", sometimes_taken)
    monkeypatch.setattr(network, "_bind_addresses", two_addresses)
    run(main())


def test_a_port_that_was_asked_for_is_not_drawn_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    original = network._bound_socket

    def second_taken(
        family: socket.AddressFamily, address: Address, backlog: int, options: SocketOptions
    ) -> socket.socket:
        if made:
            raise OSError(errno.EADDRINUSE, "taken")
        made.append(original(family, Address(address.host, 0), backlog, options))
        return made[0]

    async def main() -> None:
        with pytest.raises(OSError, match="taken"):
            await RealNetwork().listen(Echo, "two addresses", 9092)
        assert made[0].fileno() == -1

    monkeypatch.setattr(network, "_bound_socket", second_taken)
    monkeypatch.setattr(network, "_bind_addresses", two_addresses)
    run(main())


class Refusal:
    """Keeps no connection, and closes none at once."""

    def delay_s(self) -> float:
        return 0.0

    def on_accepted(self, host: str) -> float | None:
        return 60.0

    def on_failed(self, host: str) -> None:
        raise AssertionError("no connection was to be kept")


@pytest.mark.parametrize("kind", ["in a handshake", "refused"])
def test_connections_that_are_not_served_leave_most_handles_to_others(
    run: Run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the limit of 1,024 that many systems have, 1,000 half-open handshakes would take all handles."""
    monkeypatch.setattr(process, "open_file_limit", lambda: 80)

    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        tls, gate = (Acceptor(context), None) if kind == "in a handshake" else (None, Refusal())
        listener = await RealNetwork().listen(Echo, "127.0.0.1", 0, tls=tls, gate=gate)
        opened = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(15)]
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
        for done in ended[:5] if tls is not None else ended[10:]:  # the oldest handshakes, the newest refused
            assert await done == b""
        assert sum(each.done() for each in ended) == 5
        for _, writer in opened:
            writer.close()
        await listener.close()
        for each in ended:
            with contextlib.suppress(ConnectionError):
                await each

    run(main())
