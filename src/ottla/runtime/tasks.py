"""The background tasks of a node: none of them ends unnoticed.

A long-lived loop runs under a `TaskSupervisor`. If it ends by an error, the error is logged with its cause,
and then either the loop is started again after a back-off, which is safe where all its state is outside of it
and consistent at each await, or the node ends (`FailurePolicy.END_NODE`, Kafka's fault handler): for what
must not continue from a state in the middle. The supervisor lists its tasks with their state, their restarts
and their last error.

A cancellation that the owner did not ask for counts as an error: a future that a loop waits for may be
cancelled by other code, and that would end the loop without a word.

Short tasks, which end with a request or a single piece of work, need no supervisor: their callers, or a
callback, get the error. `tests/house` has the list of them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from ottla.runtime.clock import Clock

_log = logging.getLogger(__name__)

T = TypeVar("T")

Work = Callable[[], Awaitable[None]]

# A timer further out than this is as good as none; loops take no timers of centuries.
_MAX_PAUSE_MS: Final = 7 * 24 * 60 * 60 * 1000
_MIN_PAUSE_MS: Final = 1
_FIRST_BACKOFF_MS: Final = 100
_MAX_BACKOFF_MS: Final = 30_000
# A task that ran for this long is healthy: its next error starts with the first back-off again.
_HEALTHY_MS: Final = 60_000
# How often the same passing lack is logged for one periodic task.
_LACK_LOG_INTERVAL_MS: Final = 60_000


class FailurePolicy(Enum):
    """What follows the error of a task."""

    RESTART = "restart"
    END_NODE = "end node"


class TaskState(Enum):
    RUNNING = "running"
    BACKING_OFF = "backing off"
    """It ended by an error, and is started again after a pause."""
    FAILED = "failed"
    """It ended by an error, and the node ends."""
    ENDED = "ended"
    """Its work is done, or its owner stopped it."""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as an operator sees it. `restarts` counts its errors, `last_error_ms` is a wall-clock time."""

    name: str
    state: TaskState
    restarts: int
    last_error: str | None
    last_error_ms: int | None


class SupervisedTask:
    """One task of a supervisor, from its start to its last end. Its restarts do not make another one."""

    __slots__ = ("_last_error", "_last_error_ms", "_restarts", "_state", "_stopping", "_task", "name")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._state = TaskState.RUNNING
        self._restarts = 0
        self._last_error: str | None = None
        self._last_error_ms: int | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has ended and is not started again; true as soon as its work has returned."""
        return self._state in (TaskState.ENDED, TaskState.FAILED)

    @property
    def status(self) -> TaskStatus:
        return TaskStatus(self.name, self._state, self._restarts, self._last_error, self._last_error_ms)

    def cancel(self) -> None:
        """Have it end, without a restart; harmless if it has ended."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Have it end, and return once it has."""
        self.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


class TaskSupervisor:
    """`on_fatal` ends the node, with the reason. Belongs to the event loop.

    `is_lack` recognizes the errors of a resource that ran out and may come back, such as room on a disk: they
    say all there is to know, and every round would repeat them.
    """

    def __init__(
        self,
        clock: Clock,
        on_fatal: Callable[[str], None],
        is_lack: Callable[[Exception], bool] = lambda _: False,
    ) -> None:
        self._clock: Final = clock
        self._on_fatal: Final = on_fatal
        self._is_lack: Final = is_lack
        # In the order of their start. Tasks that have ended are not here; one that failed stays.
        self._tasks: dict[SupervisedTask, None] = {}

    def start(
        self, name: str, work: Work, *, on_error: FailurePolicy = FailurePolicy.RESTART
    ) -> SupervisedTask:
        """Run `work` until it returns or its task is stopped; what follows an error is `on_error`."""
        return self._begin(SupervisedTask(name), work, on_error)

    def every(
        self, interval_ms: Callable[[], int], work: Work, name: str, *, first_ms: int | None = None
    ) -> SupervisedTask:
        """Do the work each time the interval has passed, which is read before each pause as it may change;
        `first_ms` is the pause before the first time. A round that fails is logged, and the next one comes
        as usual.
        """
        task = SupervisedTask(name)
        lack_logged_ms: int | None = None

        async def repeat() -> None:
            nonlocal lack_logged_ms
            pause = interval_ms() if first_ms is None else first_ms
            while True:
                await asyncio.sleep(min(max(pause, _MIN_PAUSE_MS), _MAX_PAUSE_MS) / 1000)
                try:
                    await work()
                except asyncio.CancelledError as error:
                    if _is_wanted(task):
                        raise
                    self._note_error(task, error)
                    _log.error("%s was cancelled by other code; it will be tried again", name, exc_info=error)
                except Exception as error:
                    self._note_error(task, error)
                    if not self._is_lack(error):
                        _log.exception("%s failed; it will be tried again", name)
                    else:
                        now_ms = self._clock.monotonic_ns() // 1_000_000
                        if lack_logged_ms is None or now_ms - lack_logged_ms >= _LACK_LOG_INTERVAL_MS:
                            lack_logged_ms = now_ms
                            _log.error("%s failed; it will be tried again: %s", name, error)
                pause = interval_ms()

        return self._begin(task, repeat, FailurePolicy.RESTART)

    def statuses(self) -> list[TaskStatus]:
        """All tasks that have not ended, and those that failed."""
        return [task.status for task in self._tasks]

    async def stop(self, tasks: Iterable[SupervisedTask] | None = None) -> None:
        """Have these tasks end, or all, and return once they have."""
        stopped = list(self._tasks if tasks is None else tasks)
        for task in stopped:
            task.cancel()
        await asyncio.gather(*(task.stop() for task in stopped))

    def _begin(self, task: SupervisedTask, work: Work, on_error: FailurePolicy) -> SupervisedTask:
        self._tasks[task] = None
        run = self._run(task, work, on_error)
        task._task = asyncio.get_running_loop().create_task(run, name=task.name)
        # A task that is cancelled before its first step never gets to the end of `_run`.
        task._task.add_done_callback(lambda _: self._on_end(task))
        return task

    async def _run(self, task: SupervisedTask, work: Work, on_error: FailurePolicy) -> None:
        loop = asyncio.get_running_loop()
        backoff_ms = _FIRST_BACKOFF_MS
        while True:
            started = loop.time()
            try:
                await work()
                task._state = TaskState.ENDED
                return
            except asyncio.CancelledError as error:
                if _is_wanted(task):
                    raise
                failure: BaseException = error
            except Exception as error:
                failure = error
            self._note_error(task, failure)
            if on_error is FailurePolicy.END_NODE:
                task._state = TaskState.FAILED
                _log.critical("%s failed: the node ends", task.name, exc_info=failure)
                self._on_fatal(f"{task.name} failed: {_described(failure)}")
                return
            if loop.time() - started >= _HEALTHY_MS / 1000:
                backoff_ms = _FIRST_BACKOFF_MS
            task._state = TaskState.BACKING_OFF
            _log.error("%s failed; it starts again in %d ms", task.name, backoff_ms, exc_info=failure)
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, _MAX_BACKOFF_MS)
            task._state = TaskState.RUNNING

    def _note_error(self, task: SupervisedTask, error: BaseException) -> None:
        task._restarts += 1
        task._last_error = _described(error)
        task._last_error_ms = self._clock.wall_ms()

    def _on_end(self, task: SupervisedTask) -> None:
        if task._state is not TaskState.FAILED:
            task._state = TaskState.ENDED
            self._tasks.pop(task, None)


class Deferred(Generic[T]):
    """A coroutine that is made when it is awaited: one that is never awaited leaves nothing behind."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, Any, T]:
        return self._make().__await__()


def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task. If it has not begun, the coroutines that it was to await are closed: none would."""
    if isinstance(task, asyncio.Task):
        _close_arguments(task.get_coro())
    task.cancel()


def close_unstarted(coroutine: object) -> None:
    """Close a coroutine that has not begun, and those that are its arguments; no other is touched."""
    if _is_unstarted(coroutine):
        _close_arguments(coroutine)
        coroutine.close()  # type: ignore[attr-defined]


def _close_arguments(coroutine: object) -> None:
    if _is_unstarted(coroutine):
        for argument in coroutine.cr_frame.f_locals.values():  # type: ignore[attr-defined]
            close_unstarted(argument)


def _is_unstarted(coroutine: object) -> bool:
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


def _is_wanted(task: SupervisedTask) -> bool:
    """Whether a cancellation was asked for: by the owner, or by a loop that cancels all its tasks."""
    current = asyncio.current_task()
    return task._stopping or (current is not None and current.cancelling() > 0)


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
