"""TLS over a plain transport: `TlsConnection` is the protocol of the transport below, and the transport of
the protocol above.

asyncio and uvloop have such a class too, which encrypts all that is written at once and does not count what
the transport below holds of it. Here bytes are encrypted only as the transport below takes them, so that a
client that does not read makes the node hold its responses once, and `get_write_buffer_size` has all of it.
OpenSSL's state for a connection is made when its first bytes arrive: one that sends nothing costs little.

Invariant: the protocol above gets `connection_made` once the handshake is complete, and `connection_lost` if
and only if it got that. What was decrypted is delivered at once, also while reading is paused, as the
protocol above counts what it has; at most one buffer is received then.

Changes of keys (TLS 1.3) cost time and are answered, and a client may send any number of them. So
OpenSSL gets one record at a time, a connection that sends much besides data has small turns, and one that
sends nothing else ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, Protocol, cast

from ottla.runtime.address import Address

_RECEIVE_BYTES: Final = 256 * 1024
# What of one connection is decrypted in one turn of the event loop, which would otherwise read on for as long
# as the other side sends: so much takes some milliseconds.
_BYTES_OF_A_TURN: Final = 1024 * 1024
# The largest record, with what TLS adds to it.
_RECORD_BYTES: Final = 16 * 1024 + 512
# What is received at once of a new connection; of one whose records are full of data it becomes more.
_FIRST_BYTES: Final = 64 * 1024
# What TLS adds to the data of a record at most, and how much more than that may be no data before the
# connection has small turns, or, without any data, ends.
_OVERHEAD_BYTES: Final = 64
_WASTED_BYTES: Final = 4 * 1024
_MAX_WITHOUT_DATA: Final = 2 * _RECORD_BYTES
# The least size of an answer to a change of keys, and how many there may be within so many bytes of data.
_KEY_UPDATE_BYTES: Final = 19
_MAX_KEY_UPDATES: Final = 32
_MAX_ANSWER_BYTES: Final = 2 * _KEY_UPDATE_BYTES * _MAX_KEY_UPDATES
_KEY_UPDATE_PERIOD_BYTES: Final = 1024 * 1024
_ENCRYPT_BYTES: Final = 128 * 1024
_JOIN_BYTES: Final = 16 * 1024
_RAW_HIGH_BYTES: Final = 256 * 1024
_RAW_LOW_BYTES: Final = 64 * 1024


class _Buffers(threading.local):
    """The buffer that the connections of an event loop share: between `get_buffer` and `buffer_updated` no
    other code runs, and all that is received is taken out before the latter returns.
    """

    def __init__(self) -> None:
        self.receive = memoryview(bytearray(_RECEIVE_BYTES))


_buffers = _Buffers()


class TlsAcceptor(Protocol):
    """The TLS side of a listener."""

    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        ...

    def on_handshake_failed(self, peer: Address, reason: str) -> None: ...


class _State(Enum):
    HANDSHAKE = "handshake"
    OPEN = "open"
    # What was written is sent, and then the connection is closed.
    CLOSING = "closing"
    CLOSED = "closed"


class TlsFailure(ConnectionError):
    """TLS ended the connection: the text says why in words, and the cause is OpenSSL's error."""


class TlsConnection(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_carried",
        "_connected",
        "_context",
        "_data_bytes",
        "_gives_way",
        "_high",
        "_hostname",
        "_incoming",
        "_is_server",
        "_key_updates",
        "_low",
        "_most_offered",
        "_offered",
        "_on_done",
        "_outgoing",
        "_peer_done",
        "_protocol",
        "_raw",
        "_raw_paused",
        "_reading_paused",
        "_receive",
        "_ssl",
        "_state",
        "_unbroken",
        "_writing_paused",
        "ended",
    )

    def __init__(
        self,
        protocol: asyncio.BufferedProtocol,
        context: Callable[[], ssl.SSLContext],
        on_done: Callable[[Exception | None], None],
        *,
        hostname: str | None = None,
        is_server: bool,
    ) -> None:
        """`on_done` is called once: with None when the handshake is complete, or with why there is none."""
        self._protocol: Final = protocol
        self._context: Final = context
        self._on_done: Callable[[Exception | None], None] | None = on_done
        self._hostname: Final = hostname
        self._is_server: Final = is_server
        self._receive: Final = _buffers.receive
        self._raw: asyncio.Transport = None  # type: ignore[assignment]  # until `connection_made`
        self._ssl: ssl.SSLObject | None = None
        self._incoming: ssl.MemoryBIO
        self._outgoing: ssl.MemoryBIO
        self._state = _State.HANDSHAKE
        # Plain bytes that were written and are not encrypted yet, as the transport below takes no more.
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._raw_paused = False
        self._writing_paused = False
        # The size of the buffer that was given out last, and the bytes since one was not filled.
        self._offered = 0
        self._unbroken = 0
        self._most_offered = _FIRST_BYTES
        # Bytes after the last data: of a record that is not complete, or of none with data.
        self._carried = 0
        # Changes of keys that were answered, and the data since the first of them.
        self._key_updates = 0
        self._data_bytes = 0
        # Whether reading is paused for a turn, as others have theirs, or by the protocol above.
        self._gives_way = False
        self._reading_paused = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._peer_done = False
        # Whether the protocol above got `connection_made`, and not yet `connection_lost`.
        self._connected = False
        # Why TLS ended the connection.
        self.ended: TlsFailure | None = None

    # What the transport below calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = raw = cast("asyncio.Transport", transport)
        if self._state is _State.CLOSED:  # it was given up before
            raw.abort()
            return
        raw.set_write_buffer_limits(_RAW_HIGH_BYTES, _RAW_LOW_BYTES)
        if not self._is_server:
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._state is not _State.OPEN:
            return self._receive[:_RECORD_BYTES]
        # The protocol above asks for little while memory is short.
        wanted = len(cast("memoryview", self._protocol.get_buffer(sizehint)))
        self._offered = offered = min(max(wanted, _RECORD_BYTES), self._most_offered)
        return self._receive[:offered]

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is _State.OPEN:
            if self._read(self._receive[:nbytes]) > _WASTED_BYTES:
                self._most_offered = _RECORD_BYTES
                self._give_way()
                return
            if nbytes == self._offered:
                self._most_offered = min(2 * self._most_offered, _RECEIVE_BYTES)
            if nbytes < self._offered:
                self._unbroken = 0
                return
            self._unbroken += nbytes
            if self._unbroken >= _BYTES_OF_A_TURN:
                self._give_way()
        elif self._state is _State.HANDSHAKE:
            if self._ssl is None:
                self._make_ssl()
            self._incoming.write(self._receive[:nbytes])
            self._shake_hands()
        # What comes after this side has closed is dropped.

    def eof_received(self) -> bool:
        """TLS has no half-closed connections."""
        if self._state is _State.HANDSHAKE:
            self._fail(self._ended_in_handshake())
        elif self._state is _State.OPEN and not self._peer_done:
            self._protocol.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _State.CLOSED
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._on_done is not None:
            self._done(self.ended or self._ended_in_handshake())
        if self._connected:
            self._connected = False
            self._protocol.connection_lost(self.ended or exc)

    def pause_writing(self) -> None:
        self._raw_paused = True

    def resume_writing(self) -> None:
        self._raw_paused = False
        if self._state in (_State.OPEN, _State.CLOSING):
            self._pump()

    # The handshake

    def _make_ssl(self) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = self._context().wrap_bio(
            self._incoming, self._outgoing, server_side=self._is_server, server_hostname=self._hostname
        )

    def _shake_hands(self) -> None:
        try:
            if self._ssl is None:
                self._make_ssl()
            assert self._ssl is not None
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except (ssl.SSLError, OSError, ValueError) as error:
            self._send()  # the alert says why
            self._fail(failure(error, is_server=self._is_server))
            return
        self._send()
        self._state = _State.OPEN
        self._connected = True
        self._protocol.connection_made(cast("asyncio.BaseTransport", self))
        self._done(None)
        if self._incoming.pending and self._state is _State.OPEN:
            self._read(self._receive[:0])

    def _ended_in_handshake(self) -> TlsFailure:
        hint = "" if self._is_server else ": is it a TLS listener?"
        return TlsFailure(f"the other side ended the connection during the TLS handshake{hint}")

    def _done(self, error: Exception | None) -> None:
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(error)

    def _send(self) -> None:
        if self._ssl is not None and self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _fail(self, error: TlsFailure) -> None:
        """Close after what has been written below, which may be an alert."""
        if self.ended is None:
            self.ended = error
        if self._state is _State.HANDSHAKE:
            self._done(error)
        self._state = _State.CLOSING if self._state is _State.OPEN else _State.CLOSED
        self._backlog.clear()
        self._backlog_bytes = 0
        self._raw.close()

    def give_up(self) -> None:
        """End a handshake that takes too long."""
        if self._state is _State.HANDSHAKE:
            self._on_done = None
            self._state = _State.CLOSED
            if self._raw is not None:
                self._raw.abort()

    # Reading

    def _read(self, received: memoryview) -> int:
        """Decrypt what was received, and return how many bytes of it were neither data nor what TLS adds to
        that.
        """
        tls, incoming, protocol = self._ssl, self._incoming, self._protocol
        assert tls is not None
        # With a buffer it returns how much it has read.
        read = cast("Callable[[int, memoryview], int]", tls.read)
        length = len(received)
        filled = fed = data = records = 0
        carried = self._carried
        used = 0  # of what was carried and fed, up to the end of the last data
        try:
            while True:
                buffer = cast("memoryview", protocol.get_buffer(-1))
                size, filled = len(buffer), 0
                while filled < size:
                    if fed < length and (room := _RECORD_BYTES - incoming.pending) > 0:
                        # No more than the largest record: OpenSSL reads on until it has found data.
                        fed += incoming.write(received[fed : fed + room])
                    # OpenSSL reads at most one record.
                    try:
                        count = read(size - filled, buffer[filled:] if filled else buffer)
                    except ssl.SSLWantReadError:
                        if (
                            fed == length
                            or carried + fed - used > _MAX_WITHOUT_DATA
                            or self._outgoing.pending > _MAX_ANSWER_BYTES
                        ):
                            raise
                        continue
                    if not count:
                        raise ssl.SSLZeroReturnError
                    filled += count
                    data += count
                    records += 1
                    used = carried + fed - (left := incoming.pending)
                    if not left and fed == length and not tls.pending():
                        break
                protocol.buffer_updated(filled)
                filled = 0
                if self._state is not _State.OPEN:
                    break
                if fed == length and not incoming.pending and not tls.pending():
                    break
        except ssl.SSLWantReadError:
            if filled:
                protocol.buffer_updated(filled)
        except ssl.SSLZeroReturnError:
            if filled:
                protocol.buffer_updated(filled)
            self._on_close_notify()
        except ssl.SSLError as error:
            if filled:
                protocol.buffer_updated(filled)
            self._send()
            self._fail(failure(error, is_server=self._is_server))
            return 0
        self._carried = carried + fed - used
        if self._key_updates:
            self._data_bytes += data
            if self._data_bytes >= _KEY_UPDATE_PERIOD_BYTES:
                self._key_updates = self._data_bytes = 0
        if self._outgoing.pending:  # an answer to a change of keys
            self._key_updates += max(1, self._outgoing.pending // _KEY_UPDATE_BYTES)
            self._send()
        if self._state is _State.OPEN and (
            self._key_updates > _MAX_KEY_UPDATES or self._carried > _MAX_WITHOUT_DATA
        ):
            self._fail(TlsFailure("it changes the keys of TLS again and again, and sends no data"))
        return used - data - records * _OVERHEAD_BYTES

    def _give_way(self) -> None:
        """Let other connections have a turn before this one is read on."""
        self._unbroken = 0
        if self._state is _State.OPEN and not self._reading_paused:
            self._gives_way = True
            self._raw.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._gives_way = False
        if self._state is _State.OPEN and not self._reading_paused and not self._raw.is_closing():
            self._raw.resume_reading()

    def _on_close_notify(self) -> None:
        self._peer_done = True
        if self._state is _State.OPEN and not self._protocol.eof_received():
            self.close()

    # The transport of the protocol above

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._state is not _State.OPEN:
            return
        small: list[bytes | bytearray | memoryview] = []
        small_bytes = 0
        for part in parts:
            size = len(part)
            # A record has its price, so small parts share one.
            if size < _JOIN_BYTES:
                small.append(part)
                small_bytes += size
                if small_bytes < _JOIN_BYTES:
                    continue
            if small:
                self._queue(small, small_bytes)
                small, small_bytes = [], 0
            if size >= _JOIN_BYTES:
                self._queue([part], size)
        if small:
            self._queue(small, small_bytes)
        self._pump()

    def _queue(self, parts: list[bytes | bytearray | memoryview], size: int) -> None:
        if size:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._backlog.append(data if isinstance(data, memoryview) else memoryview(data))
            self._backlog_bytes += size

    def _pump(self) -> None:
        """Encrypt what was written, as far as the transport below takes it."""
        backlog, outgoing, tls = self._backlog, self._outgoing, self._ssl
        assert tls is not None
        try:
            while backlog and not self._raw_paused:
                data = backlog[0]
                sent = 0
                while sent < len(data) and outgoing.pending < _ENCRYPT_BYTES:
                    sent += tls.write(data[sent : sent + _ENCRYPT_BYTES])
                self._backlog_bytes -= sent
                if sent == len(data):
                    backlog.popleft()
                else:
                    backlog[0] = data[sent:]
                if not backlog or outgoing.pending >= _ENCRYPT_BYTES:
                    self._raw.write(outgoing.read())
        except ssl.SSLError as error:
            self._fail(failure(error, is_server=self._is_server))
            return
        if self._state is _State.CLOSING and not backlog:
            self._finish()
            return
        size = self._backlog_bytes + self._raw.get_write_buffer_size()
        if not self._writing_paused:
            if size > self._high:
                self._writing_paused = True
                self._protocol.pause_writing()
        elif size <= self._low:
            self._writing_paused = False
            self._protocol.resume_writing()

    def close(self) -> None:
        if self._state is _State.OPEN:
            self._state = _State.CLOSING
            if not self._backlog:
                self._finish()

    def _finish(self) -> None:
        """Say that this side has ended, and close. The answer of the other side is not waited for."""
        assert self._ssl is not None
        with contextlib.suppress(ssl.SSLError, OSError):
            self._ssl.unwrap()
        self._send()
        self._raw.close()

    def abort(self) -> None:
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._state is not _State.CLOSED:
            if self._state is _State.OPEN:
                self._state = _State.CLOSING
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._state in (_State.CLOSING, _State.CLOSED)

    def pause_reading(self) -> None:
        if self._state is _State.OPEN:
            self._reading_paused = True
            if not self._gives_way:
                self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._state is _State.OPEN:
            self._reading_paused = False
            if not self._gives_way:
                self._raw.resume_reading()

    def is_reading(self) -> bool:
        return self._state is _State.OPEN and not self._reading_paused

    def get_write_buffer_size(self) -> int:
        """All bytes that were written and that the system does not have yet."""
        return self._backlog_bytes + self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        if low is None:
            low = high // 4
        self._high, self._low = high, low
        self._raw.set_write_buffer_limits(min(high, _RAW_HIGH_BYTES), min(low, _RAW_LOW_BYTES))

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._ssl
        if name == "sslcontext":
            return None if self._ssl is None else self._ssl.context
        if name == "peercert":
            return None if self._ssl is None else self._ssl.getpeercert()
        if name == "cipher":
            return None if self._ssl is None else self._ssl.cipher()
        return self._raw.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def can_write_eof(self) -> bool:
        return False


# Causes

_VERIFY: Final = {
    9: "the certificate is not valid yet",
    10: "the certificate has expired",
    18: "the certificate is signed by itself and not trusted",
    19: "the authority that issued the certificate is not trusted",
    20: "the authority that issued the certificate is not trusted",
    21: "the authority that issued the certificate is not trusted",
    23: "the certificate was revoked",
    26: "the certificate is not meant for this use",
    62: "the certificate is for another host name",
    64: "the certificate is for another address",
}
_ALERTS: Final = {
    "ALERT_UNKNOWN_CA": "the other side does not trust the authority that issued the certificate",
    "ALERT_CERTIFICATE_UNKNOWN": "the other side does not accept the certificate",
    "ALERT_BAD_CERTIFICATE": "the other side does not accept the certificate",
    "ALERT_CERTIFICATE_EXPIRED": "the other side says that the certificate has expired",
    "ALERT_CERTIFICATE_REVOKED": "the other side says that the certificate was revoked",
    "ALERT_CERTIFICATE_REQUIRED": "the other side asks for a certificate, and none was shown",
    "ALERT_UNSUPPORTED_CERTIFICATE": "the other side cannot use a certificate of this kind",
    "ALERT_ACCESS_DENIED": "the other side denied access",
    "ALERT_DECRYPT_ERROR": "the other side could not verify what it received",
    "ALERT_PROTOCOL_VERSION": "the two sides have no version of TLS in common",
    "ALERT_HANDSHAKE_FAILURE": (
        "the other side has no cipher suite in common with this one, or asks for a certificate"
    ),
    "ALERT_INTERNAL_ERROR": "the other side had an internal error",
}


def failure(error: Exception, *, is_server: bool) -> TlsFailure:
    """Say in words why TLS failed."""
    made = TlsFailure(_cause(error, is_server=is_server))
    made.__cause__ = error
    return made


def _cause(error: Exception, *, is_server: bool) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        text = _VERIFY.get(error.verify_code, f"the certificate is not accepted: {error.verify_message}")
        if error.verify_code in (62, 64):
            name = error.verify_message.rstrip(".").rpartition(" ")[2].strip("'")
            text = f"{text} than {name}"
        return text
    if not isinstance(error, ssl.SSLError):
        return str(error)
    reason = error.reason or ""
    for part, text in _ALERTS.items():
        if reason.endswith(part):
            return text
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        if is_server:
            return "it sent plain text, or no TLS, to a TLS listener"
        return "it does not speak TLS: is it a PLAINTEXT or SASL_PLAINTEXT listener?"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it showed no certificate, and ssl.client.auth is required"
    if reason in ("UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION", "VERSION_TOO_LOW"):
        return "the two sides have no version of TLS in common (ssl.enabled.protocols)"
    if reason == "NO_SHARED_CIPHER":
        return "the two sides have no cipher suite in common (ssl.cipher.suites)"
    if reason in ("UNEXPECTED_EOF_WHILE_READING",) or isinstance(error, ssl.SSLEOFError):
        return "the other side ended the connection without the end of TLS"
    return reason.replace("_", " ").lower() or str(error)
