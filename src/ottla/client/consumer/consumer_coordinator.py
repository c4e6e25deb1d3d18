"""Membership in a classic group: join, sync, heartbeat, and rejoin when the group rebalances.

    OUTSIDE -> JOINING -> STABLE -> OUTSIDE, whenever the group rebalances

This is the part of Kafka's `ConsumerCoordinator` that deals with membership. Joining runs as a task, as it
can take as long as the slowest member. Listeners and assignments run in `poll`, within the user's `poll`.
With the cooperative protocol the user keeps reading meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from ottla.client.consumer.assignors import ASSIGNORS, Assignor, MemberView, user_data
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
from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.group_offsets import GroupMemberIdentity
from ottla.client.network_client import CoordinatorType, NetworkClient
from ottla.protocol.acl import AclOperation
from ottla.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import Request, Response
from ottla.rpc.channel import Lane

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)
PROTOCOL_TYPE = "consumer"
JOIN_SLACK_MS = 5_000
LEAVE_TIMEOUT_MS = 3_000
_REJOIN = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED})
_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class _Phase(Enum):
    OUTSIDE = 0
    JOINING = 1
    STABLE = 2


class _Joined(NamedTuple):
    member: GroupMemberIdentity
    assignor: Assignor
    assigned: list[TopicPartition]
    # As leader of the group: the partition counts of the subscribed topics, to notice when they change.
    basis: dict[str, int] | None


def assignors_of(names: str | object) -> list[Assignor]:
    """Return the assignors by Kafka's names; the class names of the Java client are accepted too."""
    texts = names.split(",") if isinstance(names, str) else list(names)  # type: ignore[call-overload]
    found = []
    for text in texts:
        short = str(text).strip().rpartition(".")[2].removesuffix("Assignor").lower()
        by_short = {name.replace("-", ""): assignor for name, assignor in ASSIGNORS.items()}
        if short.replace("-", "") not in by_short:
            raise ValueError(
                f"partition.assignment.strategy: there is no {text!r}; allowed are {', '.join(ASSIGNORS)}"
            )
        found.append(by_short[short.replace("-", "")])
    if not found:
        raise ValueError("partition.assignment.strategy is empty")
    return found


class ClassicConsumerCoordinator:
    """The `GroupMembership` of the classic protocol."""

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
        self._coordinator = CoordinatorClient(
            cluster,
            CoordinatorType.GROUP,
            self._group_id,
            timeout_ms=config.default_api_timeout_ms,
            lane=Lane.GROUP,
        )
        self._thread = thread
        self._owner = owner
        self._listener: RebalanceListener | None = None
        self._assignors = assignors_of(config.partition_assignment_strategy)
        # Partitions are kept over a rebalance only if all assignors of this member are cooperative.
        self._cooperative = all(assignor.cooperative for assignor in self._assignors)
        self._subscription = Subscription()
        self._phase = _Phase.OUTSIDE
        self._member = GroupMemberIdentity(instance_id=config.group_instance_id)
        self._joining: asyncio.Task[_Joined] | None = None
        self._joined: _Joined | None = None
        self._lost = False
        self._reason = "first join"
        self._backoff_until = 0.0
        self._backoff = cluster.new_backoff()
        self._heartbeats = ClassicHeartbeatSender(
            thread, config, self._group_id, self._on_heartbeat_error, on_stalled
        )

    @property
    def member(self) -> GroupMemberIdentity:
        return self._member

    @property
    def is_stable(self) -> bool:
        return self._phase is _Phase.STABLE

    async def start(self) -> None:
        await self._thread.start(self._heartbeats.run)

    def subscribe(self, subscription: Subscription, listener: RebalanceListener | None) -> None:
        self._listener = listener
        self._subscription = subscription
        self._rejoin("the subscription changed")

    def on_poll(self) -> None:
        self._heartbeats.on_poll()

    def on_metadata_update(self) -> None:
        """As leader of the group, rejoin when the topics or their partitions differ from those that were
        assigned.
        """
        if self._phase is _Phase.STABLE and self._joined is not None and self._joined.basis is not None:
            basis = self._joined.basis
            now = self._partitions(basis if self._subscription.pattern is None else self._topics())
            if now != basis:
                self._rejoin("topics or partitions changed")

    async def refresh_epoch(self) -> bool:
        """A join in progress ends in a new generation, in which a member that keeps its partitions may
        commit.
        """
        joining = self._joining
        if joining is None or not self._cooperative:
            return False
        await asyncio.wait([joining], timeout=self._config.default_api_timeout_ms / 1000)
        return joining.done() and not joining.cancelled() and joining.exception() is None

    def _on_heartbeat_error(self, code: ErrorCode) -> None:
        """Handle the error code of a heartbeat."""
        if self._phase is not _Phase.STABLE:
            return
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin("the group is rebalancing")
        else:
            self._on_member_lost(code)

    def _on_member_lost(self, code: ErrorCode) -> None:
        log.info("group %r: out of it: %s", self._group_id, code.name)
        self._lost = True
        keep_id = code is ErrorCode.ILLEGAL_GENERATION
        self._member = GroupMemberIdentity(
            self._member.member_id if keep_id else "", -1, self._config.group_instance_id
        )
        self._rejoin(f"need to rejoin: {code.name}")

    def _rejoin(self, reason: str) -> None:
        log.debug("group %r: joining again: %s", self._group_id, reason)
        self._reason = reason
        if self._phase is _Phase.STABLE:
            self._phase = _Phase.OUTSIDE
        self._owner.wake()

    # Within the user's poll.

    async def poll(self) -> None:
        if self._phase is _Phase.JOINING and self._joining is not None and self._joining.done():
            await self._finish_joining()
        if self._phase is _Phase.OUTSIDE and asyncio.get_running_loop().time() >= self._backoff_until:
            await self._prepare_joining()

    async def _prepare_joining(self) -> None:
        owned = self._owner.owned_partitions()
        if self._lost:
            self._lost = False
            self._owner.assign_from_subscribed([])
            await notify_listener(self._listener, "on_partitions_lost", owned)
        elif owned and not self._cooperative:
            await self._owner.commit_before_revocation()
            await notify_listener(self._listener, "on_partitions_revoked", owned)
            self._owner.assign_from_subscribed([])
        elif self._cooperative:
            await self._give_up([p for p in owned if not self._still_wanted(p)])
        self._phase = _Phase.JOINING
        self._joining = asyncio.get_running_loop().create_task(self._join(), name="ottla-join")
        self._joining.add_done_callback(lambda _: self._owner.wake())

    def _still_wanted(self, partition: TopicPartition) -> bool:
        return self._subscription.pattern is not None or partition.topic in self._subscription.topics

    async def _give_up(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        await self._owner.commit_before_revocation()
        await notify_listener(self._listener, "on_partitions_revoked", partitions)
        self._owner.assign_from_subscribed([p for p in self._owner.owned_partitions() if p not in partitions])

    async def _finish_joining(self) -> None:
        assert self._joining is not None
        task, self._joining = self._joining, None
        self._phase = _Phase.OUTSIDE
        try:
            joined = task.result()
        except KafkaError as error:
            self._join_failed(error)
            return
        self._backoff.reset()
        self._joined, self._member = joined, joined.member
        self._phase = _Phase.STABLE
        owned, assigned = set(self._owner.owned_partitions()), set(joined.assigned)
        if joined.assignor.cooperative and owned - assigned:
            await self._give_up(sorted(owned - assigned))
            self._rejoin("partitions were revoked, for other members")
        self._owner.assign_from_subscribed(joined.assigned)
        await notify_listener(self._listener, "on_partitions_assigned", assigned - owned)

    def _join_failed(self, error: KafkaError) -> None:
        wait = self._backoff.next_ms() / 1000
        if error.code in _LOST:
            self._on_member_lost(error.code)
        elif error.code not in _REJOIN and not error.retriable:
            raise error
        log.debug("group %r: %s; joining again in %.0f ms", self._group_id, error, wait * 1000)
        loop = asyncio.get_running_loop()
        self._backoff_until = loop.time() + wait
        loop.call_later(wait, self._owner.wake)

    # Requests to the coordinator.

    async def _join(self) -> _Joined:
        await self._cluster.refresh(
            topics=self._subscription.topics, all_topics=self._subscription.pattern is not None
        )
        answer = await self._send_join()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member = self._member._replace(member_id=answer.member_id)
            answer = await self._send_join()
        self._check(answer.error_code, "join")
        member = GroupMemberIdentity(answer.member_id, answer.generation_id, self._config.group_instance_id)
        assignor = ASSIGNORS.get(answer.protocol_name or "")
        if assignor is None:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {self._group_id!r} chose the assignor {answer.protocol_name!r}, unknown here",
            )
        self._member = member
        plan: dict[str, list[TopicPartition]] = {}
        basis: dict[str, int] | None = None
        if answer.leader == answer.member_id:
            members = {m.member_id: _view(m.metadata, m.group_instance_id) for m in answer.members}
            topics = {topic for view in members.values() for topic in view.topics}
            await self._cluster.refresh(topics=topics)
            basis = self._partitions(topics)
            if not answer.skip_assignment:
                plan = assignor.assign(members, basis)
        sync = await self._ask(
            SyncGroupRequest(
                group_id=self._group_id,
                generation_id=member.epoch,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=assignor.name,
                assignments=[
                    SyncGroupRequestAssignment(member_id=each, assignment=_wire_assignment(partitions))
                    for each, partitions in plan.items()
                ],
            ),
            SyncGroupResponse,
        )
        self._check(sync.error_code, "sync with")
        assigned = _read_assignment(sync.assignment)
        log.info(
            "group %r: generation %d, %d partitions by %s (%s)",
            self._group_id,
            member.epoch,
            len(assigned),
            assignor.name,
            self._reason,
        )
        self._heartbeats.beat_as(member)
        return _Joined(member, assignor, assigned, basis)

    async def _send_join(self) -> JoinGroupResponse:
        owned = self._owner.owned_partitions()
        topics = self._topics()
        return await self._ask(
            JoinGroupRequest(
                group_id=self._group_id,
                session_timeout_ms=self._config.session_timeout_ms,
                rebalance_timeout_ms=self._config.max_poll_interval_ms,
                member_id=self._member.member_id,
                group_instance_id=self._config.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[
                    JoinGroupRequestProtocol(
                        name=assignor.name, metadata=self._wire_subscription(assignor, topics, owned)
                    )
                    for assignor in self._assignors
                ],
                reason=self._reason,
            ),
            JoinGroupResponse,
        )

    async def _ask(self, request: Request, response_type: type[R]) -> R:
        """Send a request that the coordinator answers when all members have sent theirs."""
        return await self._coordinator.once_waiting(
            request,
            response_type,
            timeout_ms=self._config.max_poll_interval_ms + JOIN_SLACK_MS,
            look_every_ms=max(self._config.session_timeout_ms // 3, 1),
        )

    def _wire_subscription(self, assignor: Assignor, topics: list[str], owned: list[TopicPartition]) -> bytes:
        generation = self._joined.member.epoch if self._joined is not None and owned else -1
        return encode_subscription(
            ConsumerProtocolSubscription(
                topics=topics,
                user_data=user_data(assignor, owned, generation),
                owned_partitions=_wire_partitions(owned),
                generation_id=generation,
                rack_id=self._config.client_rack or None,
            )
        )

    def _topics(self) -> list[str]:
        if self._subscription.pattern is None:
            return sorted(self._subscription.topics)
        return self._subscription.matching(
            self._cluster.metadata, internal=not self._config.exclude_internal_topics
        )

    def _partitions(self, topics: Mapping[str, int] | set[str] | list[str]) -> dict[str, int]:
        known = self._cluster.metadata.topics
        return {t: len(known[t].partitions) for t in sorted(topics) if t in known and not known[t].error}

    def _check(self, code: int, what: str) -> None:
        error = ErrorCode.of(code)
        if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._coordinator.forget()
        if error:
            hint = ""
            if error is ErrorCode.FENCED_INSTANCE_ID:
                hint = f" (group.instance.id={self._config.group_instance_id!r})"
            text = self._cluster.explain(error, AclOperation.READ, self._group_id)
            raise KafkaError(error, f"cannot {what} group {self._group_id!r}{hint}: {text}")

    async def leave(self) -> None:
        """Leave the group, unless the member is static: then its partitions wait for its return."""
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        await self._thread.stop()
        if not self._member.member_id or self._config.group_instance_id is not None:
            return
        try:
            connection = await self._coordinator.connection()
            old = connection.version_for(LeaveGroupRequest) < 3
            identity = MemberIdentity(member_id=self._member.member_id, reason="the consumer was closed")
            await connection.request(
                LeaveGroupRequest(
                    group_id=self._group_id,
                    member_id=self._member.member_id if old else "",
                    members=[] if old else [identity],
                ),
                LeaveGroupResponse,
                timeout_ms=LEAVE_TIMEOUT_MS,
            )
        except KafkaError as error:
            log.debug("group %r: left without a word: %s", self._group_id, error)


def _view(metadata: bytes, instance_id: str | None) -> MemberView:
    subscription = decode_subscription(metadata)
    owned = tuple(
        TopicPartition(entry.topic, index)
        for entry in subscription.owned_partitions
        for index in entry.partitions
    )
    return MemberView(tuple(subscription.topics), owned, subscription.generation_id, instance_id)


def _wire_partitions(partitions: list[TopicPartition]) -> list[ConsumerProtocolTopicPartition]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [
        ConsumerProtocolTopicPartition(topic=topic, partitions=indexes) for topic, indexes in topics.items()
    ]


def _wire_assignment(partitions: list[TopicPartition]) -> bytes:
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=_wire_partitions(partitions)))


def _read_assignment(data: bytes) -> list[TopicPartition]:
    if not data:
        return []
    return [
        TopicPartition(entry.topic, index)
        for entry in decode_assignment(data).assigned_partitions
        for index in entry.partitions
    ]


_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class ClassicHeartbeatSender:
    """Sends the heartbeats of a member from the heartbeat thread. A member whose user stops polling leaves
    the group, so that other members get its partitions; the user learns it with the next poll. `run` runs in
    the thread; the user's loop calls `beat_as` and `on_poll`, and `on_error` is called there.
    """

    def __init__(
        self,
        thread: HeartbeatThread,
        config: ConsumerConfig,
        group_id: str,
        on_error: Callable[[ErrorCode], object],
        on_stalled: OnStalled | None = None,
    ) -> None:
        self._thread = thread
        self._config = config
        self._group_id = group_id
        self._on_error = on_error
        self._on_stalled = on_stalled
        self._member: GroupMemberIdentity | None = None
        self._changed: asyncio.Event | None = None
        self._last_poll = 0.0
        # The time of the last response to a heartbeat, by the clock of the thread's loop.
        self._last_answer = 0.0

    def beat_as(self, member: GroupMemberIdentity) -> None:
        self._thread.post(self._set_member, member)

    def on_poll(self) -> None:
        self._thread.post(self._note_poll)

    # In the heartbeat thread.

    def _set_member(self, member: GroupMemberIdentity) -> None:
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
                # A member that has to rejoin continues its heartbeats until it does, so that it is not
                # considered dead.
                if code is not ErrorCode.REBALANCE_IN_PROGRESS:
                    self._member = None
                self._thread.call_back(self._on_error, code)

    def _is_stalled(self) -> bool:
        return self._silent_ms() > self._config.max_poll_interval_ms

    def _silent_ms(self) -> int:
        return int((asyncio.get_running_loop().time() - self._last_poll) * 1000)

    async def _beat(self, member: GroupMemberIdentity) -> ErrorCode | None:
        loop = asyncio.get_running_loop()
        try:
            answer = await self._thread.coordinator.once(
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
            # No response for a whole session: the group has removed this member.
            if (loop.time() - self._last_answer) * 1000 > self._config.session_timeout_ms:
                return ErrorCode.UNKNOWN_MEMBER_ID
            return None
        code = ErrorCode.of(answer.error_code)
        if code in _MOVED:
            self._thread.coordinator.forget()
        if code in _MOVED or code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return None
        self._last_answer = loop.time()
        return code or None

    async def _leave(self, member: GroupMemberIdentity) -> None:
        stalled = Stalled(self._group_id, member.member_id, self._silent_ms())
        report_stall(stalled, self._config.max_poll_interval_ms, self._on_stalled)
        self._member = None
        if member.instance_id is None:
            identity = MemberIdentity(member_id=member.member_id, reason="the consumer does not poll")
            try:
                await self._thread.coordinator.once(
                    LeaveGroupRequest(group_id=self._group_id, members=[identity]), LeaveGroupResponse
                )
            except KafkaError as error:
                log.debug("group %r: leaving: %s", self._group_id, error)
        self._thread.call_back(self._on_error, ErrorCode.UNKNOWN_MEMBER_ID)
