"""Failures of requests to another node, one class for each cause that no broker reported.

Every failure is a `KafkaError` with a code, so one `except` catches all of them, and `retriable` says whether
trying again can help.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, KafkaError


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


class NotKafka(ClientFailure):
    """Whatever listens at this address does not speak Kafka's protocol, or not in plain text."""

    __slots__ = ()
    CODE = ErrorCode.UNSUPPORTED_VERSION
