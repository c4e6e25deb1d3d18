"""Bulk work of one kind, one piece after the other, each in turns.

A piece of work is a coroutine that gives way by `Turns` now and then. A queue runs its pieces in the order in
which they came and never two at once, so that a piece may rely on what the piece before has left. The first
turn of a piece runs at once if the queue is idle: work that fits in one turn is done when `submit` returns,
and only what takes longer costs a task.

Pure code has no coroutines; it writes its bulk work as a generator that yields after each item (`Steps`),
and its driver runs that in turns (`in_turns`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from ottla.runtime.clock import Clock
from ottla.runtime.steps import Steps
from ottla.runtime.turns import Turns

T = TypeVar("T")

# Several queues may have a turn in the same turn of the loop.
_BUDGET_MS: Final = 2.5


async def in_turns(steps: Steps[T], turns: Turns) -> T:
    """Run a generator to its end, and give way between its items when the turn is over."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if turns.is_due():
            await turns.pause()


class WorkQueue:
    """Belongs to the event loop. `turns` are those of the piece of work that runs."""

    def __init__(self, clock: Clock, name: str, *, budget_ms: float = _BUDGET_MS) -> None:
        self._name: Final = name
        self.turns: Final = Turns(clock, budget_ms=budget_ms)
        self._waiting: deque[tuple[Callable[[], Coroutine[Any, Any, Any]], asyncio.Future[Any]]] = deque()
        self._is_running = False
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self._is_running

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Run a piece of work after those before it; the future gets its result or its error. A piece that
        has begun runs to its end, also if the future is cancelled.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.cancel()
            return future
        self._waiting.append((work, future))
        if not self._is_running:
            self._is_running = True
            self.turns.begin()
            rest: _Begun | None = None
            try:
                rest = self._run_without_task()
            finally:
                self._is_running = rest is not None
            if rest is not None:
                self._task = asyncio.get_running_loop().create_task(self._run(rest), name=self._name)
        return future

    def _run_without_task(self) -> _Begun | None:
        """Run pieces until all are done (None), or one has to wait: that one."""
        while self._waiting:
            work, future = self._waiting.popleft()
            if future.cancelled():
                continue
            piece = _Begun(work(), future)
            if not piece.begin():
                return piece
        return None

    async def _run(self, begun: _Begun) -> None:
        piece: _Begun | None = begun
        try:
            while piece is not None:
                await piece
                if self.turns.is_due() and self._waiting:
                    await self.turns.pause()
                piece = self._run_without_task()
        finally:
            self._is_running = False
            self._task = None
            # None is left, unless the task was cancelled: then no other will run them.
            self._drop_waiting()

    async def close(self) -> None:
        """Stop the piece that runs where it gives way, and drop the others."""
        self._is_closed = True
        self._drop_waiting()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _drop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            future.cancel()


class _Begun:
    """A piece of work whose first turn runs outside of a task; awaiting it does the rest.

    Between its turns it must await futures only, as the loop's own primitives do: in its first turn there is
    no current task.
    """

    __slots__ = ("_coroutine", "_future", "_yielded")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], future: asyncio.Future[Any]) -> None:
        self._coroutine = coroutine
        self._future = future
        self._yielded: Any = None

    def begin(self) -> bool:
        """Run the first turn; true if the work is done."""
        try:
            self._yielded = self._coroutine.send(None)
        except StopIteration as end:
            self._end(end.value)
        except Exception as error:
            self._fail(error)
        except asyncio.CancelledError as error:
            self._give_up(error)
        except BaseException:
            self._future.cancel()
            raise
        else:
            return False
        return True

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, yielded = self._coroutine, self._yielded
        try:
            while True:
                try:
                    value = yield yielded
                except GeneratorExit:
                    raise
                except BaseException as thrown:
                    yielded = coroutine.throw(thrown)
                else:
                    yielded = coroutine.send(value)
        except StopIteration as end:
            self._end(end.value)
        except Exception as error:
            self._fail(error)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                self._future.cancel()
                raise
            self._give_up(error)
        except BaseException:
            self._future.cancel()
            raise
        finally:
            coroutine.close()

    def _end(self, result: Any) -> None:
        if not self._future.done():
            self._future.set_result(result)

    def _fail(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def _give_up(self, error: asyncio.CancelledError) -> None:
        """Fail because something that the work awaits was cancelled. Its caller was not, and must not take
        that for its own end.
        """
        failure = RuntimeError("the work has awaited something that was cancelled")
        failure.__cause__ = error
        self._fail(failure)


def _is_cancelled() -> bool:
    """Whether the current task itself was cancelled, rather than something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
