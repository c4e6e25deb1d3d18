"""One HTTP request, for the few services beside Kafka that a node or client asks: OAuth's.

It blocks, so it is made in the pool. Bounded in time and size; redirects and proxies are not followed, as the
operator named the one address that is trusted.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

TlsContext = ssl.SSLContext

MAX_BODY_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 64 * 1024


class HttpError(OSError):
    """There is no response; the text says why, and has neither headers nor the body."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    url: str = field(repr=False)  # it may have a secret in it, which `shown_url` leaves out
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 10.0
    max_body_bytes: int = MAX_BODY_BYTES
    # What an https server is verified with; None is what the system trusts.
    tls: TlsContext | None = None

    @property
    def shown_url(self) -> str:
        """The address for logs and messages, without what may be secret: user, password and query."""
        where = urlsplit(self.url)
        host = where.hostname or ""
        try:
            port = f":{where.port}" if where.port else ""
        except ValueError:
            port = ""
        return f"{where.scheme}://{host}{port}{where.path}"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes = field(repr=False)


def http_fetch(request: HttpRequest) -> HttpResponse:
    """Send the request and return the whole response. HttpError if there is none, or it is too large."""
    where = urlsplit(request.url)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise HttpError(f"{request.shown_url} is no http or https address")
    connection: http.client.HTTPConnection
    try:
        if where.scheme == "https":
            connection = http.client.HTTPSConnection(
                where.hostname,
                where.port,
                timeout=request.connect_timeout_seconds,
                context=request.tls or ssl.create_default_context(),
            )
        else:
            connection = http.client.HTTPConnection(
                where.hostname, where.port, timeout=request.connect_timeout_seconds
            )
        try:
            return _exchange(
                connection, request, (where.path or "/") + (f"?{where.query}" if where.query else "")
            )
        finally:
            connection.close()
    except HttpError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
        raise HttpError(f"{request.shown_url} cannot be reached: {reason}") from None


def _exchange(connection: http.client.HTTPConnection, request: HttpRequest, path: str) -> HttpResponse:
    connection.connect()
    if isinstance(connection.sock, socket.socket):
        connection.sock.settimeout(request.read_timeout_seconds)
    deadline = time.monotonic() + request.read_timeout_seconds * 3
    connection.request(request.method, path, body=request.body, headers=dict(request.headers))
    response = connection.getresponse()
    body = bytearray()
    while chunk := response.read1(_READ_BYTES):
        body += chunk
        if len(body) > request.max_body_bytes:
            raise HttpError(f"{request.shown_url} answers with more than {request.max_body_bytes} bytes")
        if time.monotonic() > deadline:
            raise HttpError(f"{request.shown_url} answers too slowly")
    return HttpResponse(response.status, bytes(body))
