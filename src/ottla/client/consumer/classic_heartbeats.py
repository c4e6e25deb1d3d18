"""A classic member's heartbeats, beside the user's loop.

They stop by themselves when the user has not polled for `max.poll.interval.ms`: then the member leaves, so
that others can have its partitions, and the user learns it with his next poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.client.consumer.config import ConsumerConfig
from ottla.client.consumer.heartbeat_thread import Side
from ottla.client.consumer.membership import OnStalled, Stalled, report_stall
from ottla.client.group_offsets import Member
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

__all__ = ["ClassicHeartbeats"]

log = logging.getLogger(__name__)

_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class ClassicHeartbeats:
    """`run` is over there; `beat_as` and `polled` are called here. `on_error` is told here."""

    def __init__(
        self,
        side: Side,
        config: ConsumerConfig,
        group_id: str,
        on_error: Callable[[ErrorCode], object],
        on_stalled: OnStalled | None = None,
    ) -> None:
        self._side = side
        self._config = config
        self._group_id = group_id
        self._on_error = on_error
        self._on_stalled = on_stalled
        self._member: Member | None = None
        self._changed: asyncio.Event | None = None
        self._last_poll = 0.0
        # The last heartbeat that was answered, in the clock of the loop over there.
        self._last_answer = 0.0

    def beat_as(self, member: Member) -> None:
        self._side.post(self._set_member, member)

    def polled(self) -> None:
        self._side.post(self._note_poll)

    # Over there.

    def _set_member(self, member: Member) -> None:
        self._member = member
        self._last_answer = asyncio.get_running_loop().time()
        self._note_poll()
        if self._changed is not None:
            self._changed.set()

    def _note_poll(self) -> None:
        self._last_poll = asyncio.get_running_loop().time()

    async def run(self) -> None:
        self._changed = asyncio.Event()
        while True:
            if self._member is None:
                self._changed.clear()
                await self._changed.wait()
            await asyncio.sleep(self._config.heartbeat_interval_ms / 1000)
            member = self._member
            if member is None:
                continue
            if self._is_stalled():
                await self._leave(member)
                continue
            code = await self._beat(member)
            if code and member is self._member:
                # A member that is asked to join again goes on until it does, lest it be taken for dead.
                if code is not ErrorCode.REBALANCE_IN_PROGRESS:
                    self._member = None
                self._side.tell(self._on_error, code)

    def _is_stalled(self) -> bool:
        return self._silent_ms() > self._config.max_poll_interval_ms

    def _silent_ms(self) -> int:
        return int((asyncio.get_running_loop().time() - self._last_poll) * 1000)

    async def _beat(self, member: Member) -> ErrorCode | None:
        loop = asyncio.get_running_loop()
        try:
            answer = await self._side.coordinator.once(
                HeartbeatRequest(
                    group_id=self._group_id,
                    generation_id=member.epoch,
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                ),
                HeartbeatResponse,
                timeout_ms=max(self._config.session_timeout_ms // 3, 1),
            )
        except KafkaError as error:
            log.debug("group %r: heartbeat: %s", self._group_id, error)
            # Not heard for a whole session: the group has given this member up.
            if (loop.time() - self._last_answer) * 1000 > self._config.session_timeout_ms:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return None
        code = ErrorCode.of(answer.error_code)
        if code in _MOVED:
            self._side.coordinator.forget()
        if code in _MOVED or code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return None
        self._last_answer = loop.time()
        return code or None

    async def _leave(self, member: Member) -> None:
        stalled = Stalled(self._group_id, member.member_id, self._silent_ms())
        report_stall(stalled, self._config, self._on_stalled)
        self._member = None
        if member.instance_id is None:
            identity = MemberIdentity(member_id=member.member_id, reason="the consumer does not poll")
            try:
                await self._side.coordinator.once(
                    LeaveGroupRequest(group_id=self._group_id, members=[identity]), LeaveGroupResponse
                )
            except KafkaError as error:
                log.debug("group %r: leaving: %s", self._group_id, error)
        self._side.tell(self._on_error, ErrorCode.UNKNOWN_MEMBER_ID)
