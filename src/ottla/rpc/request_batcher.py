"""Questions to other brokers that go together: while one request is on its way to a broker, what comes for it
waits and goes with the next.

Transactions ask much, and mostly the same few brokers: the leaders of their partitions to write markers, the
coordinators whether a partition may be written to. Invariant: at most one request of a kind is under way to a
broker, and every question is answered, or fails with an OSError when its broker cannot be reached, does not
answer in time, or has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from ottla.protocol.errors import KafkaError

Q = TypeVar("Q")
A = TypeVar("A")

_MOST_AT_ONCE: Final = 1_000
_MOST_WAITING: Final = 100_000


class Questions(Generic[Q, A]):
    """`send` takes questions to a broker and gives their answers in the same order. Of questions with the
    same `key` no two go together, as their answers could not be told apart.
    """

    def __init__(
        self,
        send: Callable[[int, Sequence[Q]], Awaitable[Sequence[A]]],
        key: Callable[[Q], Hashable],
    ) -> None:
        self._send: Final = send
        self._key: Final = key
        self._waiting: dict[int, list[tuple[Q, asyncio.Future[A]]]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def ask(self, broker: int, question: Q) -> asyncio.Future[A]:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(broker, [])
        if len(waiting) >= _MOST_WAITING:
            answer.set_exception(ConnectionError(f"{len(waiting)} questions to broker {broker} wait already"))
            return answer
        waiting.append((question, answer))
        if broker not in self._tasks:
            self._tasks[broker] = asyncio.get_running_loop().create_task(
                self._work(broker), name=f"questions to broker {broker}"
            )
        return answer

    def gone(self, broker: int) -> None:
        """The broker has left: whoever asked it finds out now whom to ask instead."""
        task = self._tasks.pop(broker, None)
        if task is not None:
            task.cancel()
        _fail(self._waiting.pop(broker, []), ConnectionError(f"broker {broker} has gone"))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for broker in list(self._tasks):
            self.gone(broker)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, broker: int) -> None:
        task = asyncio.current_task()
        batch: list[tuple[Q, asyncio.Future[A]]] = []
        try:
            while True:
                batch = self._next(broker)
                if not batch:
                    return
                await self._ask_together(broker, batch)
        except asyncio.CancelledError:
            _fail(batch, ConnectionError(f"broker {broker} has gone"))
            raise
        finally:
            if self._tasks.get(broker) is task:
                del self._tasks[broker]

    def _next(self, broker: int) -> list[tuple[Q, asyncio.Future[A]]]:
        """What goes together next; questions that nobody waits for any more are left out."""
        together: dict[Hashable, tuple[Q, asyncio.Future[A]]] = {}
        later: list[tuple[Q, asyncio.Future[A]]] = []
        for question, answer in self._waiting.pop(broker, []):
            if answer.done():
                continue
            key = self._key(question)
            if key in together or len(together) >= _MOST_AT_ONCE:
                later.append((question, answer))
            else:
                together[key] = question, answer
        if later:
            self._waiting[broker] = later
        return list(together.values())

    async def _ask_together(self, broker: int, batch: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._send(broker, [question for question, _ in batch])
        except KafkaError as error:
            _fail(batch, ConnectionError(f"broker {broker}: {error.message}"))
        except OSError as error:
            _fail(batch, error)
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(batch: Sequence[tuple[Q, asyncio.Future[A]]], error: OSError) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
            future.exception()  # seen, also where nobody waits any more
