"""The heartbeats of the consumer protocol, beside the user's loop.

All state of the exchange lives over there: what was said is not said again unless it changed, a new member
(epoch 0) says everything. The user's side posts changes and is told what the answers bring.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.client.consumer.config import ConsumerConfig
from ottla.client.consumer.heartbeat_thread import Side
from ottla.client.consumer.membership import OnStalled, Stalled, Subscription, report_stall
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

__all__ = ["ModernHeartbeats", "Target"]

log = logging.getLogger(__name__)

Target = dict[bytes, tuple[int, ...]]
"""Partitions by topic id."""
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2
FIRST_INTERVAL_MS = 3_000
LEAVE_TIMEOUT_MS = 3_000
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_LATER = frozenset({*_MOVED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNRELEASED_INSTANCE_ID})
_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})


class ModernHeartbeats:
    """`epoch` and `member_id` may be read from anywhere; the rest is over there."""

    def __init__(
        self,
        side: Side,
        config: ConsumerConfig,
        group_id: str,
        *,
        member_id: str,
        on_target: Callable[[Target], object],
        on_lost: Callable[[], object],
        on_failure: Callable[[KafkaError], object],
        on_epoch: Callable[[], object],
        on_stalled: OnStalled | None = None,
    ) -> None:
        self._side = side
        self._config = config
        self._group_id = group_id
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self._on_target = on_target
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._on_epoch = on_epoch
        self._on_stalled = on_stalled
        self._subscription: Subscription | None = None
        self._owned: Target = {}
        # Whether there is something to say before the next beat is due, and of what kind.
        self._say_all = True
        self._say_subscription = False
        self._say_owned = False
        self._interval_s = FIRST_INTERVAL_MS / 1000
        self._wake: asyncio.Event | None = None
        self._active = False
        self._leaving = False
        self._gone = asyncio.Event()
        self._last_poll = 0.0
        self._last_answer = 0.0

    # Posted from the user's side.

    def subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._say_subscription = True
        self._active = True
        self.note_poll()
        self.hurry()

    def own(self, owned: Target) -> None:
        self._owned = owned
        self._say_owned = True
        self.hurry()

    def rejoin(self) -> None:
        """Everything was given up; join as a new member."""
        self.epoch = JOIN_EPOCH
        self._owned = {}
        self._say_all = True
        self._active = True
        self.note_poll()
        self.hurry()

    def note_poll(self) -> None:
        self._last_poll = asyncio.get_running_loop().time()

    def hurry(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def leave(self) -> None:
        self._leaving = True
        self.hurry()

    async def left(self, timeout_ms: int) -> None:
        """On the user's side: waits until the good-bye was said, or could not be."""
        try:
            async with asyncio.timeout(min(timeout_ms, LEAVE_TIMEOUT_MS) / 1000):
                await self._gone.wait()
        except TimeoutError:
            pass

    # Over there.

    async def run(self) -> None:
        self._wake = asyncio.Event()
        backoff_s = 0.0
        try:
            while not self._leaving:
                wait = backoff_s if self._active else None
                if self._active and not backoff_s:
                    wait = 0.0 if self._has_something_to_say else self._until_next_beat()
                await self._pause(wait)
                if self._leaving or not self._active:
                    continue
                if self._is_stalled():
                    await self._step_aside()
                    continue
                backoff_s = 0.0 if await self._beat() else self._config.retry_backoff_ms / 1000
            await self._say_goodbye()
        finally:
            self._side.tell(self._gone.set)

    def _until_next_beat(self) -> float:
        """The interval, or less if the user's silence becomes too long before."""
        stalls_at = self._last_poll + self._config.max_poll_interval_ms / 1000
        return max(min(self._interval_s, stalls_at - asyncio.get_running_loop().time() + 0.001), 0.001)

    @property
    def _has_something_to_say(self) -> bool:
        return self._say_all or self._say_subscription or self._say_owned

    async def _pause(self, seconds: float | None) -> None:
        assert self._wake is not None
        if seconds == 0.0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _is_stalled(self) -> bool:
        return self.epoch > 0 and self._silent_ms() > self._config.max_poll_interval_ms

    def _silent_ms(self) -> int:
        return int((asyncio.get_running_loop().time() - self._last_poll) * 1000)

    async def _step_aside(self) -> None:
        stalled = Stalled(self._group_id, self.member_id, self._silent_ms())
        report_stall(stalled, self._config, self._on_stalled)
        await self._say_goodbye()
        self._lose()

    def _lose(self) -> None:
        """Nothing more is said until the user's side has given everything up."""
        self.epoch = JOIN_EPOCH
        self._active = False
        self._side.tell(self._on_lost)

    async def _beat(self) -> bool:
        """One exchange; False if it should be repeated after a back-off."""
        request = self._request()
        said_owned = self._owned if request.topic_partitions is not None else None
        said_subscription = self._subscription if request.subscribed_topic_names is not None else None
        try:
            answer = await self._side.coordinator.once(request, ConsumerGroupHeartbeatResponse)
        except KafkaError as error:
            if not error.retriable:
                self._fail(error)
                return True
            log.debug("group %r: heartbeat: %s", self._group_id, error)
            self._say_all = True  # whether it was heard is not known
            return False
        code = ErrorCode.of(answer.error_code)
        if code in _MOVED:
            self._side.coordinator.forget()
        if code in _LATER:
            return False
        if code in _LOST:
            log.info("group %r: out of it: %s", self._group_id, code.name)
            self._lose()
            return True
        if code:
            self._fail(KafkaError(code, f"group {self._group_id!r}: {answer.error_message or code.text}"))
            return True
        self._say_all = False
        if said_owned is self._owned:
            self._say_owned = False
        if said_subscription is self._subscription:
            self._say_subscription = False
        self._take(answer)
        return True

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.member_id:
            self.member_id = answer.member_id
        if answer.heartbeat_interval_ms > 0:
            self._interval_s = answer.heartbeat_interval_ms / 1000
        self.epoch = answer.member_epoch
        self._side.tell(self._on_epoch)
        if answer.assignment is not None:
            target = {t.topic_id: tuple(sorted(t.partitions)) for t in answer.assignment.topic_partitions}
            self._side.tell(self._on_target, target)

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self._config.group_instance_id,
        )
        subscription = self._subscription
        assert subscription is not None, "a member without a subscription does not heartbeat"
        if self._say_all:
            request.rack_id = self._config.client_rack or None
            request.rebalance_timeout_ms = self._config.max_poll_interval_ms
            request.server_assignor = self._config.group_remote_assignor
        if self._say_all or self._say_subscription:
            # Names are told as empty beside a pattern, to take back those of an earlier subscription.
            request.subscribed_topic_names = sorted(subscription.topics)
            request.subscribed_topic_regex = subscription.pattern or ("" if self.epoch > 0 else None)
        if self._say_all or self._say_owned:
            request.topic_partitions = [
                TopicPartitions(topic_id=topic, partitions=list(partitions))
                for topic, partitions in self._owned.items()
            ]
        return request

    def _fail(self, error: KafkaError) -> None:
        self._active = False
        self._side.tell(self._on_failure, error)

    async def _say_goodbye(self) -> None:
        if self.epoch <= 0:
            return
        static = self._config.group_instance_id is not None
        try:
            await self._side.coordinator.once(
                ConsumerGroupHeartbeatRequest(
                    group_id=self._group_id,
                    member_id=self.member_id,
                    instance_id=self._config.group_instance_id,
                    member_epoch=LEAVE_FOR_A_WHILE_EPOCH if static and self._leaving else LEAVE_EPOCH,
                ),
                ConsumerGroupHeartbeatResponse,
                timeout_ms=LEAVE_TIMEOUT_MS,
            )
        except KafkaError as error:
            log.debug("group %r: left without a word: %s", self._group_id, error)
