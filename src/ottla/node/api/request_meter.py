"""Measure a request against the quotas of its client, and throttle the client that exceeds one.

As in Kafka the response goes out at once, with the time of the throttling in it, and then the connection is
not read from for that time; no handler waits. Bytes of a Produce request count by its size, those of a Fetch
response by the records in it; a throttled fetch gets an empty response and its bytes do not count. The time
that counts for `request_percentage` is the time that the request holds the event loop or works in a thread,
not that which it waits.

Exempt is what only nodes send, and fetches of followers (`exempt`) and of the quorum; by which listener it
comes does not matter, as clients may use those of nodes too. Each request is looked at by itself, and none
frees the connection that it came by. One that is denied is no request of a node (`on_denied`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ottla.protocol.api import API_BY_NAME, FETCH, PRODUCE, ListenerType

if TYPE_CHECKING:
    from ottla.node.network.connection import ClientConnection, PendingRequest
    from ottla.protocol.api import Api
    from ottla.protocol.schema import Request, Response
    from ottla.security.principal import KafkaPrincipal
    from ottla.security.quota.quota_managers import QuotaManagers

T = TypeVar("T")

# Percents of a second.
_PERCENT_PER_NS: Final = 1e-7
# Its version from which on only brokers send it.
_ADD_PARTITIONS: Final = API_BY_NAME["AddPartitionsToTxn"]
_FIRST_OF_BROKERS: Final = 4


class MeteredRequest(Protocol):
    """A request that came by a connection, as its meter sees it."""

    @property
    def api(self) -> Api: ...

    @property
    def version(self) -> int: ...

    @property
    def client_id(self) -> str | None: ...

    @property
    def principal(self) -> KafkaPrincipal: ...

    @property
    def pending(self) -> PendingRequest: ...

    @property
    def connection(self) -> ClientConnection: ...


class RequestMeter:
    """The quotas of one request. It exists only where some quota is set."""

    __slots__ = (
        "_busy_ns",
        "_context",
        "_is_exempt",
        "_is_recorded",
        "_quotas",
        "_since_ns",
        "_throttle_ms",
    )

    def __init__(self, quotas: QuotaManagers, context: MeteredRequest, listener: ListenerType) -> None:
        self._quotas: Final = quotas
        self._context: Final = context
        api = context.api
        self._is_exempt = (
            # What brokers forward too comes from operators.
            (api.cluster_action and not api.forwardable)
            or ListenerType.BROKER not in api.listeners
            or (api.key == FETCH and listener is ListenerType.CONTROLLER)
            or (api is _ADD_PARTITIONS and context.version >= _FIRST_OF_BROKERS)
        )
        # Where the time counts: since when, and what has been measured so far.
        self._since_ns = quotas.monotonic_ns() if quotas.request.is_enabled else 0
        self._busy_ns = 0
        self._is_recorded = False
        self._throttle_ms = 0

    def exempt(self) -> None:
        """Do not count this request: it is a follower's."""
        self._is_exempt = True

    def on_denied(self) -> None:
        """Count a request that its client may not send."""
        self._is_exempt = False

    def begin(self) -> None:
        """Measure the time from now on: until here the request has only waited."""
        if self._since_ns:
            self._since_ns = self._quotas.monotonic_ns()

    def timed(self, reply: Awaitable[T]) -> Awaitable[T]:
        """The awaitable, with the time measured that it holds the event loop."""
        if not self._since_ns:
            return reply
        self._busy_ns = self._quotas.monotonic_ns() - self._since_ns
        return _Timed(reply, self)

    def add_busy(self, elapsed_ns: int) -> None:
        self._busy_ns += elapsed_ns

    def measured(self, work: Callable[[], T]) -> T:
        """Do work of the request in a thread, and count its time; nothing else of the request runs
        meanwhile.
        """
        began_ns = self.monotonic_ns()
        try:
            return work()
        finally:
            self.add_busy(self.monotonic_ns() - began_ns)

    def monotonic_ns(self) -> int:
        return self._quotas.monotonic_ns()

    # What a Fetch asks

    def most_fetch_bytes(self) -> int:
        """The most bytes that the client may fetch at once without being throttled in any case."""
        quotas, context = self._quotas, self._context
        if self._is_exempt or not quotas.fetch.is_enabled:
            return 2**31 - 1
        most = quotas.fetch.most_in_window(context.principal.name, context.client_id, quotas.now_ms())
        return int(min(most, 2**31 - 1))

    def throttles_fetch(self, size: int) -> bool:
        """Count a response of so many bytes; whether an empty one is to go out instead."""
        quotas, context = self._quotas, self._context
        if self._is_exempt:
            return False
        user, client_id, now_ms = context.principal.name, context.client_id, quotas.now_ms()
        if quotas.request.is_enabled:
            self._record_time()
        if quotas.fetch.is_enabled:
            throttle_ms = quotas.fetch.record(user, client_id, size, now_ms)
            self._throttle_ms = max(self._throttle_ms, throttle_ms)
            if self._throttle_ms:
                quotas.fetch.unrecord(user, client_id, size, now_ms)
        return self._throttle_ms > 0

    # At the end

    def finish(self, request: Request, response: Response | None) -> None:
        """Count the request and throttle the client if it has exceeded a quota; the response says for how
        long.
        """
        throttle_ms = 0 if self._is_exempt else self._record(request)
        given_ms = 0 if response is None else getattr(response, "throttle_time_ms", 0)
        if throttle_ms or given_ms:
            throttle_ms = max(throttle_ms, given_ms)
            if throttle_ms != given_ms and response is not None and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = throttle_ms
            self._context.connection.throttle(throttle_ms / 1000)
            statistics = self._context.pending.statistics
            if statistics is not None:
                statistics.throttle_ms += throttle_ms

    def _record(self, request: Request) -> int:
        quotas, context = self._quotas, self._context
        if context.api.key == PRODUCE:
            if quotas.produce.is_enabled:
                pending = context.pending
                self._throttle_ms = quotas.produce.record(
                    pending.connection.principal.name, context.client_id, pending.size, quotas.now_ms()
                )
            if not request.acks:  # type: ignore[attr-defined]
                return self._throttle_ms
        if quotas.request.is_enabled:
            self._record_time()
        return self._throttle_ms

    def _record_time(self) -> None:
        """Count the time of the node that the request has taken, once."""
        if self._is_recorded or not self._since_ns:
            return
        self._is_recorded = True
        quotas, context = self._quotas, self._context
        busy_ns = self._busy_ns or quotas.monotonic_ns() - self._since_ns
        percent = busy_ns * _PERCENT_PER_NS
        throttle_ms = quotas.request.record(
            context.principal.name, context.client_id, percent, quotas.now_ms()
        )
        self._throttle_ms = max(self._throttle_ms, throttle_ms)


class _Timed(Generic[T]):
    """Awaits an awaitable, and counts the time of each of its steps."""

    __slots__ = ("_meter", "_reply")

    def __init__(self, reply: Awaitable[T], meter: RequestMeter) -> None:
        self._reply = reply
        self._meter = meter

    def __await__(self) -> Generator[Any, Any, T]:
        meter = self._meter
        steps: Any = self._reply.__await__()
        error: BaseException | None = None
        while True:
            began_ns = meter.monotonic_ns()
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                meter.add_busy(meter.monotonic_ns() - began_ns)
            error = None
            try:
                yield waits_for
            except BaseException as raised:
                error = raised
