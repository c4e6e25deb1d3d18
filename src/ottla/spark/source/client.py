"""The source's client, shared by all readers of a process: an event loop and connections to a cluster.

Spark's workers run task after task, and a reader that is unpickled for each task must not open new
connections each time. Clients are kept by their settings, on an event loop in its own thread that continues
to receive while Spark takes rows. A forked process creates its own: a table of another process is discarded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ottla.client.admin.requests import AdminRequests
from ottla.client.errors import BootstrapFailed
from ottla.client.network_client import NetworkClient
from ottla.client.settings import ConnectionConfig
from ottla.protocol.errors import KafkaError
from ottla.runtime.loop import LoopThread
from ottla.runtime.runtime import Runtime

T = TypeVar("T")

MAX_CLIENTS = 8
FIRST_CONNECT_MS = 10_000

_clients: dict[ConnectionConfig, SourceClient] = {}
_owner = 0


class SourceClient:
    """Connections to one cluster; `call` and `submit` run coroutines on their event loop."""

    def __init__(self, config: ConnectionConfig) -> None:
        self._thread = LoopThread("ottla-spark")
        self._thread.start()
        self._runtime = Runtime.real(pool_workers=1)
        self.cluster = NetworkClient(self._runtime, config)
        self._was_reached = False

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return self._thread.submit(coroutine)

    def caller(self, timeout_ms: int) -> AdminRequests:
        return AdminRequests(self.cluster, timeout_ms)

    async def retrying(self, attempt: Callable[[], Awaitable[T]], what: str, *, timeout_ms: int) -> T:
        """Retry like `Cluster.retrying`, but give up sooner on a cluster that was never reached: its address
        is probably wrong. The error names the addresses and the time it took.
        """
        limit_ms = timeout_ms if self._was_reached else min(timeout_ms, FIRST_CONNECT_MS)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                result = await self.cluster.retrying(attempt, timeout_ms=limit_ms, what=what)
        except BootstrapFailed as error:
            raise BootstrapFailed(
                f"{what}: {error.message} (tried for {loop.time() - begin:.0f} s)"
            ) from None
        except TimeoutError:
            servers = self.cluster.config.bootstrap_servers
            raise BootstrapFailed(
                f"{what}: no answer from the cluster at {servers} within {timeout_ms} ms "
                "(kafka.default.api.timeout.ms)"
            ) from None
        self._was_reached = True
        return result

    def close(self) -> None:
        if self._thread.is_running:
            self._thread.call(self.cluster.close())
            self._thread.stop()
            self._runtime.close()


def source_client(config: ConnectionConfig) -> SourceClient:
    """This process's client with these settings, created if there is none. Bounded: the oldest is closed."""
    global _owner
    if _owner != os.getpid():
        _clients.clear()
        _owner = os.getpid()
    client = _clients.get(config)
    if client is None:
        while len(_clients) >= MAX_CLIENTS:
            _close(_clients.pop(next(iter(_clients))))
        client = _clients[config] = SourceClient(config)
    return client


def _close(client: SourceClient) -> None:
    with suppress(KafkaError, OSError):  # it is not used any more
        client.close()
