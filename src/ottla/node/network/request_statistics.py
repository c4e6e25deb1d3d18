"""The requests that the listeners of a node have answered: counts, sizes, and the time of each phase.

A request counts when its response is given to the transport. Its phases follow each other:

- queue: from the moment at which its last bytes were received until its handler starts, while requests before
  it on the connection are started, or it waits for memory;
- local: until the handler has made the response, or has returned because it has to wait;
- remote: what it waits for: other replicas, more bytes, the controller, the disk;
- send: until the response has gone to the transport, while responses before it go out first.

A throttled client gets its response at once and is not read from for a while; that time counts as throttle.

These are plain integers in nanoseconds, added to once for each request; what Prometheus shows is computed
when it is read. Requests of one API and version have one object, which the dispatcher of the listener finds
by its version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# The upper ends of the classes of total times; what is above all of them has a class of its own.
TIME_BOUNDS_MS: Final = (
    *(0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0, 300.0, 400.0, 600.0, 800.0, 1_000.0, 1_500.0, 2_000.0),
    *(3_000.0, 5_000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0),
)
TIME_BOUNDS_NS: Final = tuple(int(ms * 1e6) for ms in TIME_BOUNDS_MS)


class RequestStatistics:
    """The requests of one API and version that came by one listener. Their connections add to it."""

    __slots__ = (
        "count",
        "local_ns",
        "queue_ns",
        "remote_ns",
        "request_bytes",
        "response_bytes",
        "send_ns",
        "throttle_ms",
        "times",
    )

    def __init__(self) -> None:
        self.count = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.queue_ns = 0
        self.local_ns = 0
        self.remote_ns = 0
        self.send_ns = 0
        self.throttle_ms = 0
        # How many took how long in all, by the classes of `TIME_BOUNDS_MS`.
        self.times: Final = [0] * (len(TIME_BOUNDS_NS) + 1)

    def merge(self, other: RequestStatistics) -> None:
        """Add the requests of another object."""
        self.count += other.count
        self.request_bytes += other.request_bytes
        self.response_bytes += other.response_bytes
        self.queue_ns += other.queue_ns
        self.local_ns += other.local_ns
        self.remote_ns += other.remote_ns
        self.send_ns += other.send_ns
        self.throttle_ms += other.throttle_ms
        for index, count in enumerate(other.times):
            self.times[index] += count


class ListenerStatistics:
    """The requests of one listener, by the name of their API and by version."""

    __slots__ = ("accepted", "errors", "name", "requests")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.requests: Final[dict[tuple[str, int], RequestStatistics]] = {}
        # By API, version and error code; the codes of single partitions, topics and so on count too.
        self.errors: Final[dict[tuple[str, int, int], int]] = {}
        # Connections so far.
        self.accepted = 0

    def of(self, request: str, version: int) -> RequestStatistics:
        found = self.requests.get((request, version))
        if found is None:
            found = self.requests[request, version] = RequestStatistics()
        return found

    def count_error(self, request: str, version: int, code: int) -> None:
        key = (request, version, code)
        self.errors[key] = self.errors.get(key, 0) + 1


class NetworkStatistics:
    """The listeners of a node. `now_ns` times requests; None if they are not timed."""

    __slots__ = ("listeners", "now_ns")

    def __init__(self, now_ns: Callable[[], int] | None) -> None:
        self.now_ns: Final = now_ns
        self.listeners: Final[dict[str, ListenerStatistics]] = {}

    def listener(self, name: str) -> ListenerStatistics:
        found = self.listeners.get(name)
        if found is None:
            found = self.listeners[name] = ListenerStatistics(name)
        return found
