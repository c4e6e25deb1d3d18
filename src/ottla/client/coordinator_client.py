"""Requests to the coordinator of a group or a transactional id, which may move to another broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from ottla.client.network_client import CoordinatorType, NetworkClient
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Request, Response
from ottla.rpc.channel import Lane
from ottla.rpc.connection import BrokerConnection

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)
# The previous transaction is ending, which takes milliseconds: shorter than a backoff that is made for
# outages.
BRIEF_WAIT_S = 0.02
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_LATER = frozenset({*_MOVED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


class CoordinatorClient:
    """`call` repeats a request while no coordinator can answer it; the caller handles all other errors."""

    __slots__ = ("_cluster", "_key", "_kind", "_lane", "request_timeout_ms", "timeout_ms")

    def __init__(
        self,
        cluster: NetworkClient,
        kind: CoordinatorType,
        key: str,
        *,
        timeout_ms: int,
        request_timeout_ms: int | None = None,
        lane: Lane = Lane.COMMON,
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._key = key
        self._lane = lane
        self.timeout_ms = timeout_ms
        self.request_timeout_ms = request_timeout_ms or cluster.config.request_timeout_ms

    async def connection(self) -> BrokerConnection:
        """Return the connection to the coordinator; find the coordinator if it is not known."""
        return await self._cluster.coordinator(self._kind, self._key, self._lane)

    def forget(self) -> None:
        """Make the next request find the coordinator again."""
        self._cluster.forget_coordinator(self._kind, self._key)

    async def once(
        self,
        request: Request,
        response_type: type[R],
        *,
        at_most: int | None = None,
        unstable: bool = False,
        timeout_ms: int | None = None,
    ) -> R:
        """Make one attempt. After a connection failure the next attempt finds the coordinator again."""
        try:
            connection = await self.connection()
            version = connection.version_for(type(request), at_most=at_most, unstable=unstable)
            return await connection.request(
                request, response_type, timeout_ms=timeout_ms or self.request_timeout_ms, version=version
            )
        except KafkaError as error:
            if error.retriable:
                self.forget()
            raise

    async def once_waiting(
        self, request: Request, response_type: type[R], *, timeout_ms: int, look_every_ms: int
    ) -> R:
        """Make one attempt with a request that the coordinator holds until other members arrive. A host that
        loses power closes no connection, so the coordinator is checked meanwhile: NOT_COORDINATOR once
        another broker has taken over, ConnectionLost if the host has restarted without knowing of the
        request.
        """
        try:
            connection = await self.connection()
            attempt = asyncio.ensure_future(connection.request(request, response_type, timeout_ms=timeout_ms))
            watch = asyncio.ensure_future(self._watch(connection, look_every_ms / 1000, timeout_ms))
            try:
                await asyncio.wait([attempt, watch], return_when=asyncio.FIRST_COMPLETED)
                if not attempt.done():
                    watch.result()
                return await attempt
            finally:
                attempt.cancel()
                watch.cancel()
        except KafkaError as error:
            if error.retriable:
                self.forget()
            raise

    async def _watch(self, asked: BrokerConnection, every_s: float, timeout_ms: int) -> None:
        """Look up the coordinator periodically, and send a few bytes to the one that holds the request: a
        host that has forgotten the connection resets it.
        """
        while asked.is_open:
            await asyncio.sleep(every_s)
            try:
                address = await self._cluster.coordinator_address(self._kind, self._key)
                if address == asked.address:
                    asked.ping(timeout_ms=timeout_ms)
            except KafkaError as error:
                log.debug("%s %r: where is its coordinator? %s", self._kind.name.lower(), self._key, error)
                continue
            if address != asked.address:
                raise KafkaError(
                    ErrorCode.NOT_COORDINATOR,
                    f"{self._kind.name.lower()} {self._key!r}: its coordinator is {address} now",
                )

    async def call(
        self,
        request: Request | Callable[[BrokerConnection], Request],
        response_type: type[R],
        errors: Callable[[R], Iterable[int]],
        *,
        at_most: int | None = None,
        unstable: bool = False,
        also_later: Iterable[ErrorCode] = (),
        timeout_ms: int | None = None,
        request_timeout_ms: int | None = None,
    ) -> R:
        """Return the response once no code that `errors` finds in it asks for a retry; `also_later` names
        further retriable codes. After `timeout_ms` the last error is raised.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        backoff = self._cluster.new_backoff()
        later = _LATER.union(also_later)
        while True:
            try:
                made = request if isinstance(request, Request) else request(await self.connection())
                answer = await self.once(
                    made, response_type, at_most=at_most, unstable=unstable, timeout_ms=request_timeout_ms
                )
                code = next((ErrorCode.of(code) for code in errors(answer) if code in later), None)
                if code is None:
                    return answer
                if code in _MOVED:
                    self.forget()
                error = KafkaError(code, f"{self._kind.name.lower()} {self._key!r}: {code.text}")
            except KafkaError as failure:
                if not failure.retriable:
                    raise
                error = failure
            wait = backoff.next_ms() / 1000
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                wait = min(wait, BRIEF_WAIT_S)
            if loop.time() + wait >= deadline:
                raise error
            log.debug("%s; trying again in %.0f ms", error, wait * 1000)
            await asyncio.sleep(wait)
