"""Membership in a group of the consumer protocol: the broker decides, the member follows.

Everything goes through heartbeats (`ModernHeartbeats`, beside the user's loop). They bring what this member
shall own; `step`, within the user's poll, gives up what is not in it, takes over the rest, and reports what
is owned now. There is no barrier: other members go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging

from ottla.client.cluster import Cluster
from ottla.client.consumer.config import ConsumerConfig
from ottla.client.consumer.consumer_protocol_heartbeats import ModernHeartbeats, Target
from ottla.client.consumer.heartbeat_thread import Side
from ottla.client.consumer.membership import Hands, OnStalled, RebalanceListener, Subscription, notify
from ottla.client.group_offsets import Member
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition

__all__ = ["ModernMembership"]

log = logging.getLogger(__name__)

EPOCH_WAIT_S = 5.0


class ModernMembership:
    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        side: Side,
        hands: Hands,
        on_stalled: OnStalled | None,
    ) -> None:
        assert config.group_id is not None
        self._cluster = cluster
        self._config = config
        self._group_id = config.group_id
        self._side = side
        self._hands = hands
        self._listener: RebalanceListener | None = None
        self._subscription = Subscription()
        # What the group wants this member to own, until it does.
        self._target: Target | None = None
        self._owned_once = False
        self._lost = False
        self._failure: KafkaError | None = None
        self._epoch_changed = asyncio.Event()
        self._beats = ModernHeartbeats(
            side,
            config,
            self._group_id,
            member_id=_member_id(cluster.runtime.random.uuid()),
            on_target=self._told,
            on_lost=self._was_lost,
            on_failure=self._failed,
            on_epoch=self._epoch_changed.set,
            on_stalled=on_stalled,
        )

    @property
    def member(self) -> Member:
        return Member(self._beats.member_id, self._beats.epoch, self._config.group_instance_id)

    @property
    def is_stable(self) -> bool:
        return self._beats.epoch > 0 and self._target is None and self._owned_once

    async def start(self) -> None:
        await self._side.start(self._beats.run)

    def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        self._listener = listener
        self._subscription = subscription
        self._side.post(self._beats.subscribe, subscription)

    def polled(self) -> None:
        self._side.post(self._beats.note_poll)

    def metadata_changed(self) -> None:
        if self._target is not None:
            self._hands.wake()

    async def refresh_member(self) -> bool:
        """The epoch moves with the group; a commit under the old one is repeated under the new."""
        self._epoch_changed.clear()
        self._side.post(self._beats.hurry)
        try:
            async with asyncio.timeout(EPOCH_WAIT_S):
                await self._epoch_changed.wait()
        except TimeoutError:
            return False
        return self._beats.epoch > 0

    # Told from beside.

    def _told(self, target: Target) -> None:
        self._target = target
        self._hands.wake()

    def _was_lost(self) -> None:
        self._lost = True
        self._target = None
        self._hands.wake()

    def _failed(self, error: KafkaError) -> None:
        self._failure = error
        self._hands.wake()

    # Within the user's poll.

    async def step(self) -> None:
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise error
        if self._lost:
            self._lost = self._owned_once = False
            owned = self._hands.owned()
            self._hands.take_over([])
            await notify(self._listener, "on_partitions_lost", owned)
            self._side.post(self._beats.rejoin)
        if self._target is not None:
            await self._reconcile(self._target)

    async def _reconcile(self, target: Target) -> None:
        names = await self._names(target)
        if names is None:
            return  # a topic is not known yet; metadata will come
        assigned = {
            TopicPartition(names[topic], p) for topic, partitions in target.items() for p in partitions
        }
        owned = set(self._hands.owned())
        if owned - assigned:
            await self._hands.commit_owned()
            await notify(self._listener, "on_partitions_revoked", owned - assigned)
        if target is not self._target or self._lost:
            return  # the group has thought better of it meanwhile
        self._target = None
        new = assigned - owned
        self._hands.take_over(sorted(assigned))
        self._side.post(self._beats.own, target)
        if new or not self._owned_once:
            await notify(self._listener, "on_partitions_assigned", new)
        self._owned_once = True
        log.info("group %r: epoch %d, %d partitions", self._group_id, self._beats.epoch, len(assigned))

    async def _names(self, target: Target) -> dict[bytes, str] | None:
        known = self._cluster.view.names_by_id
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
            asyncio.get_running_loop().call_later(self._config.retry_backoff_ms / 1000, self._hands.wake)
            return None
        return names

    async def leave(self) -> None:
        self._side.post(self._beats.leave)
        await self._beats.left(self._config.request_timeout_ms)
        await self._side.stop()


def _member_id(uuid: bytes) -> str:
    text = uuid.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
