"""Membership in a share group (KIP-932): the coordinator assigns partitions, and several members may have the
same one.

Everything goes through heartbeats (`ShareHeartbeatRequestManager`, in the heartbeat thread). An assignment
takes effect at once: nothing has to be given up first, as records that a member holds stay its own until they
are acknowledged or their locks expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ottla.client.consumer.group_membership import OnStalled, Stalled, report_stall
from ottla.client.consumer.heartbeat_thread import HeartbeatThread
from ottla.client.network_client import NetworkClient
from ottla.client.share.config import ShareConsumerConfig
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.names import TopicIdPartition

__all__ = ["ShareAssignment", "ShareHeartbeatRequestManager", "ShareMembershipManager"]

log = logging.getLogger(__name__)

ShareAssignment: TypeAlias = dict[TopicIdPartition, str]
"""The topic of each partition."""
_Target: TypeAlias = dict[bytes, tuple[int, ...]]

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
FIRST_INTERVAL_MS = 3_000
LEAVE_TIMEOUT_MS = 3_000
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_LATER = frozenset({*_MOVED, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
NO_SHARE_GROUPS = (
    "the cluster has no share groups: they need Kafka 4.1 or newer and its feature share.version at 1"
)


class ShareMembershipManager:
    """`on_assignment` is called with each new assignment, and `wake` when `poll` has something to do."""

    def __init__(
        self,
        cluster: NetworkClient,
        config: ShareConsumerConfig,
        thread: HeartbeatThread,
        on_assignment: Callable[[ShareAssignment], object],
        wake: Callable[[], object],
        on_stalled: OnStalled | None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._thread = thread
        self._on_assignment = on_assignment
        self._wake = wake
        self._topics: tuple[str, ...] = ()
        # The last assignment, until its topics have names.
        self._target: _Target | None = None
        self._lost = False
        self._failure: KafkaError | None = None
        self._heartbeats = ShareHeartbeatRequestManager(
            thread,
            config,
            member_id=_member_id(cluster.runtime.random.uuid()),
            explain=cluster.explain,
            on_target=self._on_target,
            on_lost=self._on_lost,
            on_failure=self._on_failure,
            on_stalled=on_stalled,
        )

    @property
    def member_id(self) -> str:
        return self._heartbeats.member_id

    async def start(self) -> None:
        await self._thread.start(self._heartbeats.run)

    def subscribe(self, topics: Sequence[str]) -> None:
        self._topics = tuple(topics)
        self._thread.post(self._heartbeats.subscribe, self._topics)

    def on_poll(self) -> None:
        """Note that the user has polled."""
        self._thread.post(self._heartbeats.note_poll)

    def on_metadata_update(self) -> None:
        if self._target is not None:
            self._wake()

    # Called back by the heartbeat thread.

    def _on_target(self, target: _Target) -> None:
        self._target = target
        self._wake()

    def _on_lost(self) -> None:
        self._lost = True
        self._target = None
        self._wake()

    def _on_failure(self, error: KafkaError) -> None:
        self._failure = error
        self._wake()

    async def poll(self) -> None:
        """Apply what heartbeats have brought; raise the error that ended them."""
        if self._failure is not None:
            error, self._failure = self._failure, None
            # The next poll tries again: an ACL may have been added.
            self._thread.post(self._heartbeats.rejoin)
            raise error
        if self._lost:
            self._lost = False
            self._on_assignment({})
            self._thread.post(self._heartbeats.rejoin)
        target = self._target
        if target is None:
            return
        names = await self._names(target)
        if names is not None and target is self._target:
            self._target = None
            self._on_assignment(
                {
                    TopicIdPartition(topic, index): names[topic]
                    for topic, partitions in target.items()
                    for index in partitions
                }
            )

    async def _names(self, target: _Target) -> dict[bytes, str] | None:
        known = self._cluster.metadata.names_by_id
        if not all(topic in known for topic in target):
            try:
                known = (await self._cluster.refresh(topics=self._topics)).names_by_id
            except KafkaError as error:
                log.debug("group %r: %s", self._config.group_id, error)
        if not all(topic in known for topic in target):
            asyncio.get_running_loop().call_later(self._config.retry_backoff_ms / 1000, self._wake)
            return None
        return {topic: known[topic] for topic in target}

    async def leave(self) -> None:
        self._thread.post(self._heartbeats.leave)
        await self._heartbeats.wait_until_left(self._config.request_timeout_ms)
        await self._thread.stop()


def _member_id(uuid: bytes) -> str:
    """A member id as Kafka's clients make it; brokers take no longer one."""
    text = uuid.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class ShareHeartbeatRequestManager:
    """Sends the heartbeats from the heartbeat thread, with full state in the first one and only changes after
    that. Other threads may read `member_id`; the rest belongs to the heartbeat thread.
    """

    def __init__(
        self,
        thread: HeartbeatThread,
        config: ShareConsumerConfig,
        *,
        member_id: str,
        explain: Callable[[ErrorCode, AclOperation, str, str | None], str],
        on_target: Callable[[_Target], object],
        on_lost: Callable[[], object],
        on_failure: Callable[[KafkaError], object],
        on_stalled: OnStalled | None,
    ) -> None:
        self._thread = thread
        self._config = config
        self._explain = explain
        self.member_id = member_id
        self._epoch = JOIN_EPOCH
        self._on_target = on_target
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._on_stalled = on_stalled
        self._topics: tuple[str, ...] = ()
        self._send_all = True
        self._send_topics = False
        self._interval_s = FIRST_INTERVAL_MS / 1000
        self._wake: asyncio.Event | None = None
        self._active = False
        self._leaving = False
        self._gone = asyncio.Event()
        self._last_poll = 0.0

    # Posted from the user's loop.

    def subscribe(self, topics: tuple[str, ...]) -> None:
        self._topics = topics
        self._send_topics = True
        self._active = True
        self.note_poll()
        self._wake_up()

    def rejoin(self) -> None:
        self._epoch = JOIN_EPOCH
        self._send_all = True
        self._active = True
        self.note_poll()
        self._wake_up()

    def note_poll(self) -> None:
        self._last_poll = asyncio.get_running_loop().time()

    def leave(self) -> None:
        self._leaving = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def wait_until_left(self, timeout_ms: int) -> None:
        """On the user's loop: wait until the leave request was sent, or could not be."""
        try:
            async with asyncio.timeout(min(timeout_ms, LEAVE_TIMEOUT_MS) / 1000):
                await self._gone.wait()
        except TimeoutError:
            pass

    # In the heartbeat thread.

    async def run(self) -> None:
        self._wake = asyncio.Event()
        backoff_s = 0.0
        try:
            while not self._leaving:
                await self._pause(self._wait_s(backoff_s))
                if self._leaving or not self._active:
                    continue
                if self._is_stalled():
                    await self._leave_stalled_group()
                    continue
                backoff_s = 0.0 if await self._heartbeat() else self._config.retry_backoff_ms / 1000
            await self._send_leave()
        finally:
            self._thread.call_back(self._gone.set)

    def _wait_s(self, backoff_s: float) -> float | None:
        if not self._active:
            return None
        if backoff_s:
            return backoff_s
        if self._send_all or self._send_topics:
            return 0.0
        stalls_at = self._last_poll + self._config.max_poll_interval_ms / 1000
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
        return self._epoch > 0 and self._silent_ms() > self._config.max_poll_interval_ms

    async def _leave_stalled_group(self) -> None:
        stalled = Stalled(self._config.group_id, self.member_id, self._silent_ms())
        report_stall(stalled, self._config.max_poll_interval_ms, self._on_stalled)
        await self._send_leave()
        self._lose()

    def _lose(self) -> None:
        """Stop heartbeats until the user polls again."""
        self._epoch = JOIN_EPOCH
        self._active = False
        self._thread.call_back(self._on_lost)

    async def _heartbeat(self) -> bool:
        """Send one heartbeat; False if it should be repeated after a backoff."""
        topics = self._topics if self._send_all or self._send_topics else None
        request = ShareGroupHeartbeatRequest(
            group_id=self._config.group_id,
            member_id=self.member_id,
            member_epoch=self._epoch,
            rack_id=(self._config.client_rack or None) if self._send_all else None,
            subscribed_topic_names=None if topics is None else sorted(topics),
        )
        try:
            answer = await self._thread.coordinator.once(request, ShareGroupHeartbeatResponse)
        except KafkaError as error:
            if not error.retriable:
                self._fail(error)
                return True
            log.debug("group %r: heartbeat: %s", self._config.group_id, error)
            self._send_all = True  # the coordinator may not have received it, or its response is lost
            return False
        code = ErrorCode.of(answer.error_code)
        if code in _MOVED:
            self._thread.coordinator.forget()
        if code in _LATER:
            # The next coordinator may know of an assignment that this one wrote before it moved; it returns
            # that only to a member that sends all.
            self._send_all = True
            return False
        if code in _LOST:
            log.info("group %r: out of it: %s", self._config.group_id, code.name)
            self._lose()
        elif code:
            self._fail(KafkaError(code, self._text(code, answer.error_message)))
        else:
            self._send_all = False
            if topics is self._topics:
                self._send_topics = False
            self._take(answer)
        return True

    def _take(self, answer: ShareGroupHeartbeatResponse) -> None:
        if answer.member_id:
            self.member_id = answer.member_id
        if answer.heartbeat_interval_ms > 0:
            self._interval_s = answer.heartbeat_interval_ms / 1000
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            target = {t.topic_id: tuple(sorted(t.partitions)) for t in answer.assignment.topic_partitions}
            self._thread.call_back(self._on_target, target)

    def _text(self, code: ErrorCode, message: str | None) -> str:
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            text = self._explain(code, AclOperation.DESCRIBE, ", ".join(sorted(self._topics)), message)
        else:
            text = self._explain(code, AclOperation.READ, self._config.group_id, message)
        return f"group {self._config.group_id!r}: {text}"

    def _fail(self, error: KafkaError) -> None:
        self._active = False
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            error = KafkaError(error.code, f"group {self._config.group_id!r}: {NO_SHARE_GROUPS}")
        self._thread.call_back(self._on_failure, error)

    async def _send_leave(self) -> None:
        if self._epoch <= 0:
            return
        request = ShareGroupHeartbeatRequest(
            group_id=self._config.group_id, member_id=self.member_id, member_epoch=LEAVE_EPOCH
        )
        try:
            await self._thread.coordinator.once(
                request, ShareGroupHeartbeatResponse, timeout_ms=LEAVE_TIMEOUT_MS
            )
        except KafkaError as error:
            log.debug("group %r: left without a word: %s", self._config.group_id, error)
