"""Membership in a group of the consumer protocol (KIP-848): the coordinator assigns, the member reconciles.

Everything goes through heartbeats (`ConsumerHeartbeatRequestManager`, in the heartbeat thread). They bring
the target assignment of this member; `poll`, within the user's poll, revokes partitions that are not in it,
takes over the new ones, and reports what is owned. There is no barrier: other members continue meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.client.consumer.config import ConsumerConfig
from ottla.client.consumer.group_membership import (
    MembershipOwner,
    OnStalled,
    RebalanceListener,
    Stalled,
    Subscription,
    notify_listener,
    report_stall,
)
from ottla.client.consumer.heartbeat_thread import HeartbeatThread
from ottla.client.group_offsets import GroupMemberIdentity
from ottla.client.network_client import NetworkClient
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.names import TopicPartition

__all__ = ["ConsumerHeartbeatRequestManager", "ConsumerMembershipManager", "Target"]

log = logging.getLogger(__name__)

EPOCH_WAIT_S = 5.0


class ConsumerMembershipManager:
    """The `GroupMembership` of the consumer protocol."""

    def __init__(
        self,
        cluster: NetworkClient,
        config: ConsumerConfig,
        thread: HeartbeatThread,
        owner: MembershipOwner,
        on_stalled: OnStalled | None,
    ) -> None:
        assert config.group_id is not None
        self._cluster = cluster
        self._config = config
        self._group_id = config.group_id
        self._thread = thread
        self._owner = owner
        self._listener: RebalanceListener | None = None
        self._subscription = Subscription()
        # The target assignment, until the member owns it.
        self._target: Target | None = None
        self._owned_once = False
        self._lost = False
        self._failure: KafkaError | None = None
        self._epoch_changed = asyncio.Event()
        self._heartbeats = ConsumerHeartbeatRequestManager(
            thread,
            config,
            self._group_id,
            member_id=_member_id(cluster.runtime.random.uuid()),
            explain=cluster.explain,
            on_target=self._on_target,
            on_lost=self._on_lost,
            on_failure=self._on_failure,
            on_epoch=self._epoch_changed.set,
            on_stalled=on_stalled,
        )

    @property
    def member(self) -> GroupMemberIdentity:
        return GroupMemberIdentity(
            self._heartbeats.member_id, self._heartbeats.epoch, self._config.group_instance_id
        )

    @property
    def is_stable(self) -> bool:
        return self._heartbeats.epoch > 0 and self._target is None and self._owned_once

    async def start(self) -> None:
        await self._thread.start(self._heartbeats.run)

    def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        self._listener = listener
        self._subscription = subscription
        self._thread.post(self._heartbeats.subscribe, subscription)

    def on_poll(self) -> None:
        self._thread.post(self._heartbeats.note_poll)

    def on_metadata_update(self) -> None:
        if self._target is not None:
            self._owner.wake()

    async def refresh_epoch(self) -> bool:
        """Wait for the next epoch: a commit that was refused under the old one is repeated under the
        new one.
        """
        self._epoch_changed.clear()
        self._thread.post(self._heartbeats.wake)
        try:
            async with asyncio.timeout(EPOCH_WAIT_S):
                await self._epoch_changed.wait()
        except TimeoutError:
            return False
        return self._heartbeats.epoch > 0

    # Called back by the heartbeat thread.

    def _on_target(self, target: Target) -> None:
        self._target = target
        self._owner.wake()

    def _on_lost(self) -> None:
        self._lost = True
        self._target = None
        self._owner.wake()

    def _on_failure(self, error: KafkaError) -> None:
        self._failure = error
        self._owner.wake()

    # Within the user's poll.

    async def poll(self) -> None:
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise error
        if self._lost:
            self._lost = self._owned_once = False
            owned = self._owner.owned_partitions()
            self._owner.assign_from_subscribed([])
            await notify_listener(self._listener, "on_partitions_lost", owned)
            self._thread.post(self._heartbeats.rejoin)
        if self._target is not None:
            await self._reconcile(self._target)

    async def _reconcile(self, target: Target) -> None:
        names = await self._names(target)
        if names is None:
            return  # a topic is not known yet; metadata will follow
        assigned = {
            TopicPartition(names[topic], p) for topic, partitions in target.items() for p in partitions
        }
        owned = set(self._owner.owned_partitions())
        if owned - assigned:
            await self._owner.commit_before_revocation()
            await notify_listener(self._listener, "on_partitions_revoked", owned - assigned)
        if target is not self._target or self._lost:
            return  # a newer target assignment has arrived
        self._target = None
        new = assigned - owned
        self._owner.assign_from_subscribed(sorted(assigned))
        self._thread.post(self._heartbeats.own, target)
        if new or not self._owned_once:
            await notify_listener(self._listener, "on_partitions_assigned", new)
        self._owned_once = True
        log.info("group %r: epoch %d, %d partitions", self._group_id, self._heartbeats.epoch, len(assigned))

    async def _names(self, target: Target) -> dict[bytes, str] | None:
        known = self._cluster.metadata.names_by_id
        if not all(topic in known for topic in target):
            try:
                pattern = self._subscription.pattern is not None
                view = await self._cluster.refresh(topics=self._subscription.topics, all_topics=pattern)
            except KafkaError as error:
                log.debug("group %r: %s", self._group_id, error)
                return None
            known = view.names_by_id
        names = {topic: known[topic] for topic in target if topic in known}
        if len(names) < len(target):
            asyncio.get_running_loop().call_later(self._config.retry_backoff_ms / 1000, self._owner.wake)
            return None
        return names

    async def leave(self) -> None:
        self._thread.post(self._heartbeats.leave)
        await self._heartbeats.wait_until_left(self._config.request_timeout_ms)
        await self._thread.stop()


def _member_id(uuid: bytes) -> str:
    text = uuid.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


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


class ConsumerHeartbeatRequestManager:
    """Sends the heartbeats from the heartbeat thread, with full state in the first one and only changes after
    that. Other threads may read `epoch` and `member_id`; the rest belongs to the heartbeat thread.
    """

    def __init__(
        self,
        thread: HeartbeatThread,
        config: ConsumerConfig,
        group_id: str,
        *,
        member_id: str,
        explain: Callable[[ErrorCode, AclOperation, str, str | None], str],
        on_target: Callable[[Target], object],
        on_lost: Callable[[], object],
        on_failure: Callable[[KafkaError], object],
        on_epoch: Callable[[], object],
        on_stalled: OnStalled | None = None,
    ) -> None:
        self._thread = thread
        self._config = config
        self._group_id = group_id
        self._explain = explain
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self._on_target = on_target
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._on_epoch = on_epoch
        self._on_stalled = on_stalled
        self._subscription: Subscription | None = None
        self._owned: Target = {}
        # Which fields the next heartbeat has to send; any of them makes it due at once.
        self._send_all = True
        self._send_subscription = False
        self._send_owned = False
        self._interval_s = FIRST_INTERVAL_MS / 1000
        self._wake: asyncio.Event | None = None
        self._active = False
        self._leaving = False
        self._gone = asyncio.Event()
        self._last_poll = 0.0
        self._last_answer = 0.0

    # Posted from the user's loop.

    def subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._send_subscription = True
        self._active = True
        self.note_poll()
        self.wake()

    def own(self, owned: Target) -> None:
        self._owned = owned
        self._send_owned = True
        self.wake()

    def rejoin(self) -> None:
        """Join as a new member, after all partitions were given up."""
        self.epoch = JOIN_EPOCH
        self._owned = {}
        self._send_all = True
        self._active = True
        self.note_poll()
        self.wake()

    def note_poll(self) -> None:
        self._last_poll = asyncio.get_running_loop().time()

    def wake(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def leave(self) -> None:
        self._leaving = True
        self.wake()

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
                wait = backoff_s if self._active else None
                if self._active and not backoff_s:
                    wait = 0.0 if self._has_changes else self._until_next_beat()
                await self._pause(wait)
                if self._leaving or not self._active:
                    continue
                if self._is_stalled():
                    await self._leave_stalled_group()
                    continue
                backoff_s = 0.0 if await self._heartbeat() else self._config.retry_backoff_ms / 1000
            await self._send_leave()
        finally:
            self._thread.call_back(self._gone.set)

    def _until_next_beat(self) -> float:
        """The heartbeat interval, or less if `max.poll.interval.ms` ends before."""
        stalls_at = self._last_poll + self._config.max_poll_interval_ms / 1000
        return max(min(self._interval_s, stalls_at - asyncio.get_running_loop().time() + 0.001), 0.001)

    @property
    def _has_changes(self) -> bool:
        return self._send_all or self._send_subscription or self._send_owned

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

    async def _leave_stalled_group(self) -> None:
        stalled = Stalled(self._group_id, self.member_id, self._silent_ms())
        report_stall(stalled, self._config.max_poll_interval_ms, self._on_stalled)
        await self._send_leave()
        self._lose()

    def _lose(self) -> None:
        """Stop heartbeats until the user's loop has given up all partitions."""
        self.epoch = JOIN_EPOCH
        self._active = False
        self._thread.call_back(self._on_lost)

    async def _heartbeat(self) -> bool:
        """Send one heartbeat; False if it should be repeated after a backoff."""
        request = self._request()
        sent_owned = self._owned if request.topic_partitions is not None else None
        sent_subscription = self._subscription if request.subscribed_topic_names is not None else None
        try:
            answer = await self._thread.coordinator.once(request, ConsumerGroupHeartbeatResponse)
        except KafkaError as error:
            if not error.retriable:
                self._fail(error)
                return True
            log.debug("group %r: heartbeat: %s", self._group_id, error)
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
            log.info("group %r: out of it: %s", self._group_id, code.name)
            self._lose()
            return True
        if code:
            self._fail(
                KafkaError(code, f"group {self._group_id!r}: {self._text(code, answer.error_message)}")
            )
            return True
        self._send_all = False
        if sent_owned is self._owned:
            self._send_owned = False
        if sent_subscription is self._subscription:
            self._send_subscription = False
        self._take(answer)
        return True

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.member_id:
            self.member_id = answer.member_id
        if answer.heartbeat_interval_ms > 0:
            self._interval_s = answer.heartbeat_interval_ms / 1000
        self.epoch = answer.member_epoch
        self._thread.call_back(self._on_epoch)
        if answer.assignment is not None:
            target = {t.topic_id: tuple(sorted(t.partitions)) for t in answer.assignment.topic_partitions}
            self._thread.call_back(self._on_target, target)

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self._config.group_instance_id,
        )
        subscription = self._subscription
        assert subscription is not None, "a member without a subscription does not heartbeat"
        if self._send_all:
            request.rack_id = self._config.client_rack or None
            request.rebalance_timeout_ms = self._config.max_poll_interval_ms
            request.server_assignor = self._config.group_remote_assignor
        if self._send_all or self._send_subscription:
            # An empty list beside a pattern removes the names of an earlier subscription.
            request.subscribed_topic_names = sorted(subscription.topics)
            request.subscribed_topic_regex = subscription.pattern or ("" if self.epoch > 0 else None)
        if self._send_all or self._send_owned:
            request.topic_partitions = [
                TopicPartitions(topic_id=topic, partitions=list(partitions))
                for topic, partitions in self._owned.items()
            ]
        return request

    def _text(self, code: ErrorCode, message: str | None) -> str:
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            topics = () if self._subscription is None else sorted(self._subscription.topics)
            return self._explain(code, AclOperation.DESCRIBE, ", ".join(topics), message)
        return self._explain(code, AclOperation.READ, self._group_id, message)

    def _fail(self, error: KafkaError) -> None:
        self._active = False
        self._thread.call_back(self._on_failure, error)

    async def _send_leave(self) -> None:
        if self.epoch <= 0:
            return
        static = self._config.group_instance_id is not None
        try:
            await self._thread.coordinator.once(
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
