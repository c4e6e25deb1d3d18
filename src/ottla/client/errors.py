"""Errors that a client finds itself, one class for each cause.

Every failure is a `KafkaError` with a code, so one `except` catches all of them, and `retriable` says whether
another attempt can help. These classes are for failures that no broker reported: an address that could not be
reached, a connection that ended, a response that did not come.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.rpc.errors import (
    AuthenticationFailed,
    ClientFailure,
    ConnectionFailed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    WrongNode,
)

__all__ = [
    "AuthenticationFailed",
    "BootstrapFailed",
    "BufferFull",
    "ConnectionFailed",
    "ConnectionLost",
    "NotKafka",
    "RequestTimedOut",
    "TransactionAborted",
    "WrongNode",
]


class BufferFull(ClientFailure):
    """Records that wait for their brokers use up `buffer.memory`: await `ready` before sending more."""

    __slots__ = ()
    CODE = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class TransactionAborted(ClientFailure):
    """The record, or the commit, failed with its transaction. The text says what failed first."""

    __slots__ = ()
    CODE = ErrorCode.TRANSACTION_ABORTABLE


class BootstrapFailed(ClientFailure):
    """No bootstrap server could be used. The text names each address and its failure.

    Retriable, as brokers may come back; a client that starts raises it at once all the same.
    """

    __slots__ = ()
    CODE = ErrorCode.BROKER_NOT_AVAILABLE

    @property
    def retriable(self) -> bool:
        return True
