"""The event loop of a process, or of a thread: uvloop where it is installed, asyncio's own otherwise."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_STOP_SECONDS = 10.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run `main` to its end on a fresh loop; cancel what it leaves behind and close the loop."""
    with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
        return runner.run(main)


def check_loop(home: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Raise RuntimeError if the caller runs on another loop than `home`: it would wait for tasks that never
    run there.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is not home:
        raise RuntimeError(
            f"{what} was started on another event loop, or before a fork: it belongs to the loop and the "
            "process that have started it; make another one here"
        )


_under_way: set[asyncio.Future[Any]] = set()


async def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also if the caller is cancelled meanwhile, or again and again, as a scope
    of anyio does; the caller then waits no longer.
    """
    task = asyncio.ensure_future(coroutine)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    return await asyncio.shield(task)


class LoopThread:
    """An event loop in a daemon thread, from `start` to `stop`, for callers that block.

    As a daemon it does not keep a process alive whose main thread has ended.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def start(self) -> None:
        ready = threading.Event()
        self._loop = new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, args=(ready,), name=self._name, daemon=True)
        self._thread.start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(ready.set)
        try:
            while not self._runs_until_stopped():
                pass
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _runs_until_stopped(self) -> bool:
        """Run the loop; False if a task has called `sys.exit`, which is the outcome of that task: callers of
        all others would wait without end for a loop that has ended.
        """
        assert self._loop is not None
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            return False
        return True

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and self._pid == os.getpid()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on this loop; `asyncio.wrap_future` lets another loop wait for it."""
        if not self.is_running or self._loop is None:
            coroutine.close()
            why = "does not survive a fork; create another one in the new process"
            raise RuntimeError(f"{self._name} {why if self._pid != os.getpid() else 'is not running'}")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this loop and block until it is done. An interrupt cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Schedule a call on this loop from any thread. Does nothing once the loop has stopped."""
        if self.is_running and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *args)

    def stop(self) -> None:
        if self.is_running and self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_SECONDS)
        self._thread = None
