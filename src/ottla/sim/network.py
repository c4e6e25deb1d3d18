"""A network in memory: hosts, links between them, and connections that give TCP's guarantees and no more.

Bytes of a connection arrive in order or not at all. A link can be slow; it can be cut in one direction or
both, and then sent bytes wait, as TCP retransmits them, and arrive once the link is restored. A connection
can break at any time, and its two ends notice at different moments. A process that is killed sends resets; a
machine that loses its power sends nothing, and a peer that writes to it notices only when it is back.
Everything is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import errno
import random
import ssl
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ottla.runtime.address import Address
from ottla.runtime.network import DEFAULT_OPTIONS, AcceptGate, HostNotFound, NetworkListener, SocketOptions
from ottla.runtime.tls import TlsAcceptor
from ottla.sim.loop import Process, SimLoop

P = TypeVar("P", bound=asyncio.BaseProtocol)

_HIGH_WATER_BYTES: Final = 64 * 1024
_FIRST_PORT: Final = 40_000
# How long a connection attempt waits before the next one while the link is cut.
_RETRY_S: Final = 0.2
_DEFAULT_TIMEOUT_S: Final = 30.0


class Host:
    """A machine: one process at a time, and its open ports."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: Process | None = None
        self.has_power = True
        self.listeners: dict[int, _SimListener] = {}
        self.ends: dict[_End, None] = {}  # its ends of connections, oldest first
        self.next_port = _FIRST_PORT


class Fabric:
    """All hosts, and the state of the links between them."""

    def __init__(self, loop: SimLoop, seed: int | str) -> None:
        self.loop: Final = loop
        self.random: Final = random.Random(f"{seed}/network")
        self.hosts: dict[str, Host] = {}
        self._cut: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str], float] = {}
        self.delivered = 0
        self.digest = 0  # over all bytes that were sent, in their order

    def host(self, name: str) -> Host:
        return self.hosts.setdefault(name, Host(name))

    # Faults

    def cut(self, source: str, target: str) -> None:
        """Cut the link from `source` to `target`: nothing that is sent arrives."""
        self._cut.add((source, target))

    def slow(self, source: str, target: str, delay_ms: float) -> None:
        self._slow[(source, target)] = delay_ms

    def heal(self) -> None:
        """Restore all links; what waited is delivered."""
        self._cut.clear()
        self._slow.clear()
        for end in self._ends():
            end.resume()

    def mend(self, source: str, target: str) -> None:
        self._cut.discard((source, target))
        self._slow.pop((source, target), None)
        for end in self._ends():
            if (end.host.name, end.far.host.name) == (source, target):
                end.resume()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def connections(self) -> list[_End]:
        """The client's end of each connection."""
        return [end for end in self._ends() if end.is_client]

    def sever(self, end: _End) -> None:
        """Break a connection; its ends notice one after the other."""
        for side in (end, end.far):
            delay = self.random.random() * 0.05
            self.loop.call_later(delay, side.reset, "severed", context=self.loop.world.context)

    def bring_up(self, host: Host, process: Process) -> None:
        host.process = process
        host.has_power = True

    def take_down(self, host: Host, *, silently: bool) -> None:
        """End the network of a host's process; `silently`, without resets, if the machine lost its power."""
        host.listeners.clear()
        ends, host.ends = list(host.ends), {}
        host.process = None
        host.has_power = not silently
        for end in ends:
            if not silently:
                end.send_reset()
            end.gone = True

    # Internals

    def delay_s(self, source: str, target: str) -> float:
        slow = self._slow.get((source, target), 0.0)
        usual = 0.1 + self.random.expovariate(1.0)
        return (usual + slow * (0.5 + self.random.random())) / 1000

    def _ends(self) -> list[_End]:
        return [end for host in self.hosts.values() for end in host.ends]


class _End(asyncio.Transport):
    """One end of a connection, and the bytes in flight that it has written."""

    def __init__(
        self, fabric: Fabric, host: Host, process: Process, name: Address, *, is_client: bool
    ) -> None:
        super().__init__()
        self.fabric = fabric
        self.host = host
        self.process = process
        self.far: _End = self
        self.is_client = is_client
        self.gone = False  # its process has ended
        self._name = name
        self._protocol: asyncio.BaseProtocol | None = None
        self._in_flight: deque[bytes | str | None] = deque()  # None is an end of file, a text a reset
        self._in_flight_bytes = 0
        self._arrivals = 0  # pieces that have a time of arrival
        self._last_arrival = 0.0
        self._inbox: deque[bytes | None] = deque()
        self._reading = True
        self._writing_paused = False
        self._closing = False
        self._lost = False
        host.ends[self] = None

    def __repr__(self) -> str:
        return f"<connection {self.host.name} to {self.far.host.name}>"

    # asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._lost or not data:
            return
        self._push(bytes(data))
        if self._in_flight_bytes > _HIGH_WATER_BYTES and not self._writing_paused:
            self._writing_paused = True
            self._notify("pause_writing")

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(part) for part in list_of_data))

    def write_eof(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if self._closing or self._lost:
            return
        self._closing = True
        self._push(None)
        self._end(None)

    def abort(self) -> None:
        if not self._lost:
            self.send_reset()
            self._end(None)

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._call(self._read)

    def is_reading(self) -> bool:
        return self._reading

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_write_buffer_size(self) -> int:
        return self._in_flight_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return _HIGH_WATER_BYTES // 4, _HIGH_WATER_BYTES

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limits are fixed."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {"sockname": tuple(self._name), "peername": tuple(self.far._name)}
        return known.get(name, default)

    # Sending

    def _push(self, piece: bytes | str | None) -> None:
        if self.gone:
            return
        self._in_flight.append(piece)
        if isinstance(piece, bytes):
            self._in_flight_bytes += len(piece)
            self.fabric.digest = zlib.crc32(piece, self.fabric.digest)
        self.resume()

    def send_reset(self) -> None:
        if self.gone:
            return
        self._in_flight.append("reset by the other side")
        self.resume()

    def resume(self) -> None:
        """Schedule the arrival of every piece in flight, unless the link is cut."""
        source, target = self.host.name, self.far.host.name
        if self.fabric.is_cut(source, target):
            return
        loop = self.fabric.loop
        while self._arrivals < len(self._in_flight):
            self._arrivals += 1
            arrival = max(self._last_arrival, loop.time() + self.fabric.delay_s(source, target))
            self._last_arrival = arrival
            loop.call_at(arrival, self._arrive, context=loop.world.context)

    def _arrive(self) -> None:
        piece = self._in_flight.popleft()
        self._arrivals -= 1
        self.fabric.delivered += 1
        if isinstance(piece, bytes):
            self._in_flight_bytes -= len(piece)
            if self._writing_paused and self._in_flight_bytes <= _HIGH_WATER_BYTES // 4:
                self._writing_paused = False
                self._notify("resume_writing")
        self.far._receive(piece)

    # Receiving

    def _receive(self, piece: bytes | str | None) -> None:
        if self.gone:
            if self.host.has_power and not isinstance(piece, str):
                self.far._receive("the other side does not know this connection")
            return
        if self._lost:
            return
        if isinstance(piece, str):
            self.reset(piece)
            return
        self._inbox.append(piece)
        self._call(self._read)

    def reset(self, reason: str) -> None:
        """Break this end of the connection."""
        if not self._lost and not self.gone:
            self._inbox.clear()
            self._call(self._end, ConnectionResetError(errno.ECONNRESET, reason))

    def _read(self) -> None:
        while self._inbox and self._reading and not self._lost:
            piece = self._inbox.popleft()
            if piece is None:
                if isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol):
                    self._protocol.eof_received()
                self._end(None)
            elif isinstance(self._protocol, asyncio.BufferedProtocol):
                _feed(self._protocol, piece)
            elif isinstance(self._protocol, asyncio.Protocol):
                self._protocol.data_received(piece)

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self.host.ends.pop(self, None)
        protocol = self._protocol
        if protocol is not None:
            self._call(protocol.connection_lost, error)

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        """Schedule a callback in the process that this end belongs to."""
        self.fabric.loop.call_soon(callback, *args, context=self.process.context.copy())

    def _notify(self, event: str) -> None:
        if self._protocol is not None and not self.gone and not self._lost:
            self._call(getattr(self._protocol, event))


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    view = memoryview(data)
    while view:
        buffer = memoryview(protocol.get_buffer(len(view)))
        size = min(len(buffer), len(view))
        buffer[:size] = view[:size]
        protocol.buffer_updated(size)
        view = view[size:]


class _SimListener:
    def __init__(
        self,
        host: Host,
        port: int,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        gate: AcceptGate | None,
    ) -> None:
        self._host = host
        self._port = port
        self.process = process
        self.factory = factory
        self.gate = gate

    @property
    def addresses(self) -> tuple[Address, ...]:
        return (Address(self._host.name, self._port),)

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        if self._host.listeners.get(self._port) is self:
            del self._host.listeners[self._port]


class SimNetwork:
    """The network as one process sees it: an implementation of `ottla.runtime.network.Network`."""

    def __init__(self, fabric: Fabric, host: str, process: Process) -> None:
        self._fabric = fabric
        self._host = fabric.host(host)
        self._process = process

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
        if tls is not None:
            raise OSError(errno.ENOTSUP, "there is no TLS on the simulated network")
        if port == 0:
            port = self._host.next_port
            self._host.next_port += 1
        await self.check_listen(host, port)
        listener = _SimListener(self._host, port, self._process, factory, gate)
        if not self._process.dead:
            self._host.listeners[port] = listener
        return listener

    async def check_listen(self, host: str, port: int) -> None:
        if port in self._host.listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {host or '*'}:{port}: Address already in use")

    async def connect(
        self,
        factory: Callable[[], P],
        host: str,
        port: int,
        *,
        timeout_ms: int | None = None,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        options: SocketOptions = DEFAULT_OPTIONS,
    ) -> tuple[asyncio.Transport, P]:
        timeout = _DEFAULT_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000
        async with asyncio.timeout(timeout):
            return await self._connect(factory, host, port)

    async def _connect(self, factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
        fabric = self._fabric
        target = fabric.hosts.get(host)
        if target is None:
            raise HostNotFound(errno.ENOENT, f"host name {host!r} cannot be resolved")
        here, there = self._host.name, target.name
        while True:
            await asyncio.sleep(fabric.delay_s(here, there) + fabric.delay_s(there, here))
            reachable = not fabric.is_cut(here, there) and not fabric.is_cut(there, here)
            if reachable and target.has_power:
                break
            await asyncio.sleep(_RETRY_S)
        listener = target.listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port} refuses connections")
        self._host.next_port += 1
        local = Address(here, self._host.next_port)
        near = _End(fabric, self._host, self._process, local, is_client=True)
        far = _End(fabric, target, listener.process, Address(there, port), is_client=False)
        near.far, far.far = far, near
        fabric.loop.call_soon(_accept, listener, far, context=listener.process.context.copy())
        protocol = factory()
        near.set_protocol(protocol)
        protocol.connection_made(near)
        return near, protocol

    async def resolve(self, host: str, port: int) -> list[Address]:
        if host not in self._fabric.hosts:
            raise HostNotFound(errno.ENOENT, f"host name {host!r} cannot be resolved")
        return [Address(host, port)]

    def host_name(self) -> str:
        return self._host.name


def _accept(listener: _SimListener, end: _End) -> None:
    gate = listener.gate
    if gate is not None and gate.on_accepted(end.far.host.name) is not None:
        end.abort()
        return
    protocol = listener.factory()
    end.set_protocol(protocol)
    protocol.connection_made(end)
