"""An event loop in its own thread for the heartbeats of a group member, so that they continue while the
user's loop is busy.

A member that sends no heartbeats is considered dead, its partitions go to other members, and its work is done
twice. User code that computes for a minute on the event loop must not cause that. So heartbeats have a
thread, a loop and connections of their own; only calls cross over. In the simulator, which has one thread,
they share the loop, and nothing else changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.network_client import CoordinatorType, NetworkClient
from ottla.client.settings import ConnectionConfig
from ottla.runtime.loop import LoopThread
from ottla.runtime.runtime import Runtime


class HeartbeatThread:
    """`post` calls a function in the thread, `call_back` one on the user's loop; only the thread may use
    `coordinator`.
    """

    def __init__(
        self, runtime: Runtime, config: ConnectionConfig, group_id: str, *, timeout_ms: int, threaded: bool
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._group_id = group_id
        self._timeout_ms = timeout_ms
        self._thread = LoopThread("ottla-heartbeats") if threaded else None
        self._home: asyncio.AbstractEventLoop | None = None
        self._cluster: NetworkClient | None = None
        self._task: asyncio.Task[None] | None = None
        self.coordinator: CoordinatorClient

    async def start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `main` in the thread until `stop`."""
        self._home = asyncio.get_running_loop()
        if self._thread is None:
            self._begin(main)
        else:
            self._thread.start()
            await asyncio.wrap_future(self._thread.submit(self._begin_in_thread(main)))

    async def _begin_in_thread(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin(main)

    def _begin(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._cluster = NetworkClient(self._runtime, self._config)
        self.coordinator = CoordinatorClient(
            self._cluster, CoordinatorType.GROUP, self._group_id, timeout_ms=self._timeout_ms
        )
        self._task = asyncio.get_running_loop().create_task(main(), name="ottla-heartbeats")

    def post(self, call: Callable[..., object], *args: Any) -> None:
        if self._thread is not None:
            self._thread.post(call, *args)
        elif self._home is not None:
            self._home.call_soon(call, *args)

    def call_back(self, call: Callable[..., object], *args: Any) -> None:
        """Call a function on the user's loop, unless it is closed."""
        assert self._home is not None
        if self._thread is None:
            self._home.call_soon(call, *args)
        elif not self._home.is_closed():
            self._home.call_soon_threadsafe(call, *args)

    async def stop(self) -> None:
        if self._home is None:
            return
        if self._thread is None:
            await self._end()
        elif self._thread.is_running:
            await asyncio.wrap_future(self._thread.submit(self._end()))
            self._thread.stop()

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._cluster is not None:
            await self._cluster.close()
