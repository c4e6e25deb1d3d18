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
    Subscription,
    notify_listener,
)
from ottla.client.consumer.heartbeat_loop import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatLoop,
    assigned_partitions,
    new_member_id,
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
            member_id=new_member_id(cluster.runtime.random.uuid()),
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
        await self._thread.start(self._heartbeats.loop.run)

    def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        self._listener = listener
        self._subscription = subscription
        self._thread.post(self._heartbeats.subscribe, subscription)

    def on_poll(self) -> None:
        self._thread.post(self._heartbeats.loop.note_poll)

    def on_metadata_update(self) -> None:
        if self._target is not None:
            self._owner.wake()

    async def refresh_epoch(self) -> bool:
        """Wait for the next epoch: a commit that was refused under the old one is repeated under the
        new one.
        """
        self._epoch_changed.clear()
        self._thread.post(self._heartbeats.loop.wake)
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
        self._failure = error.again()
        self._owner.wake()

    # Within the user's poll.

    async def poll(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure.again()
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
        self._thread.post(self._heartbeats.loop.leave)
        await self._heartbeats.loop.wait_until_left(self._config.request_timeout_ms)
        await self._thread.stop()


Target = dict[bytes, tuple[int, ...]]
"""Partitions by topic id."""
LEAVE_FOR_A_WHILE_EPOCH = -2


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
        self._subscription: Subscription | None = None
        self._owned: Target = {}
        # Which fields the next heartbeat has to send; any of them makes it due at once.
        self._send_all = True
        self._send_subscription = False
        self._send_owned = False
        self.loop = HeartbeatLoop(
            thread,
            self,
            group_id,
            max_poll_interval_ms=config.max_poll_interval_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            on_stalled=on_stalled,
        )

    # Posted from the user's loop.

    def subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._send_subscription = True
        self.loop.activate()

    def own(self, owned: Target) -> None:
        self._owned = owned
        self._send_owned = True
        self.loop.wake()

    def rejoin(self) -> None:
        """Join as a new member, after all partitions were given up."""
        self.epoch = JOIN_EPOCH
        self._owned = {}
        self._send_all = True
        self.loop.activate()

    # `HeartbeatSender` of the loop.

    @property
    def is_member(self) -> bool:
        return self.epoch > 0

    @property
    def has_changes(self) -> bool:
        return self._send_all or self._send_subscription or self._send_owned

    async def send_heartbeat(self) -> bool:
        request = self._request()
        sent_owned = self._owned if request.topic_partitions is not None else None
        sent_subscription = self._subscription if request.subscribed_topic_names is not None else None
        answer, is_over = await self.loop.exchange(request, ConsumerGroupHeartbeatResponse)
        if not is_over:
            self._send_all = True
        elif answer is not None and answer.error_code:
            code = ErrorCode.of(answer.error_code)
            text = f"group {self._group_id!r}: {self._text(code, answer.error_message)}"
            self.loop.fail(KafkaError(code, text))
        elif answer is not None:
            self._send_all = False
            if sent_owned is self._owned:
                self._send_owned = False
            if sent_subscription is self._subscription:
                self._send_subscription = False
            self._take(answer)
        return is_over

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.member_id = answer.member_id or self.member_id
        self.epoch = answer.member_epoch
        self._thread.call_back(self._on_epoch)
        target = assigned_partitions(answer)
        if target is not None:
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

    def on_lost(self) -> None:
        self.epoch = JOIN_EPOCH
        self._thread.call_back(self._on_lost)

    def on_failure(self, error: KafkaError) -> None:
        self._thread.call_back(self._on_failure, error)

    async def send_leave(self) -> None:
        if not self.is_member:
            return
        static = self._config.group_instance_id is not None
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            instance_id=self._config.group_instance_id,
            member_epoch=LEAVE_FOR_A_WHILE_EPOCH if static and self.loop.is_leaving else LEAVE_EPOCH,
        )
        await self.loop.exchange_leave(request, ConsumerGroupHeartbeatResponse)
