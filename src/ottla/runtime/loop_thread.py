"""An event loop in a thread of its own: for callers who block, and for what must go on while they do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.runtime.loop import new_event_loop

__all__ = ["LoopThread"]

T = TypeVar("T")

_STOP_SECONDS = 10.0


class LoopThread:
    """Runs from `start` to `stop`. A daemon: it does not keep a process alive that has ended otherwise."""

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
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and self._pid == os.getpid()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs it on this loop; `asyncio.wrap_future` lets another loop wait for it."""
        if not self.is_running or self._loop is None:
            coroutine.close()
            why = "does not survive a fork; make it anew in the new process"
            raise RuntimeError(f"{self._name} {why if self._pid != os.getpid() else 'is not running'}")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs it on this loop and blocks until it is done. An interrupt cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Calls on this loop, soon, from any thread. Nothing happens once it has stopped."""
        if self.is_running and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *args)

    def stop(self) -> None:
        if self.is_running and self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_SECONDS)
        self._thread = None
