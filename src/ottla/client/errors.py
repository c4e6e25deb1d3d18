"""What can go wrong on the client's side, one class per cause.

Every failure is a `KafkaError` with a code, so one `except` catches all and `retriable` always answers
whether trying again can help. The classes here are for what no broker said: the address that could not be
reached, the connection that ended, the answer that did not come.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.rpc.errors import ClientFailure, ConnectionFailed, ConnectionLost, NotKafka, RequestTimedOut

__all__ = [
    "BootstrapFailed",
    "BufferFull",
    "ConnectionFailed",
    "ConnectionLost",
    "NotKafka",
    "RequestTimedOut",
    "TransactionAborted",
]


class BufferFull(ClientFailure):
    """`buffer.memory` is used up by records that wait for their brokers: await `ready` before sending on."""

    __slots__ = ()
    CODE = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class TransactionAborted(ClientFailure):
    """The record, or the commit, went down with its transaction. The text says what broke it."""

    __slots__ = ()
    CODE = ErrorCode.TRANSACTION_ABORTABLE


class BootstrapFailed(ClientFailure):
    """None of the bootstrap servers could be used. The text names each address and what was wrong with it.

    Retriable, as brokers may come back; what starts a client tells it at once all the same.
    """

    __slots__ = ()
    CODE = ErrorCode.BROKER_NOT_AVAILABLE

    @property
    def retriable(self) -> bool:
        return True
