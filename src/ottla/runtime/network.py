"""Connections: asyncio transports and protocols over the running loop, so that nothing above needs a socket.

A listener has one port for all addresses it is bound to. Asking for port 0 lets the system choose it, once,
also where a host name has an IPv4 and an IPv6 address. An empty host means every interface, of both
families where the machine has both.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from ottla.runtime import process
from ottla.runtime.address import Address, plain_host
from ottla.runtime.tls import TlsAcceptor, TlsConnection, TlsFailure

if sys.platform != "win32":
    import fcntl
    import termios

_log = logging.getLogger(__name__)


P = TypeVar("P", bound=asyncio.BaseProtocol)

TlsContext: TypeAlias = ssl.SSLContext
"""Keys, trusted certificates and versions of TLS connections; `ottla.security` makes them."""

# Attempts at one port for several addresses: the one chosen for the first may be taken on the next.
_PORT_ATTEMPTS = 16
# After which a listener that could not accept, or was not to, tries again.
_ACCEPT_RETRY_SECONDS = 0.1
# Connections that a listener holds open although they are refused: so many, and so many of the handles that
# the process may have. The same holds for those in a TLS handshake.
_MAX_REFUSED = 1_000
_HANDLES_EIGHTHS = 1
# A listener without handles says so at most this often.
_ACCEPT_ERROR_SECONDS = 60.0
# How long a TLS handshake may take, and how many may be under way on a listener: the oldest is given up.
_HANDSHAKE_SECONDS = 10.0
_MAX_HANDSHAKES = 2_000


class HostNotFound(OSError):
    """The host name has no address, or no name server answered."""


class TlsHandshakeFailed(ConnectionError):
    """The connection was made, but the TLS handshake failed: see the cause."""


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """The options that are set on each socket. A buffer size of -1 leaves the system's default."""

    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    keepalive: bool = True


# States of a TCP connection whose other side has closed its half, as Linux numbers them:
# CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING.
_PEER_IS_DONE = frozenset((7, 8, 9, 11))


def _acknowledge(transport: TlsConnection) -> None:
    """Acknowledge at once what was received. The last message of a client's handshake has no answer, and a
    client with Nagle's algorithm, as librdkafka by default, would not send its first request before.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sys.platform == "linux":
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def peer_is_done(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side has closed its half of the connection, or has reset it.

    A transport that is not reading does not notice by itself. False on systems that do not report it.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return False
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _PEER_IS_DONE
    except OSError:
        return True


def unacknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """How many bytes the system holds that the other side has not received; 0 on systems that do not say."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):
        return 0


class AcceptGate(Protocol):
    """Decides when a listener accepts connections, and which ones it keeps."""

    def delay_s(self) -> float:
        """For how long no connection may be accepted; those that come meanwhile wait in the backlog."""
        ...

    def on_accepted(self, host: str) -> float | None:
        """Decide on the connection from an address, which was accepted: None if it is kept, or else after
        how many seconds it is closed, unread. A client that waits does not come back at once.
        """
        ...

    def on_failed(self, host: str) -> None:
        """Forget a connection that was to be kept and has failed before its protocol had it."""
        ...


@runtime_checkable
class AcceptedProtocol(Protocol):
    """A protocol that is given the address of its client: a socket that was reset no longer knows it."""

    def on_accepted_from(self, peer: Address) -> None: ...


class NetworkListener(Protocol):
    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses that it accepts connections at, with the actual port."""
        ...

    @property
    def port(self) -> int: ...

    async def close(self) -> None:
        """Stop accepting connections. Those that were accepted stay open."""
        ...


class Network(Protocol):
    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = 50,
        tls: TlsAcceptor | None = None,
        options: SocketOptions = ...,
        gate: AcceptGate | None = None,
    ) -> NetworkListener:
        """Accept connections, each with a protocol from `factory`, as the gate allows. With `tls`, a protocol
        is one of asyncio that has buffers, and is connected once the handshake is complete.

        OSError names the address that could not be bound.
        """
        ...

    async def check_listen(self, host: str, port: int) -> None:
        """Raise the OSError that `listen` would raise now. No connection is accepted meanwhile."""
        ...

    async def connect(
        self,
        factory: Callable[[], P],
        host: str,
        port: int,
        *,
        timeout_ms: int | None = None,
        tls: TlsContext | None = None,
        server_hostname: str | None = None,
        options: SocketOptions = ...,
    ) -> tuple[asyncio.Transport, P]:
        """Connect within `timeout_ms` (TimeoutError after it), TLS handshake included.

        HostNotFound, TlsHandshakeFailed, or the OSError of the system, such as ConnectionRefusedError.
        """
        ...

    async def resolve(self, host: str, port: int) -> list[Address]:
        """Every address of a host, in the system's order of preference, or HostNotFound."""
        ...

    def host_name(self) -> str:
        """The host name of this machine."""
        ...


DEFAULT_OPTIONS = SocketOptions()


class _RealListener:
    """Accepts from its sockets while the gate allows it and the process has handles for more."""

    __slots__ = (
        "_addresses",
        "_backlog",
        "_factory",
        "_gate",
        "_logged_error",
        "_max_refused",
        "_refused",
        "_retries",
        "_sockets",
        "_tasks",
        "_tls",
        "handshakes",
        "loop",
        "max_handshakes",
    )

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.BaseProtocol],
        backlog: int,
        tls: TlsAcceptor | None,
        gate: AcceptGate | None,
    ) -> None:
        self._sockets = sockets
        self._addresses = tuple(Address(*sock.getsockname()[:2]) for sock in sockets)
        self._factory = factory
        self._backlog = backlog
        self._tls = tls
        self._gate = gate
        self.loop = asyncio.get_running_loop()
        # Connections that are being made, and sockets that are not accepted from for now.
        self._tasks: set[asyncio.Task[None]] = set()
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        # Connections that are not kept, until they are closed.
        self._refused: dict[socket.socket, asyncio.TimerHandle] = {}
        handles = max(1, process.open_file_limit() * _HANDLES_EIGHTHS // 8)
        self._max_refused = min(_MAX_REFUSED, handles)
        # When it was last logged that connections cannot be accepted.
        self._logged_error = -_ACCEPT_ERROR_SECONDS
        # TLS handshakes that are not complete, the oldest first.
        self.handshakes: dict[_Handshake, None] = {}
        self.max_handshakes = min(_MAX_HANDSHAKES, handles)
        for sock in sockets:
            self.loop.add_reader(sock, self._accept, sock)

    @property
    def addresses(self) -> tuple[Address, ...]:
        return self._addresses

    @property
    def port(self) -> int:
        return self._addresses[0].port

    def _accept(self, listening: socket.socket) -> None:
        gate = self._gate
        for _ in range(self._backlog):
            delay_s = gate.delay_s() if gate is not None else 0.0
            if delay_s > 0:
                self._pause(listening, delay_s)
                return
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # its client has gone already
            except OSError as error:
                self._on_accept_error(listening, error)
                return
            client = (
                Address(plain_host(str(peer[0])), int(peer[1])) if isinstance(peer, tuple) else Address("", 0)
            )
            closes_after_s = None if gate is None else gate.on_accepted(client.host)
            if closes_after_s is not None:
                self._refuse(sock, closes_after_s)
                continue
            sock.setblocking(False)
            task = self.loop.create_task(self._connect(sock, client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _refuse(self, sock: socket.socket, closes_after_s: float) -> None:
        if closes_after_s <= 0 or len(self._refused) >= self._max_refused:
            sock.close()
        else:
            self._refused[sock] = self.loop.call_later(closes_after_s, self._close_refused, sock)

    def _close_refused(self, sock: socket.socket) -> None:
        del self._refused[sock]
        sock.close()

    async def _connect(self, sock: socket.socket, client: Address) -> None:
        def make() -> asyncio.BaseProtocol:
            protocol = self._factory()
            if isinstance(protocol, AcceptedProtocol):
                protocol.on_accepted_from(client)
            return protocol

        tls = self._tls
        if tls is not None:
            # It gives its place back itself if its handshake fails.
            handshake = _Handshake(self, tls, make(), client)
            try:
                await self.loop.connect_accepted_socket(lambda: handshake.connection, sock)
            except BaseException as error:
                sock.close()
                handshake.on_done(error)
                if not isinstance(error, OSError):
                    raise
            return
        protocol: asyncio.BaseProtocol | None = None

        def make_one() -> asyncio.BaseProtocol:
            nonlocal protocol
            protocol = make()
            return protocol

        try:
            await self.loop.connect_accepted_socket(make_one, sock)
        except BaseException as error:
            sock.close()
            if getattr(protocol, "transport", None) is None:  # it would give its place back itself
                self.on_failed(client)
            if not isinstance(error, OSError):
                raise

    def on_failed(self, client: Address) -> None:
        if self._gate is not None:
            self._gate.on_failed(client.host)

    def _on_accept_error(self, listening: socket.socket, error: OSError) -> None:
        now = self.loop.time()
        if now - self._logged_error >= _ACCEPT_ERROR_SECONDS:
            self._logged_error = now
            _log.error(
                "cannot accept connections at %s:%d: %s; they wait until others are closed",
                *listening.getsockname()[:2],
                error.strerror or error,
            )
        self._pause(listening, _ACCEPT_RETRY_SECONDS)

    def _pause(self, listening: socket.socket, delay_s: float) -> None:
        self.loop.remove_reader(listening)
        delay_s = min(delay_s, _ACCEPT_RETRY_SECONDS)
        self._retries[listening] = self.loop.call_later(delay_s, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        del self._retries[listening]
        self.loop.add_reader(listening, self._accept, listening)

    async def close(self) -> None:
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()
        for refused, timer in self._refused.items():
            timer.cancel()
            refused.close()
        self._refused.clear()
        for sock in self._sockets:
            self.loop.remove_reader(sock)
            sock.close()
        self._sockets = []


class _Handshake:
    """The handshake of an accepted connection, bounded in time and in number."""

    __slots__ = ("_client", "_listener", "_timer", "_tls", "connection")

    def __init__(
        self, listener: _RealListener, tls: TlsAcceptor, protocol: asyncio.BaseProtocol, client: Address
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._client = client
        assert isinstance(protocol, asyncio.BufferedProtocol), protocol
        self.connection = TlsConnection(protocol, tls.context, self.on_done, is_server=True)
        handshakes = listener.handshakes
        if len(handshakes) >= listener.max_handshakes:
            next(iter(handshakes)).give_up("there are too many others")
        handshakes[self] = None
        self._timer = listener.loop.call_later(
            _HANDSHAKE_SECONDS, self.give_up, f"it was not complete after {_HANDSHAKE_SECONDS:.0f} s"
        )

    def give_up(self, reason: str) -> None:
        self.on_done(TlsFailure(f"its TLS handshake was given up: {reason}"))
        self.connection.give_up()

    def on_done(self, error: BaseException | None) -> None:
        """Give the place of a connection back that has failed. Only the first call counts."""
        if self._listener.handshakes.pop(self, self) is self:
            return
        self._timer.cancel()
        if error is None:
            _acknowledge(self.connection)
        else:
            self._listener.on_failed(self._client)
            if isinstance(error, TlsFailure):
                self._tls.on_handshake_failed(self._client, str(error))


class RealNetwork:
    """The TCP of this machine, on the running event loop."""

    __slots__ = ()

    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = 50,
        tls: TlsAcceptor | None = None,
        options: SocketOptions = DEFAULT_OPTIONS,
        gate: AcceptGate | None = None,
    ) -> NetworkListener:
        sockets = _bound(await _bind_addresses(host, port), backlog, options)
        return _RealListener(sockets, factory, backlog, tls, gate)

    async def check_listen(self, host: str, port: int) -> None:
        for sock in _bound(await _bind_addresses(host, port), None, DEFAULT_OPTIONS):
            sock.close()

    async def connect(
        self,
        factory: Callable[[], P],
        host: str,
        port: int,
        *,
        timeout_ms: int | None = None,
        tls: TlsContext | None = None,
        server_hostname: str | None = None,
        options: SocketOptions = DEFAULT_OPTIONS,
    ) -> tuple[asyncio.Transport, P]:
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                loop = asyncio.get_running_loop()
                if tls is None:
                    transport, protocol = await loop.create_connection(factory, host, port)
                else:
                    transport, protocol = await _connect_tls(factory, host, port, tls, server_hostname)
        except (socket.gaierror, ValueError) as error:
            _host_not_found(host, error)
        except TlsFailure as error:
            reason = f"TLS handshake failed: {error}"
            raise TlsHandshakeFailed(errno.ECONNABORTED, reason) from error
        sock = transport.get_extra_info("socket")
        if sock is not None:
            _configure(sock, options)
        return transport, protocol

    async def resolve(self, host: str, port: int) -> list[Address]:
        found = await _addresses(host, port)
        return list(dict.fromkeys(address for _, address in found))

    def host_name(self) -> str:
        return socket.gethostname() or "localhost"


async def _connect_tls(
    factory: Callable[[], P], host: str, port: int, tls: TlsContext, server_hostname: str | None
) -> tuple[asyncio.Transport, P]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def on_done(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    protocol = factory()
    assert isinstance(protocol, asyncio.BufferedProtocol), protocol
    connection = TlsConnection(
        protocol, lambda: tls, on_done, hostname=server_hostname or host, is_server=False
    )
    transport, _ = await loop.create_connection(lambda: connection, host, port)
    try:
        await done
    except BaseException:
        transport.abort()
        raise
    return cast("asyncio.Transport", connection), protocol


_Endpoint = tuple[socket.AddressFamily, Address]


async def _bind_addresses(host: str, port: int) -> list[_Endpoint]:
    if not host:
        return [(socket.AF_INET6 if _has_ipv6() else socket.AF_INET, Address("", port))]
    found = await _addresses(host, port)
    usable = [endpoint for endpoint in found if endpoint[0] != socket.AF_INET6 or _has_ipv6()]
    return list(dict.fromkeys(usable))


async def _addresses(host: str, port: int) -> list[_Endpoint]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, ValueError) as error:
        _host_not_found(host, error)
    return [(socket.AddressFamily(entry[0]), Address(str(entry[4][0]), port)) for entry in found]


def _host_not_found(host: str, error: socket.gaierror | ValueError) -> NoReturn:
    """Raise for a name that no server knows, or that is none: too long, empty between dots, with a NUL. Such
    names come from other nodes too, so they must not be more than a connection that fails.
    """
    if isinstance(error, ValueError):
        raise HostNotFound(socket.EAI_NONAME, f"host name {host[:300]!r} is invalid: {error}") from error
    raise HostNotFound(error.errno, f"host name {host!r} cannot be resolved: {error.strerror}") from error


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _bound(endpoints: list[_Endpoint], backlog: int | None, options: SocketOptions) -> list[socket.socket]:
    """Bind a socket for each endpoint, all on one port; they listen if `backlog` is given."""
    for attempt in range(_PORT_ATTEMPTS):
        sockets: list[socket.socket] = []
        port = endpoints[0][1].port
        try:
            for family, address in endpoints:
                sockets.append(_bound_socket(family, Address(address.host, port), backlog, options))
                port = sockets[0].getsockname()[1]
        except OSError as error:
            for sock in sockets:
                sock.close()
            chosen_by_system = endpoints[0][1].port == 0 and sockets
            if error.errno == errno.EADDRINUSE and chosen_by_system and attempt + 1 < _PORT_ATTEMPTS:
                continue
            raise
        return sockets
    raise AssertionError("the last attempt returns or raises")


def _bound_socket(
    family: socket.AddressFamily, address: Address, backlog: int | None, options: SocketOptions
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A node that restarts takes its port back from connections in TIME_WAIT; two live listeners still
        # exclude each other. Windows gives the option another meaning.
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if address.host else 0)
        _configure(sock, options)
        sock.setblocking(False)
        try:
            # With SO_REUSEADDR, Linux refuses `bind` to a port that another socket listens on, and `listen`
            # on a port that another socket is only bound to.
            sock.bind(address)
            if backlog is not None:
                sock.listen(backlog)
        except OSError as error:
            where = f"{address.host or '*'}:{address.port}"
            raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def _configure(sock: socket.socket, options: SocketOptions) -> None:
    """Set the options of a socket. Accepted sockets inherit them from the listening one."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.keepalive:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if options.send_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
    if options.receive_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer_bytes)
