"""Requests that wait for partitions: acks=all for the high watermark, fetches for bytes.

Kafka's `DelayedProduce` and `DelayedFetch` are conditions here, given by the handlers of the two requests.

A delayed operation names the partitions it watches and a condition. The condition is checked again when one
of them makes progress, at most once per turn of the event loop, and the operation completes when it holds or
its timeout has passed. Invariant: no operation waits longer than its timeout, and progress of a partition
that is not watched costs one look-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Final

DEFAULT_MAX_OPERATIONS: Final = 100_000


class _DelayedOperation:
    __slots__ = ("condition", "future", "keys")

    def __init__(
        self, keys: tuple[Hashable, ...], condition: Callable[[], bool], future: asyncio.Future[bool]
    ) -> None:
        self.keys = keys
        self.condition = condition
        self.future = future


class DelayedOperationPurgatory:
    def __init__(self, max_operations: int = DEFAULT_MAX_OPERATIONS) -> None:
        self._max_operations: Final = max_operations
        # By key, in the order of arrival. A key that no operation watches has no entry.
        self.watchers: Final[dict[Hashable, dict[_DelayedOperation, None]]] = {}
        self._to_check: dict[_DelayedOperation, None] = {}  # whose condition is checked in this turn
        self._check_scheduled = False
        self._waiting = 0

    def __len__(self) -> int:
        """How many operations wait."""
        return self._waiting

    async def try_complete_else_watch(
        self, keys: Iterable[Hashable], condition: Callable[[], bool], timeout_ms: float
    ) -> bool:
        """Wait until the condition holds; False if the timeout passes first, or if too many wait already.

        An error that the condition raises is raised here.
        """
        if condition():
            return True
        if timeout_ms <= 0 or self._waiting >= self._max_operations:
            return False
        loop = asyncio.get_running_loop()
        operation = _DelayedOperation(tuple(dict.fromkeys(keys)), condition, loop.create_future())
        timer = loop.call_later(timeout_ms / 1000, _time_out, operation.future)
        for key in operation.keys:
            self.watchers.setdefault(key, {})[operation] = None
        self._waiting += 1
        try:
            return await operation.future
        finally:
            timer.cancel()
            self._remove(operation)

    def _remove(self, operation: _DelayedOperation) -> None:
        self._waiting -= 1
        self._to_check.pop(operation, None)
        for key in operation.keys:
            watchers = self.watchers[key]
            del watchers[operation]
            if not watchers:
                del self.watchers[key]

    def check_and_complete(self, key: Hashable) -> None:
        """Check the operations that watch `key`, in this turn of the event loop."""
        watchers = self.watchers.get(key)
        if watchers is None:
            return
        self._to_check.update(watchers)
        if not self._check_scheduled:
            self._check_scheduled = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._check_scheduled = False
        operations, self._to_check = self._to_check, {}
        for operation in operations:
            if operation.future.done():
                continue
            try:
                holds = operation.condition()
            except Exception as error:
                operation.future.set_exception(error)
            else:
                if holds:
                    operation.future.set_result(True)


def _time_out(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
