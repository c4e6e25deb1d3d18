"""One question to one node, blocking: what it says of itself and of the cluster, with no client in between.

A client asks whichever broker answers, and tries again; whoever looks after a cluster wants to know what this
one says, and whether it says anything.
"""

from __future__ import annotations

import socket
import struct
from typing import Final, TypeVar

from ottla.protocol.api import API
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

_CORRELATION_ID: Final = 1
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


def ask(port: int, request: Request, version: int, answer: type[R], *, timeout_s: float) -> R:
    """The answer of the node at a port of this machine; OSError where there is none in time."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(b"".join(request_parts(version, _CORRELATION_ID, "ottla-testing", request)))
        (size,) = struct.unpack(">i", _read(connection, 4))
        if not 0 < size <= _MAX_ANSWER_BYTES:
            raise ConnectionError(f"port {port} answered with a frame of {size} bytes: that is no broker")
        _, response = read_response(API[request.API_KEY], version, _read(connection, size))
    assert isinstance(response, answer)
    return response


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed before the answer")
        data += part
    return bytes(data)
