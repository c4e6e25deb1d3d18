"""One partition of a coordinator's topic as the engine holds it, and those who wait for its answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Any, Final, Generic, TypeVar

from ottla.coordinator.runtime.effects import Machine
from ottla.protocol.errors import KafkaError
from ottla.replication.partition import Partition

M = TypeVar("M", bound=Machine)

_NOTHING: Final = object()


class Ticket:
    """The answer to a request, now or later: `done` and `result()`, or `await ticket`.

    It is answered once; a second answer is ignored, as is one to somebody who has stopped waiting.
    """

    __slots__ = ("_value", "_waiters")

    def __init__(self) -> None:
        self._value: Any = _NOTHING
        self._waiters: list[asyncio.Future[None]] | None = None  # one for each that waits, mostly none

    @property
    def done(self) -> bool:
        return self._value is not _NOTHING

    def resolve(self, value: Any) -> None:
        if self._value is not _NOTHING:
            return
        self._value = value
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None

    def result(self) -> Any:
        """The answer; raises if it is an error."""
        if self._value is _NOTHING:
            raise asyncio.InvalidStateError("there is no answer yet")
        if isinstance(self._value, KafkaError):
            raise self._value
        return self._value

    def __await__(self) -> Generator[Any, None, Any]:
        if self._value is _NOTHING:
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            yield from waiter
        return self.result()


class Pending:
    """Answers that wait until the high watermark has reached `end_offset`."""

    __slots__ = ("deadline_ms", "end_offset", "replies", "sends", "timed_out")

    def __init__(
        self, end_offset: int, deadline_ms: int, replies: list[tuple[Any, Any]], sends: list[Any]
    ) -> None:
        self.end_offset = end_offset
        self.deadline_ms = deadline_ms
        self.replies = replies
        self.sends = sends
        self.timed_out = False


class Shard(Generic[M]):
    __slots__ = (
        "failed",
        "index",
        "leader_epoch",
        "loading",
        "machine",
        "name",
        "partition",
        "pending",
        "waiting",
        "written_end",
    )

    def __init__(self, index: int, partition: Partition, machine: M) -> None:
        self.index: Final = index
        self.partition: Final = partition
        self.leader_epoch: Final = partition.leader_epoch
        self.machine: Final = machine
        self.name: Final = str(partition.topic_partition)
        self.loading: asyncio.Task[None] | None = None
        self.failed = False
        # The end of the last batch that the state holds; answers wait until it is committed.
        self.written_end = 0
        self.pending: deque[Pending] = deque()  # in the order of end_offset
        self.waiting: set[Ticket] = set()  # every ticket that has no answer yet

    @property
    def is_active(self) -> bool:
        return self.loading is None and not self.failed

    def resolve(self, ticket: Any, value: Any) -> None:
        self.waiting.discard(ticket)
        ticket.resolve(value)
