"""An event loop with virtual time that runs many simulated processes.

Each callback belongs to a process, by the context in which it was scheduled: what a process starts is its
own. A process can be paused, and its callbacks wait; or killed, and they never run, as if it had ended
between two instructions. The process that runs next is drawn from the seed; within a process the order is
asyncio's. When no process can run, time jumps to the next timer.

Invariant: the same seed and the same program give the same run, step for step. Nothing here waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import heapq
import random
import struct
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Final, TypeVar, TypeVarTuple

from ottla.runtime.tasks import close_unstarted

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")

# Steps between two garbage collections, while `World` has turned the automatic ones off.
_COLLECT_EVERY: Final = 200_000
_FACTS: Final = struct.Struct("<IQIII")

_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("ottla-sim-process", default=None)


class SimDeadlock(AssertionError):
    """All processes wait, and there is no timer that would wake one."""


class SimOverrun(AssertionError):
    """The run took more steps than it should need: some code loops without progress."""


class Process:
    """A simulated process, the unit of pausing and killing. `after_step` is called after each callback."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0  # in the order in which a loop has got them
        self.paused = False
        self.dead = False
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in the order of their start
        self.after_step: Callable[[], None] | None = None
        self.steps = 0
        context = contextvars.Context()
        context.run(_current.set, self)
        self.context = context

    def __repr__(self) -> str:
        return f"<process {self.name}{' dead' if self.dead else ' paused' if self.paused else ''}>"


def current_process() -> Process | None:
    return _current.get()


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, seed: int | str, *, max_steps: int = 50_000_000) -> None:
        self._random = random.Random(f"{seed}/loop")
        self._now_ns = 0
        self._timers: list[tuple[int, int, asyncio.TimerHandle, Process]] = []
        self._timer_number = 0
        self.world = Process("world")
        self._processes: list[Process] = [self.world]
        self._process_count = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._max_steps = max_steps
        self.steps = 0
        # Over every step: when it ran, in which process, and how much was ready.
        self.digest = 0
        # Exceptions that no task or future handled: (process name, context of the handler).
        self.errors: list[tuple[str, dict[str, Any]]] = []

    # Processes

    def add(self, process: Process) -> None:
        self._process_count += 1
        process.number = self._process_count
        self._processes.append(process)

    def kill(self, process: Process) -> None:
        """End a process at this moment.

        The `finally` blocks of its coroutines run, but have no effect outside of it, as the process is dead.
        """
        process.dead = True
        for handle in process.ready:
            for arg in handle._args or ():
                if asyncio.isfuture(arg) and arg.done() and not arg.cancelled():
                    arg.exception()  # this callback would have handled it
        process.ready.clear()
        self._processes.remove(process)
        tasks, process.tasks = list(process.tasks), {}
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # it has just failed, and what waited for it is gone with the process
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())

    def spawn(self, process: Process, main: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task in another process."""
        return self.create_task(main, name=name, context=process.context.copy())

    # Time

    def time(self) -> float:
        return self._now_ns / 1e9

    @property
    def now_ns(self) -> int:
        return self._now_ns

    # Scheduling

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        process = context.get(_current) or self.world
        if not process.dead:
            process.ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at_ns(self._now_ns + max(round(delay * 1e9), 0), callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at_ns(round(when * 1e9), callback, args, context)

    def _call_at_ns(
        self,
        when_ns: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.TimerHandle(when_ns / 1e9, callback, args, self, context)
        process = context.get(_current) or self.world
        if not process.dead:
            self._timer_number += 1
            heapq.heappush(self._timers, (when_ns, self._timer_number, handle, process))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer stays in the heap and is skipped."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        context = contextvars.copy_context() if context is None else context
        process = context.get(_current) or self.world
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        if process.dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(coro)
        else:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    # Running

    def run_until_complete(self, future: Any) -> Any:
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if not task.done():
            raise RuntimeError("the loop was stopped before the end")
        return task.result()

    def run_forever(self) -> None:
        with self.running():
            while not self._stopping:
                self._step()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop without a step: where processes are killed after the run, the `finally` blocks
        of their coroutines find this loop, and asyncio makes no real one for them.
        """
        assert not self._running, "the loop runs already"
        self._running = True
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            self._stopping = self._running = False
            asyncio._set_running_loop(None)

    def stop(self) -> None:
        self._stopping = True

    def _step(self) -> None:
        if self._timers and self._timers[0][0] <= self._now_ns:
            self._wake_timers()
        runnable = [process for process in self._processes if process.ready and not process.paused]
        if not runnable:
            self._jump()
            return
        self.steps += 1
        if not self.steps % _COLLECT_EVERY:
            gc.collect()
        if self.steps > self._max_steps:
            raise SimOverrun(f"{self.steps} steps, and it is only {self.time():.3f} s")
        process = runnable[0] if len(runnable) == 1 else self._random.choice(runnable)
        facts = (self.digest, self._now_ns, process.number, len(process.ready), len(self._timers))
        self.digest = zlib.crc32(_FACTS.pack(*facts))
        handle = process.ready.popleft()
        if not handle.cancelled():
            process.steps += 1
            handle._run()
            if process.after_step is not None and not process.dead:
                process.after_step()

    def _wake_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self._now_ns:
            _, _, handle, process = heapq.heappop(self._timers)
            if not process.dead and not handle.cancelled():
                process.ready.append(handle)

    def _jump(self) -> None:
        while self._timers and (self._timers[0][2].cancelled() or self._timers[0][3].dead):
            heapq.heappop(self._timers)
        if not self._timers:
            raise SimDeadlock(f"at {self.time():.3f} s all wait: {self._processes}")
        self._now_ns = max(self._now_ns, self._timers[0][0])

    # Other methods that asyncio needs

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Kill all processes that are left, in order."""
        for process in list(self._processes):
            self.kill(process)
        self._timers.clear()
        self._closed = True

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Do nothing: there is no debug mode."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, Exception):
            return  # the power was lost inside an operation
        process = current_process()
        self.errors.append(("world" if process is None else process.name, context))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: asynchronous generators end with their process."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there is no executor; blocking calls run in the pool of the process."""


def _close(coroutine: Any) -> None:
    """Close a coroutine at the point at which it waits."""
    close_unstarted(coroutine)
    # Errors of a killed process during its clean-up do not matter.
    with contextlib.suppress(BaseException):
        coroutine.close()
