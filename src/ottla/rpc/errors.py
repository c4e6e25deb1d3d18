"""Failures of requests to another node, one class for each cause that no broker reported.

Every failure is a `KafkaError` with a code, so one `except` catches all of them, and `retriable` says whether
another attempt can help.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, KafkaError


class ClientFailure(KafkaError):
    """A failure that this side of a connection found; `code` is the nearest one of Kafka's."""

    __slots__ = ()

    CODE: ErrorCode

    def __init__(self, message: str) -> None:
        super().__init__(self.CODE, message)

    def __reduce__(self) -> tuple[type[ClientFailure], tuple[str]]:
        return type(self), (self.message,)

    def __str__(self) -> str:
        return self.message


class ConnectionFailed(ClientFailure):
    """No connection could be made: name not found, refused, timed out, or TLS failed. The text says which,
    and `__cause__` is the `OSError` that the network raised.
    """

    __slots__ = ()
    CODE = ErrorCode.NETWORK_EXCEPTION


class WrongNode(ConnectionFailed):
    """Another node than the expected one, or one of another cluster, answered at this address: what is known
    of the cluster's addresses is out of date, or something between routes connections wrongly.
    """

    __slots__ = ()


class ConnectionLost(ClientFailure):
    """The connection ended before the response. The broker may have executed the request or not."""

    __slots__ = ()
    CODE = ErrorCode.NETWORK_EXCEPTION


class RequestTimedOut(ClientFailure):
    """No response came within `request.timeout.ms`. The broker may have executed the request or not."""

    __slots__ = ()
    CODE = ErrorCode.REQUEST_TIMED_OUT


class NotKafka(ClientFailure):
    """The server at this address does not speak Kafka's protocol, or not in plain text."""

    __slots__ = ()
    CODE = ErrorCode.UNSUPPORTED_VERSION


class AuthenticationFailed(ClientFailure):
    """The broker, or this side, refused the login: wrong credentials, or a mechanism that it does not offer.
    The text says which. Another attempt would fail too.
    """

    __slots__ = ()
    CODE = ErrorCode.SASL_AUTHENTICATION_FAILED


def os_error(failure: KafkaError) -> OSError:
    """Translate a failure into the `OSError` that a node's code expects of a peer that cannot be reached:
    `TimeoutError`, `ConnectionRefusedError` and the like.
    """
    cause = failure.__cause__
    if isinstance(failure, ConnectionFailed) and isinstance(cause, OSError):
        # A copy: raised while the failure is handled, the cause would refer to it, and so to itself.
        return type(cause)(*cause.args)
    if isinstance(failure, RequestTimedOut):
        return TimeoutError(failure.message)
    return ConnectionResetError(failure.message)
