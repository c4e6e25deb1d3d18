"""Guess by its first bytes which protocol a client speaks that does not speak Kafka's.

The usual mistakes: a browser or a health check on the broker's port, TLS towards a plain listener, a proxy in
front that announces the client's address. One log line that says so saves an hour of search.
"""

from __future__ import annotations

from typing import Final

_HTTP_METHODS: Final = (
    b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE ",
)  # fmt: skip
_PREFIXES: Final[tuple[tuple[tuple[bytes, ...], str], ...]] = (
    ((b"PRI * HTTP/2",), "an HTTP/2 request"),
    (_HTTP_METHODS, "an HTTP request"),
    ((b"\x16\x03",), "a TLS handshake (connect without TLS, or give this listener SSL)"),
    ((b"\x80\x2e\x01", b"\x80\x80\x01"), "an SSL 2 handshake"),
    ((b"PROXY ", b"\r\n\r\n\x00\r\nQUIT\n"), "the PROXY protocol (turn it off in the proxy)"),
    ((b"SSH-",), "an SSH client"),
    ((b"AMQP",), "an AMQP client"),
    ((b"*", b"PING\r\n"), "a Redis client"),
    ((b"\x10",), "an MQTT client"),
    ((b"EHLO ", b"HELO "), "an SMTP client"),
    ((b"ruok", b"stat", b"mntr", b"srvr"), "a ZooKeeper command"),
)


def looks_like(data: bytes) -> str | None:
    """Return a description of the protocol that the bytes belong to, or None."""
    for prefixes, name in _PREFIXES:
        if data.startswith(prefixes):
            return name
    if len(data) >= 8 and all(32 <= byte < 127 or byte in b"\r\n\t" for byte in data):
        return f"plain text ({data[:16].decode('ascii')!r})"
    return None
