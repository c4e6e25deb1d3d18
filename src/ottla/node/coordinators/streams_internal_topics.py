"""The internal topics of streams groups that this broker creates, and the errors of those that it could not.

Each member of a group that misses internal topics asks for them with each heartbeat. The topics are created
once at a time; an error is kept for a while, in which it is reported to the members in place of trying again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.runtime.clock import Clock

_MOST_ERRORS: Final = 1_000
_NS_PER_MS: Final = 1_000_000


class StreamsInternalTopics:
    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._in_flight: Final[set[str]] = set()
        # By topic: the message, and until when it holds. The oldest goes if there are too many.
        self._errors: Final[dict[str, tuple[str, int]]] = {}

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // _NS_PER_MS

    def errors(self, names: Iterable[str]) -> dict[str, str]:
        """The errors of topics that could not be created."""
        now_ms = self._now_ms()
        return {
            name: self._errors[name][0]
            for name in names
            if name in self._errors and self._errors[name][1] > now_ms
        }

    async def create(
        self,
        topics: Iterable[CreatableTopic],
        send: Callable[[CreateTopicsRequest], Awaitable[CreateTopicsResponse]],
        *,
        timeout_ms: int,
        errors_ttl_ms: int,
    ) -> None:
        """Create those of the topics that are not under way and have not just failed. It takes `timeout_ms`
        at most: a member waits for it.
        """
        wanted = [topic for topic in topics if topic.name not in self._in_flight]
        failed = self.errors(topic.name for topic in wanted)
        wanted = [topic for topic in wanted if topic.name not in failed]
        if not wanted:
            return
        names = [topic.name for topic in wanted]
        self._in_flight.update(names)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                response = await send(CreateTopicsRequest(topics=wanted, timeout_ms=timeout_ms))
        except (KafkaError, OSError) as error:
            message = (
                "the controller did not answer in time" if isinstance(error, TimeoutError) else str(error)
            )
            for name in names:
                self._keep_error(name, message, errors_ttl_ms)
        else:
            for topic in response.topics:
                if topic.error_code == ErrorCode.NONE:
                    self._errors.pop(topic.name, None)
                elif topic.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    self._keep_error(topic.name, _message(topic), errors_ttl_ms)
        finally:
            self._in_flight.difference_update(names)

    def _keep_error(self, name: str, message: str, ttl_ms: int) -> None:
        self._errors.pop(name, None)
        self._errors[name] = message, self._now_ms() + ttl_ms
        if len(self._errors) > _MOST_ERRORS:
            del self._errors[next(iter(self._errors))]


def _message(topic: CreatableTopicResult) -> str:
    return topic.error_message or ErrorCode.of(topic.error_code).text
