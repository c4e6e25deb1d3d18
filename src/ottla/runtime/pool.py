"""Threads for calls that may block: fsync, cold reads, compaction, uploads.

A call that was accepted runs to its end even if the coroutine that waits for it is cancelled: a cancelled
waiter does not stop a write half-way, and its slot is taken until the write is over. The number of accepted
calls is bounded; further callers wait for a slot and hold no memory beyond their own coroutine.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Protocol, TypeVar

T = TypeVar("T")


def thread_lock() -> AbstractContextManager[bool]:
    """A lock between threads, for what takes no longer than a write of a small file."""
    return threading.Lock()


class CallOnce(Generic[T]):
    """A call that is made once, by the first thread that comes; another one waits for its end. So work that
    was given to a pool can be finished by a thread that cannot wait for its turn there.
    """

    __slots__ = ("_fn", "_lock", "_outcome")

    def __init__(self, fn: Callable[[], T]) -> None:
        # None once the outcome is known: what it refers to, often its owner, may go then.
        self._fn: Callable[[], T] | None = fn
        self._lock: Final = threading.Lock()
        # What the call returned, in a tuple, or raised; None before it was made.
        self._outcome: tuple[T] | Exception | None = None

    def __call__(self) -> T:
        """Return, or raise, what the call does."""
        with self._lock:
            if self._fn is not None:
                try:
                    self._outcome = (self._fn(),)
                except Exception as error:
                    self._outcome = error
                self._fn = None
        outcome = self._outcome
        assert outcome is not None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome[0]

    def settle(self, result: T) -> None:
        """Have `result` in place of a call that was not made yet; one that is being made is waited for."""
        with self._lock:
            if self._fn is not None:
                self._outcome = (result,)
                self._fn = None


class Pool(Protocol):
    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Call `fn(*args)` off the event loop and return or raise what it does."""
        ...

    def close(self) -> None:
        """Accept nothing more and wait for what is running. Closing twice is harmless."""
        ...


class ThreadPool:
    """`workers` threads, started as they are needed, with up to `backlog` further calls waiting for one.

    Belongs to the event loop that first waits on it.
    """

    __slots__ = ("_executor", "_slots", "accepted", "calls", "waiting", "workers")

    def __init__(self, workers: int = 4, *, backlog: int = 256, name: str = "ottla") -> None:
        if workers < 1 or backlog < 0:
            raise ValueError(f"a pool needs a worker and no negative backlog, got {workers=} {backlog=}")
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._slots = asyncio.Semaphore(workers + backlog)
        self.workers: Final = workers
        # Calls that have a slot: they run, or wait for a thread. Never above `workers + backlog`.
        self.accepted = 0
        # Calls that wait for a slot, and those that have had one.
        self.waiting = 0
        self.calls = 0

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.calls += 1
        try:
            call = asyncio.get_running_loop().run_in_executor(self._executor, fn, *args)
        except BaseException:
            self._slots.release()
            raise
        self.accepted += 1
        call.add_done_callback(self._release)
        try:
            return await asyncio.shield(call)
        finally:
            del call  # which has the error that it raised, and with it this frame

    def _release(self, _: asyncio.Future[Any]) -> None:
        self.accepted -= 1
        self._slots.release()

    def close(self) -> None:
        self._executor.shutdown(wait=True)

    def abandon(self) -> None:
        """Accept nothing more and wait for nothing: a call that is running may never end."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def separate_pool(pool: Pool, workers: int, name: str) -> ThreadPool | None:
    """Threads apart from those of `pool`, for calls that may hang; None where `pool` has no threads."""
    return ThreadPool(workers, name=name) if isinstance(pool, ThreadPool) else None


class InlinePool:
    """Calls the function at once, on the event loop, for tests and for short-lived tools."""

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed = False

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        if self._closed:
            raise RuntimeError("the pool is closed")
        return fn(*args)

    def close(self) -> None:
        self._closed = True
