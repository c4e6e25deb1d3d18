"""A node whose clients fetch and do not read: its memory is bounded, and other clients go on."""

import contextlib
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import wait_until

from ottla.client.blocking import Producer
from ottla.testing.cluster_plan import free_ports
from ottla.testing.security import LocalSecurity

pytestmark = pytest.mark.slow

DEADLINE_SECONDS = 60
MB = 1024 * 1024
FEW = 10


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _fetch_request(max_bytes: int) -> bytes:
    """Version 4: everything of partition 0 of `t`, from its beginning."""
    body = struct.pack(">hhih", 1, 4, 7, 1) + b"x" + struct.pack(">iiiib", -1, 100, 1, max_bytes, 0)
    body += struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iiqi", 1, 0, 0, max_bytes)
    return struct.pack(">i", len(body)) + body


def _connect(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(DEADLINE_SECONDS)
    sock.connect(("127.0.0.1", port))
    return sock if tls is None else tls.wrap_socket(sock, server_hostname="127.0.0.1")


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part, "the node has closed the connection"
        data += part
    return bytes(data)


def _sockets(pid: int) -> int:
    """How many sockets a process has open."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(descriptor.readlink()).startswith("socket:")
    return found


@contextlib.contextmanager
def _node(
    folder: Path, security: LocalSecurity | None, **settings: int
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A node in a process of its own, with 24 MB in a topic `t`, and its port."""
    (port,) = free_ports(1)
    given: dict[str, object] = {"socket.send.buffer.bytes": 16384}
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    client = {"bootstrap.servers": f"127.0.0.1:{port}"}
    if security is not None:
        given |= security.server_settings
        given |= {"listeners": f"SSL://127.0.0.1:{port}", "security.inter.broker.protocol": "SSL"}
        client |= security.client_settings
    with (folder / "log").open("wb") as output:
        node = subprocess.Popen(
            [
                *(sys.executable, "-c", "from ottla.cli.main import main; raise SystemExit(main())", "start"),
                *("--data-dir", str(folder / "data")),
                *(("--listen", f"127.0.0.1:{port}") if security is None else ()),
                *(word for name, value in given.items() for word in ("--set", f"{name}={value}")),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:

            def is_open() -> bool:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    return True
                return False

            wait_until(is_open)
            own = _sockets(node.pid)
            with Producer(client) as producer:
                for _ in range(240):
                    producer.send("t", os.urandom(100_000))
                producer.flush()
            wait_until(lambda: _sockets(node.pid) <= own)
            yield node, port
        finally:
            node.terminate()
            node.wait(DEADLINE_SECONDS)


class _Reader:
    """A client that reads what it fetches. It connects again if it may have been idle for too long, as on a
    machine that held up the test; the node has no other reason to close it.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None, idle_seconds: int) -> None:
        self._port, self._tls, self._idle_seconds = port, tls, idle_seconds
        self._sock = _connect(port, tls)
        self._last = time.monotonic()

    def fetch(self) -> None:
        """Fetch a batch, and read it."""
        if time.monotonic() > self._last + self._idle_seconds / 2:
            self.close()
            self._sock = _connect(self._port, self._tls)
        self._sock.sendall(_fetch_request(1000))
        (size,) = struct.unpack(">i", _receive(self._sock, 4))
        assert len(_receive(self._sock, size)) > 1000
        self._last = time.monotonic()

    def close(self) -> None:
        self._sock.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("protocol", "clients", "idle_seconds"),
    [
        ("PLAINTEXT", 100, 5),
        # On a busy machine a handshake takes seconds: some clients have to be there together.
        pytest.param("SSL", 120, 30, marks=pytest.mark.exhaustive),
    ],
)
def test_clients_that_do_not_read_do_not_fill_the_memory_of_a_node(
    tmp_path: Path, protocol: str, clients: int, idle_seconds: int
) -> None:
    security = tls = None
    if protocol == "SSL":
        security = LocalSecurity(client_auth="none")
        security.write(tmp_path / "security")
        tls = ssl.create_default_context(cafile=str(security.directory / "ca.crt"))
    limits = {"connections_memory_max_bytes": 32 * MB, "connections_max_idle_ms": idle_seconds * 1000}
    with contextlib.ExitStack() as sockets, _node(tmp_path, security, **limits) as (node, port):
        log = tmp_path / "log"
        # While memory suffices only the idle limit ends them.
        own = _sockets(node.pid)
        for _ in range(FEW):
            sockets.enter_context(_connect(port, tls)).sendall(_fetch_request(MB))
        wait_until(lambda: _sockets(node.pid) > own)
        wait_until(
            lambda: _sockets(node.pid) <= own, seconds=120
        )  # fewer, if one of the node's own was about to end
        assert "memory for connections is short" not in log.read_text()
        before = _resident_bytes(node.pid)
        good = sockets.enter_context(contextlib.closing(_Reader(port, tls, idle_seconds)))
        for number in range(clients):
            sockets.enter_context(_connect(port, tls)).sendall(_fetch_request(10 * MB))
            if number % 5 == 0:
                good.fetch()  # also, so that this one is not idle
        good.fetch()
        # Without a bound they would hold gigabytes: ten megabytes each.
        most = _resident_bytes(node.pid) - before
        assert most < 200 * MB, f"{most // MB} MB"
        ends = time.monotonic() + DEADLINE_SECONDS + idle_seconds
        while (left := _sockets(node.pid) - own - 1) > 0:
            assert time.monotonic() < ends, f"{left} are still open"
            good.fetch()  # also, so that this one is not idle
            most = max(most, _resident_bytes(node.pid) - before)
            time.sleep(0.05)
        assert most < 200 * MB, f"{most // MB} MB"
        assert "memory for connections is short" in log.read_text()
        good.fetch()
