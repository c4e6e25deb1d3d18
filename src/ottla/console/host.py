"""A console inside of a node: on an event loop in a thread of its own.

A search decodes thousands of messages, and a list sorts thousands of topics: on the node's loop, requests of
clients would wait for that. So the node's loop only passes requests and responses on. Responses that are
streams are read across, part by part, as fast as the browser takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from ottla.console.console import Console, console_routes
from ottla.runtime.http_server import HttpMount, HttpServerResponse
from ottla.runtime.loop import LoopThread
from ottla.runtime.runtime import Runtime

_POOL_WORKERS: Final = 2


async def mount_in_thread(make: Callable[[Runtime], Console]) -> HttpMount:
    """Start a console in a thread, and return its routes for the server of the calling loop. `make` is
    called on the console's loop.
    """
    thread = LoopThread("ottla-console")
    thread.start()

    async def create() -> tuple[Runtime, Console]:
        runtime = Runtime.real(pool_workers=_POOL_WORKERS, guest=True)
        try:
            return runtime, make(runtime)
        except BaseException:
            runtime.close()
            raise

    try:
        runtime, console = await asyncio.wrap_future(thread.submit(create()))
    except BaseException:
        thread.stop()
        raise

    async def run(answer: Coroutine[Any, Any, HttpServerResponse]) -> HttpServerResponse:
        response = await asyncio.wrap_future(thread.submit(answer))
        if not isinstance(response.body, bytes):
            response.body = _PassedOn(thread, _Body(response.body))
        return response

    async def close() -> None:
        await asyncio.wrap_future(thread.submit(console.close()))
        await asyncio.get_running_loop().run_in_executor(None, thread.stop)
        runtime.close()

    return HttpMount(console_routes(console, run), close)


class _Body:
    """A stream on the console's loop. Its parts are read one at a time, and it is closed once none is being
    read: a read that is cancelled takes a moment to end.
    """

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts: Final = parts
        self._lock: asyncio.Lock | None = None

    def _locked(self) -> asyncio.Lock:
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    async def next(self) -> bytes | None:
        """Return the next part; None at the end."""
        async with self._locked():
            return await anext(self._parts, None)

    async def close(self) -> None:
        async with self._locked():
            if (aclose := getattr(self._parts, "aclose", None)) is not None:
                await aclose()


class _PassedOn:
    """A stream of the console for the server's loop. A generator would not do: one that was never begun, as
    for HEAD, closes without a word to the console.
    """

    def __init__(self, thread: LoopThread, body: _Body) -> None:
        self._thread: Final = thread
        self._body: Final = body

    def __aiter__(self) -> _PassedOn:
        return self

    async def __anext__(self) -> bytes:
        part = await asyncio.wrap_future(self._thread.submit(self._body.next()))
        if part is None:
            raise StopAsyncIteration
        return part

    async def aclose(self) -> None:
        await asyncio.wrap_future(self._thread.submit(self._body.close()))
