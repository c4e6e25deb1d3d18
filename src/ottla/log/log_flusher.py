"""Syncs of logs in the pool: one at a time for each log, many logs and many appends by one.

Two kinds of callers wait for a sync. One has a log to make durable, perhaps only its closed segments, which
may take long: `flush` does that by itself. The others have appended, and their records count once they are
durable: producers, followers, coordinators. For those there is `commit`, a **group commit**: what is appended
to a log while it is being synced waits, and the next sync has all of it, from all producers; and the logs
that wait are synced in a few threads, each of which takes its share of them. So the number of syncs follows
from the disk and from the number of logs that are written to, not from the number of appends, and a call of
the pool, which costs more than a sync of a quick disk, is shared too.

There are no rounds that end with their slowest sync: a thread that is done takes what waits by then. A log
that hangs holds up itself and those of its share.

Invariant: a commit that has succeeded covers every append before it was asked for, unless these were
truncated since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ottla.log.directory.directory import LogDirectory
from ottla.log.local_log import FlushPlan
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.clock import Clock
from ottla.runtime.pool import Pool

_log = logging.getLogger(__name__)

# How many threads of the pool sync at a time for one directory, and how many logs one call has at most: they
# are planned in one turn of the event loop.
_GROUPS_AT_ONCE: Final = 4
_LOGS_IN_GROUP: Final = 64


class _Commit(NamedTuple):
    log: UnifiedLog
    plan: FlushPlan
    done: asyncio.Future[None]


class LogFlusher:
    __slots__ = ("_clock", "_flushing", "_groups", "_is_begun", "_observe", "_pool", "_tasks", "_waiting")

    def __init__(self, pool: Pool, clock: Clock, observe: Callable[[int], None]) -> None:
        """`observe` gets the nanoseconds that each flush of a log has taken."""
        self._pool: Final = pool
        self._clock: Final = clock
        self._observe: Final = observe
        # Logs that are being flushed, each with the event that is set at the end.
        self._flushing: dict[UnifiedLog, asyncio.Event] = {}
        # Logs that are to be committed, and what their callers wait for.
        self._waiting: dict[UnifiedLog, asyncio.Future[None]] = {}
        # How many groups are in the pool: a disk that hangs does not hold up the logs of another one.
        self._groups: dict[LogDirectory, int] = {}
        self._is_begun = False
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def flush(self, log: UnifiedLog, upto: int | None = None) -> None:
        """Make a log durable below `upto`, the log end if None."""
        while (running := self._flushing.get(log)) is not None:
            await running.wait()
        plan = log.prepare_flush(upto)
        if plan is None:
            return
        self._flushing[log] = asyncio.Event()
        try:
            while plan is not None:
                (outcome,) = await self._pool.run(self._run, [(log, plan)])
                if isinstance(outcome, Exception):
                    raise outcome
                self._observe(outcome)
                plan = log.prepare_flush(plan.upto) if log.complete_flush(plan) else None
        finally:
            self._end(log)

    def commit(self, log: UnifiedLog) -> asyncio.Future[None]:
        """Make durable what the log has now, together with others. All who ask until that begins share the
        result; wait for it with `asyncio.shield`.
        """
        done = self._waiting.get(log)
        if done is None:
            loop = asyncio.get_running_loop()
            done = self._waiting[log] = loop.create_future()
            self._begin_soon(loop)
        return done

    def _begin_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        # After the other requests of this turn.
        if not self._is_begun:
            self._is_begun = True
            loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Have the threads that are free share the logs that wait."""
        self._is_begun = False
        ready: dict[LogDirectory, list[UnifiedLog]] = {}
        for log in self._waiting:
            if log not in self._flushing:
                ready.setdefault(log.directory, []).append(log)
        for directory, logs in ready.items():
            free = _GROUPS_AT_ONCE - self._groups.get(directory, 0)
            while logs and free:
                size = min(-(-len(logs) // free), _LOGS_IN_GROUP)
                group = self._plan(logs[:size])
                logs = logs[size:]
                if group:
                    free -= 1
                    self._groups[directory] = self._groups.get(directory, 0) + 1
                    task = asyncio.create_task(self._commit_group(directory, group), name="group commit")
                    self._tasks[task] = None
                    task.add_done_callback(self._tasks.pop)

    def _plan(self, logs: Sequence[UnifiedLog]) -> list[_Commit]:
        group = []
        for log in logs:
            done = self._waiting.pop(log)
            try:
                plan = log.prepare_flush()
                if plan is None and log.is_flush_due:
                    raise KafkaError(
                        ErrorCode.KAFKA_STORAGE_ERROR, f"{log.dir} cannot be synced while it is truncated"
                    )
            except Exception as error:
                _settle(done, error)
                continue
            if plan is None:
                _settle(done)
            else:
                self._flushing[log] = asyncio.Event()
                group.append(_Commit(log, plan, done))
        return group

    async def _commit_group(self, directory: LogDirectory, group: Sequence[_Commit]) -> None:
        outcomes: Sequence[int | Exception]
        try:
            outcomes = await self._pool.run(self._run, [(log, plan) for log, plan, _ in group])
        except Exception as error:  # the pool is closed
            outcomes = [error] * len(group)
        self._groups[directory] -= 1
        for (log, plan, done), outcome in zip(group, outcomes, strict=True):
            self._end(log)
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                self._observe(outcome)
                if log.complete_flush(plan) or (log.is_flush_due and log.recovery_point < plan.upto):
                    # A segment was closed or the log truncated meanwhile.
                    self.commit(log).add_done_callback(partial(_copy_outcome, done))
                else:
                    _settle(done)
            except Exception as error:
                _settle(done, error)

    def _run(self, flushes: Sequence[tuple[UnifiedLog, FlushPlan]]) -> list[int | Exception]:
        """Flush logs, in any thread: for each how long that took, in nanoseconds, or its error."""
        outcomes: list[int | Exception] = []
        for log, plan in flushes:
            began_ns = self._clock.monotonic_ns()
            try:
                log.run_flush(plan)
            except Exception as error:
                outcomes.append(error)
            else:
                outcomes.append(self._clock.monotonic_ns() - began_ns)
        return outcomes

    def _end(self, log: UnifiedLog) -> None:
        self._flushing.pop(log).set()
        if self._waiting:
            self._begin_soon(asyncio.get_running_loop())


def _settle(done: asyncio.Future[None], error: BaseException | None = None) -> None:
    if done.done():
        return  # by a caller that was cancelled
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        done.exception()  # also where no caller waits any more


def _copy_outcome(done: asyncio.Future[None], other: asyncio.Future[None]) -> None:
    _settle(done, other.exception())
