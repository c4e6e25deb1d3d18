"""One connection to a cluster for all readers of a process.

Spark's workers run task after task, and a reader that is unpickled for each of them must not pay for new
connections each time. So they are kept here, by the settings they were made with, on one loop in a thread of
its own that goes on receiving while Spark takes rows. A forked child starts anew: the table is thrown away
when it belongs to another process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ottla.client.admin.caller import Caller
from ottla.client.cluster import Cluster, ConnectionConfig
from ottla.client.errors import BootstrapFailed
from ottla.protocol.errors import KafkaError
from ottla.runtime.loop import LoopThread
from ottla.runtime.runtime import Runtime

__all__ = ["Link", "link_to"]

T = TypeVar("T")

MAX_LINKS = 8
FIRST_CONTACT_MS = 10_000

_links: dict[ConnectionConfig, Link] = {}
_owner = 0


class Link:
    """The cluster as one process sees it; `call` and `submit` run coroutines where its connections live."""

    def __init__(self, config: ConnectionConfig) -> None:
        self._thread = LoopThread("ottla-spark")
        self._thread.start()
        self._runtime = Runtime.real(pool_workers=1)
        self.cluster = Cluster(self._runtime, config)
        self._reached = False

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(coroutine)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return self._thread.submit(coroutine)

    def caller(self, timeout_ms: int) -> Caller:
        return Caller(self.cluster, timeout_ms)

    async def retrying(self, attempt: Callable[[], Awaitable[T]], what: str, *, timeout_ms: int) -> T:
        """As `Cluster.retrying`, with less patience for a cluster that was never reached: its address is
        probably wrong. The error names the addresses and the time it took.
        """
        patience = timeout_ms if self._reached else min(timeout_ms, FIRST_CONTACT_MS)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                result = await self.cluster.retrying(attempt, timeout_ms=patience, what=what)
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
        self._reached = True
        return result

    def close(self) -> None:
        if self._thread.is_running:
            self._thread.call(self.cluster.close())
            self._thread.stop()
            self._runtime.close()


def link_to(config: ConnectionConfig) -> Link:
    """This process's link with these settings, made if there is none. The oldest goes when there are many."""
    global _owner
    if _owner != os.getpid():
        _links.clear()
        _owner = os.getpid()
    link = _links.get(config)
    if link is None:
        while len(_links) >= MAX_LINKS:
            _close(_links.pop(next(iter(_links))))
        link = _links[config] = Link(config)
    return link


def _close(link: Link) -> None:
    with suppress(KafkaError, OSError):  # it is of no use to anyone any more
        link.close()
