"""A node whose clients fetch and do not read: its memory is bounded, and other clients go on."""

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.client.blocking import Producer

DEADLINE_SECONDS = 60
MB = 1024 * 1024
CLIENTS = 100


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def _fetch_request(max_bytes: int) -> bytes:
    """Version 4: everything of partition 0 of `t`, from its beginning."""
    body = struct.pack(">hhih", 1, 4, 7, 1) + b"x" + struct.pack(">iiiib", -1, 100, 1, max_bytes, 0)
    body += struct.pack(">ih", 1, 1) + b"t" + struct.pack(">iiqi", 1, 0, 0, max_bytes)
    return struct.pack(">i", len(body)) + body


def _connect(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(DEADLINE_SECONDS)
    sock.connect(("127.0.0.1", port))
    return sock


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part, "the node has closed the connection"
        data += part
    return bytes(data)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_clients_that_do_not_read_do_not_fill_the_memory_of_a_node(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = ["connections.memory.max.bytes=33554432", "socket.send.buffer.bytes=16384"]
    log = tmp_path / "log"
    output = log.open("wb")
    node = subprocess.Popen(
        [
            *(sys.executable, "-c", "from ottla.cli.main import main; raise SystemExit(main())", "start"),
            *("--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"),
            *(word for setting in settings for word in ("--set", setting)),
        ],
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    sockets: list[socket.socket] = []
    try:

        def is_open() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        _until(is_open)
        with Producer(bootstrap_servers=f"127.0.0.1:{port}") as producer:
            for _ in range(240):
                producer.send("t", os.urandom(100_000))
            producer.flush()
        before = _resident_bytes(node.pid)
        good = _connect(port)
        sockets.append(good)
        for number in range(CLIENTS):
            slow = _connect(port)
            sockets.append(slow)
            slow.sendall(_fetch_request(10 * MB))
            if number % 20 == 0:
                good.sendall(_fetch_request(1000))
                (size,) = struct.unpack(">i", _receive(good, 4))
                assert len(_receive(good, size)) > 1000
        good.sendall(_fetch_request(1000))
        (size,) = struct.unpack(">i", _receive(good, 4))
        assert len(_receive(good, size)) > 1000
        # Without a bound they would hold a gigabyte.
        assert _resident_bytes(node.pid) - before < 200 * MB
        _until(lambda: "read nothing of its responses" in log.read_text())
    finally:
        for sock in sockets:
            sock.close()
        node.terminate()
        node.wait(DEADLINE_SECONDS)
        output.close()
