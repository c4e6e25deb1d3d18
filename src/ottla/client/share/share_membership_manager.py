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

from ottla.client.consumer.group_membership import OnStalled
from ottla.client.consumer.heartbeat_loop import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatLoop,
    assigned_partitions,
    new_member_id,
)
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

log = logging.getLogger(__name__)

ShareAssignment: TypeAlias = dict[TopicIdPartition, str]
"""The topic of each partition."""
_Target: TypeAlias = dict[bytes, tuple[int, ...]]

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
            member_id=new_member_id(cluster.runtime.random.uuid()),
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
        await self._thread.start(self._heartbeats.loop.run)

    def subscribe(self, topics: Sequence[str]) -> None:
        self._topics = tuple(topics)
        self._thread.post(self._heartbeats.subscribe, self._topics)

    def on_poll(self) -> None:
        """Note that the user has polled."""
        self._thread.post(self._heartbeats.loop.note_poll)

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
        self._failure = error.again()
        self._wake()

    async def poll(self) -> None:
        """Apply what heartbeats have brought; raise the error that ended them."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            # The next poll tries again: an ACL may have been added.
            self._thread.post(self._heartbeats.rejoin)
            raise failure.again()
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
        self._thread.post(self._heartbeats.loop.leave)
        await self._heartbeats.loop.wait_until_left(self._config.request_timeout_ms)
        await self._thread.stop()


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
        self._topics: tuple[str, ...] = ()
        self._send_all = True
        self._send_topics = False
        self.loop = HeartbeatLoop(
            thread,
            self,
            config.group_id,
            max_poll_interval_ms=config.max_poll_interval_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            on_stalled=on_stalled,
        )

    # Posted from the user's loop.

    def subscribe(self, topics: tuple[str, ...]) -> None:
        self._topics = topics
        self._send_topics = True
        self.loop.activate()

    def rejoin(self) -> None:
        self._epoch = JOIN_EPOCH
        self._send_all = True
        self.loop.activate()

    # `HeartbeatSender` of the loop.

    @property
    def is_member(self) -> bool:
        return self._epoch > 0

    @property
    def has_changes(self) -> bool:
        return self._send_all or self._send_topics

    async def send_heartbeat(self) -> bool:
        topics = self._topics if self.has_changes else None
        request = ShareGroupHeartbeatRequest(
            group_id=self._config.group_id,
            member_id=self.member_id,
            member_epoch=self._epoch,
            rack_id=(self._config.client_rack or None) if self._send_all else None,
            subscribed_topic_names=None if topics is None else sorted(topics),
        )
        answer, is_over = await self.loop.exchange(request, ShareGroupHeartbeatResponse)
        if not is_over:
            self._send_all = True
        elif answer is not None and answer.error_code:
            code = ErrorCode.of(answer.error_code)
            self.loop.fail(KafkaError(code, self._text(code, answer.error_message)))
        elif answer is not None:
            self._send_all = False
            if topics is self._topics:
                self._send_topics = False
            self._take(answer)
        return is_over

    def _take(self, answer: ShareGroupHeartbeatResponse) -> None:
        self.member_id = answer.member_id or self.member_id
        self._epoch = answer.member_epoch
        target = assigned_partitions(answer)
        if target is not None:
            self._thread.call_back(self._on_target, target)

    def _text(self, code: ErrorCode, message: str | None) -> str:
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            text = self._explain(code, AclOperation.DESCRIBE, ", ".join(sorted(self._topics)), message)
        else:
            text = self._explain(code, AclOperation.READ, self._config.group_id, message)
        return f"group {self._config.group_id!r}: {text}"

    def on_lost(self) -> None:
        self._epoch = JOIN_EPOCH
        self._thread.call_back(self._on_lost)

    def on_failure(self, error: KafkaError) -> None:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            error = KafkaError(error.code, f"group {self._config.group_id!r}: {NO_SHARE_GROUPS}")
        self._thread.call_back(self._on_failure, error)

    async def send_leave(self) -> None:
        if self.is_member:
            request = ShareGroupHeartbeatRequest(
                group_id=self._config.group_id, member_id=self.member_id, member_epoch=LEAVE_EPOCH
            )
            await self.loop.exchange_leave(request, ShareGroupHeartbeatResponse)
