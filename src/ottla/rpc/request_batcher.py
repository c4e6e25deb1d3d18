"""Requests to other brokers that travel together: while one RPC is in flight to a broker, requests for the
same broker wait and go with the next one.

Transactions send many requests, mostly to the same few brokers: to the leaders of their partitions to write
markers, to the coordinators to verify that a partition may be written to. Invariant: at most one RPC of a
kind is in flight to a broker, and every request gets its response, or fails with an OSError when its broker
cannot be reached, does not answer in time, or has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from ottla.protocol.errors import KafkaError

_log = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")

_MAX_BATCH_SIZE: Final = 1_000
_MAX_PENDING: Final = 100_000


class RequestBatcher(Generic[Q, A]):
    """`send` takes requests to a broker and returns their responses in the same order. Two requests with the
    same `key` never share an RPC, as their responses could not be distinguished.
    """

    def __init__(
        self,
        send: Callable[[int, Sequence[Q]], Awaitable[Sequence[A]]],
        key: Callable[[Q], Hashable],
    ) -> None:
        self._send: Final = send
        self._key: Final = key
        # By broker: requests that the next RPC takes. A broker with pending requests has a task.
        self._pending: dict[int, deque[tuple[Q, asyncio.Future[A]]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def submit(self, broker: int, request: Q) -> asyncio.Future[A]:
        """Add a request to the next RPC to the broker, and return the future of its response."""
        response: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        pending = self._pending.get(broker)
        if pending is None:
            pending = self._pending[broker] = deque()
        if len(pending) >= _MAX_PENDING:
            response.set_exception(
                ConnectionError(f"{len(pending)} requests to broker {broker} are pending already")
            )
            return response
        pending.append((request, response))
        if broker not in self._tasks:
            self._tasks[broker] = asyncio.get_running_loop().create_task(
                self._run(broker), name=f"requests to broker {broker}"
            )
        return response

    def on_broker_gone(self, broker: int) -> None:
        """Fail all requests to a broker that has left, so that the callers can look for its successor."""
        task = self._tasks.pop(broker, None)
        if task is not None:
            task.cancel()
        _fail(self._pending.pop(broker, ()), ConnectionError(f"broker {broker} has left the cluster"))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for broker in list(self._tasks):
            self.on_broker_gone(broker)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, broker: int) -> None:
        task = asyncio.current_task()
        try:
            while True:
                batch = self._next_batch(broker)
                if not batch:
                    return
                try:
                    await self._send_batch(broker, batch)
                except asyncio.CancelledError:
                    _fail(batch, ConnectionError(f"broker {broker} has left the cluster"))
                    if task is None or task.cancelling():
                        raise
        finally:
            if self._tasks.get(broker) is task:
                del self._tasks[broker]

    def _next_batch(self, broker: int) -> list[tuple[Q, asyncio.Future[A]]]:
        """Take the requests of the next RPC; requests whose caller was cancelled are left out."""
        batch: dict[Hashable, tuple[Q, asyncio.Future[A]]] = {}
        pending = self._pending.get(broker)
        if pending is None:
            return []
        repeated: list[tuple[Q, asyncio.Future[A]]] = []
        while pending and len(batch) < _MAX_BATCH_SIZE:
            request, response = pending.popleft()
            if response.done():
                continue
            key = self._key(request)
            if key in batch:
                repeated.append((request, response))
            else:
                batch[key] = request, response
        pending.extendleft(reversed(repeated))
        if not pending:
            del self._pending[broker]
        return list(batch.values())

    async def _send_batch(self, broker: int, batch: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            responses = await self._send(broker, [request for request, _ in batch])
        except KafkaError as error:
            _fail(batch, ConnectionError(f"broker {broker}: {error.message}"))
        except OSError as error:
            _fail(batch, error)
        except Exception as error:
            _log.exception("requests to broker %d failed", broker)
            _fail(batch, ConnectionError(f"broker {broker}: {error}"))
        else:
            if len(responses) != len(batch):
                gave = f"broker {broker} gave {len(responses)} responses to {len(batch)} requests"
                _fail(batch, ConnectionError(gave))
            for (_, future), response in zip(batch, responses, strict=False):
                if not future.done():
                    future.set_result(response)


def _fail(batch: Iterable[tuple[Q, asyncio.Future[A]]], error: OSError) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
            future.exception()  # marks it as retrieved, so that an abandoned request does not warn
