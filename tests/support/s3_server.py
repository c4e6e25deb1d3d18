"""A real S3 server over a directory: versitygw, built once per checkout by the Go of this machine.

`OTTLA_VERSITYGW=PATH` names a program that is there already. A proxy before it can fail as stores do: with
503, or not at all in time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ottla.testing.cluster_plan import free_ports

S3_SKIP = "S3 tests skipped: "
VERSION = "v1.8.0"
PROGRAM_VARIABLE = "OTTLA_VERSITYGW"
ACCESS_KEY, SECRET_KEY = "the-access-key", "the-secret-key"
BUCKET = "segments"
_BUILD = Path(__file__).resolve().parents[2] / "build" / f"versitygw-{VERSION}"
# Less than a test may take. Go keeps what it has compiled, so the next attempt goes on from there.
_BUILD_SECONDS = 240
_START_SECONDS = 60


class NoS3Server(Exception):
    """It cannot be had on this machine; the text says what is missing."""


def program() -> Path:
    """The server's program, which is built if it is not there yet."""
    prepared = os.environ.get(PROGRAM_VARIABLE)
    if prepared is not None:
        return Path(prepared)
    path = _BUILD / "versitygw"
    if path.exists():
        return path
    if shutil.which("go") is None:
        raise NoS3Server("no `go` on the PATH (install Go 1.26)")
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not path.exists():
            _build(path)
    return path


def _build(path: Path) -> None:
    staged = path.parent / "staged"
    try:
        done = subprocess.run(
            ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"],
            env={**os.environ, "GOBIN": str(staged)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoS3Server(f"versitygw was not built within {_BUILD_SECONDS} s; run the tests again") from None
    if done.returncode != 0:
        raise NoS3Server(f"versitygw could not be built: {done.stdout[-1000:]}")
    (staged / "versitygw").rename(path)


@contextlib.contextmanager
def s3_server(root: Path) -> Iterator[str]:
    """Run the server over a directory; the address that it answers at."""
    (root / "data" / BUCKET).mkdir(parents=True)
    (root / "side").mkdir()
    (port,) = free_ports(1)  # of those that no client's connection takes meanwhile
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    command = [str(program()), "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(root / "side")]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(root / "data")], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait_for(port, process, root / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)


class FaultyProxy:
    """Stands before a server. While `status` is set, every request is answered with it."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self.target = host, int(port)
        self.status: str | None = None
        self.refused = 0
        self._connections: dict[socket.socket, None] = {}
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                proxy._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def fail_with(self, status: str) -> None:
        """Refuse requests from now on, on the connections that there are too."""
        self.status = status
        for each in list(self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        self.status = None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, client: socket.socket) -> None:
        if self.status is not None:
            with contextlib.suppress(OSError):
                client.recv(65536)
                self.refused += 1
                client.sendall(
                    f"HTTP/1.1 {self.status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
                )
            return
        self._connections[client] = None
        try:
            with socket.create_connection(self.target) as server:
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()
        except OSError:
            return
        finally:
            self._connections.pop(client, None)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
