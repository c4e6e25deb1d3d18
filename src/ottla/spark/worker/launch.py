"""Start a Python process of Spark as a fork of a process that has imported PySpark, or else as any other.

Spark runs this instead of the interpreter (see `ottla.spark.worker.fork_server`), with the same arguments and
files. It stands for the fork: it passes SIGTERM on, and ends when the fork does, with its status. Without a
server it becomes the interpreter.

It runs without site-packages (`python -I -S`), so that it takes milliseconds: it imports nothing of Ottla.
"""

import marshal
import os
import signal
import socket
import struct
import sys
from contextlib import suppress

ADDRESS = "OTTLA_SPARK_FORK_SERVER"
SIZE = struct.Struct(">I")
STATUS = struct.Struct(">i")
FILES = (0, 1, 2)


def main(python: str, arguments: list[str]) -> int:
    server = _connected(arguments)
    if server is None:
        os.execv(python, [python, *arguments])
    pid = STATUS.unpack(_received(server, STATUS.size))[0]

    def end(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    try:
        return int(STATUS.unpack(_received(server, STATUS.size))[0])
    except EOFError:  # the server is gone, and with it all who know of its forks
        end()
        return 1


def _connected(arguments: list[str]) -> socket.socket | None:
    """The connection to the server, which has taken the request; None if it has not."""
    address = os.environ.get(ADDRESS)
    if not address or arguments[:1] != ["-m"]:
        return None
    request = {"arguments": arguments[1:], "environment": dict(os.environ), "directory": os.getcwd()}
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        body = marshal.dumps(request)
        server.connect(address)
        socket.send_fds(server, [SIZE.pack(len(body))], FILES)
        server.sendall(body)
        if _received(server, 1) == b"\1":
            return server
    except (OSError, EOFError):
        pass
    server.close()
    return None


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
