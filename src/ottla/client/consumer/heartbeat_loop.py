"""When a member of a group sends heartbeats, for the protocols in which everything goes through them.

The first heartbeat is sent as soon as the member has subscribed, one with changes at once, and others after
the interval that the coordinator has said. A member whose user does not poll for `max.poll.interval.ms`
leaves the group, and sends none until the user polls again. What a heartbeat has, and what comes of its
response, is the sender's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ottla.client.consumer.group_membership import OnStalled, Stalled, report_stall
from ottla.client.consumer.heartbeat_thread import HeartbeatThread
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Request

if TYPE_CHECKING:
    from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
    from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatResponse


log = logging.getLogger(__name__)

R = TypeVar("R", "ConsumerGroupHeartbeatResponse", "ShareGroupHeartbeatResponse")

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
_FIRST_INTERVAL_MS: Final = 3_000
_LEAVE_TIMEOUT_MS: Final = 3_000
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_LATER: Final = frozenset({*_MOVED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNRELEASED_INSTANCE_ID})
_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})


def new_member_id(uuid: bytes) -> str:
    """A member id as Kafka's clients make it; brokers take no longer one."""
    text = uuid.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def assigned_partitions(
    answer: ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse,
) -> dict[bytes, tuple[int, ...]] | None:
    """The assignment in a response, by topic id; None if it is as before."""
    if answer.assignment is None:
        return None
    return {each.topic_id: tuple(sorted(each.partitions)) for each in answer.assignment.topic_partitions}


class HeartbeatSender(Protocol):
    """A member. The loop calls it in the heartbeat thread."""

    @property
    def member_id(self) -> str: ...

    @property
    def is_member(self) -> bool:
        """Whether the coordinator knows the member."""

    @property
    def has_changes(self) -> bool:
        """Whether the next heartbeat is due at once."""

    async def send_heartbeat(self) -> bool:
        """Send one heartbeat; False if it should be repeated after a backoff."""

    async def send_leave(self) -> None:
        """Leave the group."""

    def on_lost(self) -> None:
        """The group goes on without the member."""

    def on_failure(self, error: KafkaError) -> None:
        """Heartbeats have ended with an error."""


class HeartbeatLoop:
    """`is_active` says whether heartbeats are sent: not before the member has subscribed, and not after it
    was lost or has failed, until `activate`.
    """

    def __init__(
        self,
        thread: HeartbeatThread,
        sender: HeartbeatSender,
        group_id: str,
        *,
        max_poll_interval_ms: int,
        retry_backoff_ms: int,
        on_stalled: OnStalled | None,
    ) -> None:
        self._thread: Final = thread
        self._sender: Final = sender
        self._group_id: Final = group_id
        self._max_poll_interval_ms: Final = max_poll_interval_ms
        self._retry_backoff_s: Final = retry_backoff_ms / 1000
        self._on_stalled: Final = on_stalled
        self._interval_s = _FIRST_INTERVAL_MS / 1000
        self._wake: asyncio.Event | None = None
        self._gone: Final = asyncio.Event()
        self._last_poll = 0.0
        self.is_active = False
        self.is_leaving = False

    # Posted from the user's loop.

    def activate(self) -> None:
        self.is_active = True
        self.note_poll()
        self.wake()

    def note_poll(self) -> None:
        self._last_poll = asyncio.get_running_loop().time()

    def wake(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def leave(self) -> None:
        self.is_leaving = True
        self.wake()

    async def wait_until_left(self, timeout_ms: int) -> None:
        """On the user's loop: wait until the leave request was sent, or could not be."""
        try:
            async with asyncio.timeout(min(timeout_ms, _LEAVE_TIMEOUT_MS) / 1000):
                await self._gone.wait()
        except TimeoutError:
            pass

    # In the heartbeat thread.

    async def run(self) -> None:
        self._wake = asyncio.Event()
        backoff_s = 0.0
        try:
            while not self.is_leaving:
                await self._pause(self._wait_s(backoff_s))
                if self.is_leaving or not self.is_active:
                    continue
                if self._is_stalled():
                    await self._leave_stalled_group()
                    continue
                backoff_s = 0.0 if await self._send() else self._retry_backoff_s
            await self._sender.send_leave()
        finally:
            self._thread.call_back(self._gone.set)

    async def _send(self) -> bool:
        try:
            return await self._sender.send_heartbeat()
        except Exception as error:
            # A bug of this client: `poll` raises it, rather than go on without heartbeats.
            log.exception("group %r: heartbeat", self._group_id)
            text = f"group {self._group_id!r}: heartbeats have failed: {error!r}"
            self.fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text))
            return True

    def _wait_s(self, backoff_s: float) -> float | None:
        """Until the next heartbeat, or the end of `max.poll.interval.ms`."""
        if not self.is_active:
            return None
        if backoff_s:
            return backoff_s
        if self._sender.has_changes:
            return 0.0
        stalls_at = self._last_poll + self._max_poll_interval_ms / 1000
        return max(min(self._interval_s, stalls_at - asyncio.get_running_loop().time() + 0.001), 0.001)

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

    def _silent_ms(self) -> int:
        return int((asyncio.get_running_loop().time() - self._last_poll) * 1000)

    def _is_stalled(self) -> bool:
        return self._sender.is_member and self._silent_ms() > self._max_poll_interval_ms

    async def _leave_stalled_group(self) -> None:
        stalled = Stalled(self._group_id, self._sender.member_id, self._silent_ms())
        report_stall(stalled, self._max_poll_interval_ms, self._on_stalled)
        await self._sender.send_leave()
        self._lose()

    def _lose(self) -> None:
        """Stop heartbeats until the user polls again."""
        self.is_active = False
        self._sender.on_lost()

    def fail(self, error: KafkaError) -> None:
        """Stop heartbeats until the user has had the error."""
        self.is_active = False
        self._sender.on_failure(error)

    async def exchange(self, request: Request, response: type[R]) -> tuple[R | None, bool]:
        """Send a heartbeat. Returns the response, None if there is none that says something, and whether the
        exchange is over: if not it is repeated after a backoff, and has everything in it, as the coordinator
        may not have received it. A coordinator that comes next may know of an assignment that this one wrote
        before it moved, and returns that only to a member that sends all.
        """
        try:
            answer = await self._thread.coordinator.once(request, response)
        except KafkaError as error:
            if error.retriable:
                log.debug("group %r: heartbeat: %s", self._group_id, error)
                return None, False
            self.fail(error)
            return None, True
        code = ErrorCode.of(answer.error_code)
        if code in _MOVED:
            self._thread.coordinator.forget()
        if code in _LATER:
            return None, False
        # A group that has lost all its members may be deleted, or be one of the classic protocol by now.
        if code in _LOST or (code == ErrorCode.GROUP_ID_NOT_FOUND and self._sender.is_member):
            log.info("group %r: out of it: %s", self._group_id, code.name)
            self._lose()
            return None, True
        if not code and answer.heartbeat_interval_ms > 0:
            self._interval_s = answer.heartbeat_interval_ms / 1000
        return answer, True

    async def exchange_leave(self, request: Request, response: type[R]) -> None:
        """Send the last heartbeat, whatever becomes of it."""
        try:
            await self._thread.coordinator.once(request, response, timeout_ms=_LEAVE_TIMEOUT_MS)
        except KafkaError as error:
            log.debug("group %r: left without a word: %s", self._group_id, error)
