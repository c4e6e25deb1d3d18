"""What can go wrong on the client's side, one class per cause.

Every failure is a `KafkaError` with a code, so one `except` catches all and `retriable` always answers
whether trying again can help. The classes here are for what no broker said: the address that could not be
reached, the connection that ended, the answer that did not come.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, KafkaError

__all__ = [
    "BootstrapFailed",
    "BufferFull",
    "ConnectionFailed",
    "ConnectionLost",
    "NotKafka",
    "RequestTimedOut",
    "TransactionAborted",
]


class ClientFailure(KafkaError):
    """A failure that this side found; `code` is the nearest of Kafka's."""

    __slots__ = ()

    CODE: ErrorCode

    def __init__(self, message: str) -> None:
        super().__init__(self.CODE, message)

    def __reduce__(self) -> tuple[type[ClientFailure], tuple[str]]:
        return type(self), (self.message,)

    def __str__(self) -> str:
        return self.message


class ConnectionFailed(ClientFailure):
    """No connection could be made: name not found, refused, timed out, or TLS failed. The text says which."""

    __slots__ = ()
    CODE = ErrorCode.NETWORK_EXCEPTION


class ConnectionLost(ClientFailure):
    """The connection ended before the answer. Whether the broker acted on the request is unknown."""

    __slots__ = ()
    CODE = ErrorCode.NETWORK_EXCEPTION


class RequestTimedOut(ClientFailure):
    """No answer came within `request.timeout.ms`. Whether the broker acted on the request is unknown."""

    __slots__ = ()
    CODE = ErrorCode.REQUEST_TIMED_OUT


class BufferFull(ClientFailure):
    """`buffer.memory` is used up by records that wait for their brokers: await `ready` before sending on."""

    __slots__ = ()
    CODE = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class TransactionAborted(ClientFailure):
    """The record, or the commit, went down with its transaction. The text says what broke it."""

    __slots__ = ()
    CODE = ErrorCode.TRANSACTION_ABORTABLE


class NotKafka(ClientFailure):
    """Whatever listens at this address does not speak Kafka's protocol, or not in plain text."""

    __slots__ = ()
    CODE = ErrorCode.UNSUPPORTED_VERSION


class BootstrapFailed(ClientFailure):
    """None of the bootstrap servers could be used. The text names each address and what was wrong with it.

    Retriable, as brokers may come back; what starts a client tells it at once all the same.
    """

    __slots__ = ()
    CODE = ErrorCode.BROKER_NOT_AVAILABLE

    @property
    def retriable(self) -> bool:
        return True
