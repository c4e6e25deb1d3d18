"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

A commit of a member is taken only in the generation or epoch that the member is in, so that one that was
replaced cannot take back what its successor has committed. Of consumer groups, a commit of an older epoch is
taken for partitions that the member has had since then: a rebalance that did not touch them fences nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.group import ClassicGroup, ClassicState
from ottla.coordinator.group.classic.rebalance import ClassicRebalance
from ottla.coordinator.group.consumer.group import ConsumerGroup, ConsumerMember
from ottla.coordinator.group.offsets.store import OffsetStore
from ottla.coordinator.group.requests import FetchOffsets, GroupRequest
from ottla.coordinator.group.state import GroupState
from ottla.coordinator.runtime.effects import Effects, EventTime, ProducerIdAndEpoch, ReplyTo
from ottla.protocol.consumer_offsets_records import OffsetCommitValue
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.schema import ZERO_UUID

INVALID_OFFSET = -1
_FOR_EVER = 2**63 - 1
_FIRST_VERSION_WITH_EPOCHS = 9

PartitionCheck = Callable[[str, bytes, int], None] | None
"""Raises for a partition that the sender may not commit; None: it may commit all."""


class OffsetCoordinator:
    __slots__ = ("_rebalance", "_state", "_store")

    def __init__(self, state: GroupState, store: OffsetStore, rebalance: ClassicRebalance) -> None:
        self._state = state
        self._store = store
        self._rebalance = rebalance

    # OffsetCommit

    def commit(self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], now: EventTime) -> Effects:
        body: OffsetCommitRequest = request.body
        check = self._check_commit(request, now)
        effects = Effects()
        response = OffsetCommitResponse()
        expire_ms = -1 if body.retention_time_ms < 0 else min(now.wall_ms + body.retention_time_ms, _FOR_EVER)
        for topic in body.topics:
            answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answered)
            for partition in topic.partitions:
                if check is not None:
                    check(topic.name, topic.topic_id, partition.partition_index)
                code = self._record(
                    effects,
                    body.group_id,
                    topic.name,
                    partition.partition_index,
                    OffsetCommitValue(
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.committed_metadata or "",
                        commit_timestamp=now.wall_ms,
                        expire_timestamp=expire_ms,
                        topic_id=topic.topic_id,
                    ),
                )
                answered.partitions.append(
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=int(code)
                    )
                )
        return effects.reply(token, response)

    def _record(
        self, effects: Effects, group_id: str, topic: str, partition: int, value: OffsetCommitValue
    ) -> ErrorCode:
        if len(value.metadata) > self._state.settings.node.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        known = self._state.image.topics.by_name.get(topic)
        if value.topic_id == ZERO_UUID and known is not None:
            value.topic_id = known.id
        effects.records.append(records.offset_commit(group_id, topic, partition, value))
        return ErrorCode.NONE

    def _check_commit(self, request: GroupRequest[Any, Any], now: EventTime) -> PartitionCheck:
        """Raise unless the sender may commit; what it gives back checks each partition."""
        body: OffsetCommitRequest = request.body
        epoch = body.generation_id_or_member_epoch
        group = self._state.groups.get(body.group_id)
        if group is None:
            if epoch < 0:
                return None  # from outside of any group: the commit makes a simple group
            if request.version >= _FIRST_VERSION_WITH_EPOCHS:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {body.group_id!r}")
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"there is no group {body.group_id!r}; join again")
        if isinstance(group, ConsumerGroup):
            return self._check_consumer(
                group, body.member_id, epoch, old_version=request.version < _FIRST_VERSION_WITH_EPOCHS
            )
        self._check_classic(group, body.member_id, body.group_instance_id, epoch, transactional=False)
        member = group.members.get(body.member_id)
        if member is not None and group.state in (ClassicState.STABLE, ClassicState.PREPARING_REBALANCE):
            self._rebalance.alive(group, member, now)
        return None

    def _check_classic(
        self,
        group: ClassicGroup,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        transactional: bool,
    ) -> None:
        if generation < 0 and group.state is ClassicState.EMPTY:
            return
        if generation >= 0 or member_id or instance_id is not None:
            group.check_member(member_id, instance_id)
            if generation != group.generation:
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION,
                    f"group {group.group_id} is in generation {group.generation}, not {generation}",
                )
        elif not transactional:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {group.group_id} has members; offsets can be set from outside when it is empty",
            )
        if not transactional and group.state is ClassicState.COMPLETING_REBALANCE:
            raise KafkaError(
                ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id} awaits its leader's assignment"
            )

    def _check_consumer(
        self, group: ConsumerGroup, member_id: str, epoch: int, *, old_version: bool
    ) -> PartitionCheck:
        if epoch < 0 and group.is_empty:
            return None
        member = group.member(member_id)
        if not member.is_classic and old_version:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "members of consumer groups commit with version 9 of OffsetCommit or later",
            )
        return self._check_epoch(group, member, epoch)

    def _check_epoch(self, group: ConsumerGroup, member: ConsumerMember, epoch: int) -> PartitionCheck:
        if epoch == member.epoch:
            return None
        if member.is_classic or epoch > member.epoch or epoch < 0:
            code = ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
            raise KafkaError(
                code,
                f"member {member.member_id} of {group.group_id} is in epoch {member.epoch}, not {epoch}",
            )
        by_name = self._state.image.topics.by_name

        def check(topic: str, topic_id: bytes, partition: int) -> None:
            if topic_id == ZERO_UUID and topic in by_name:
                topic_id = by_name[topic].id
            since = member.assigned.get(topic_id, {}).get(partition)
            if since is None:
                since = member.revoking.get(topic_id, {}).get(partition)
            if since is None or epoch < since:
                raise KafkaError(
                    ErrorCode.STALE_MEMBER_EPOCH,
                    f"member {member.member_id} of group {group.group_id} did not have {topic}-{partition} "
                    f"in epoch {epoch}; it is in epoch {member.epoch}",
                )

        return check

    # TxnOffsetCommit

    def commit_in_transaction(
        self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], now: EventTime
    ) -> Effects:
        body: TxnOffsetCommitRequest = request.body
        self._check_transactional(body)
        effects = Effects(producer=ProducerIdAndEpoch(body.producer_id, body.producer_epoch))
        response = TxnOffsetCommitResponse()
        for topic in body.topics:
            answered = TxnOffsetCommitResponseTopic(name=topic.name)
            response.topics.append(answered)
            for partition in topic.partitions:
                code = self._record(
                    effects,
                    body.group_id,
                    topic.name,
                    partition.partition_index,
                    OffsetCommitValue(
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.committed_metadata or "",
                        commit_timestamp=now.wall_ms,
                    ),
                )
                answered.partitions.append(
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=int(code)
                    )
                )
        return effects.reply(token, response)

    def _check_transactional(self, body: TxnOffsetCommitRequest) -> None:
        group = self._state.groups.get(body.group_id)
        epoch, member_id = body.generation_id, body.member_id
        if group is None:
            if epoch >= 0:
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION, f"there is no group {body.group_id!r} in generation {epoch}"
                )
        elif isinstance(group, ClassicGroup):
            self._check_classic(group, member_id, body.group_instance_id, epoch, transactional=True)
        elif epoch != -1 or member_id or body.group_instance_id is not None:
            if epoch < 0 and group.is_empty:
                return
            member = group.member(member_id)
            if epoch != member.epoch:
                # The transaction's producer learns the member's epoch late; as Kafka, tell it the old way.
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH,
                    f"member {member_id} of group {body.group_id} is in epoch {member.epoch}, not {epoch}",
                )

    # OffsetFetch

    def fetch(self, token: ReplyTo[Any] | None, request: FetchOffsets) -> Effects:
        asked = request.group
        group = self._state.groups.get(asked.group_id)
        if isinstance(group, ConsumerGroup) and (asked.member_id is not None or asked.member_epoch >= 0):
            member = group.member(asked.member_id or "")
            if asked.member_epoch != member.epoch:
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH,
                    f"member {member.member_id} of group {asked.group_id} is in epoch {member.epoch}, "
                    f"not {asked.member_epoch}",
                )
        response = OffsetFetchResponseGroup(group_id=asked.group_id)
        topics = self._all_topics(asked.group_id) if asked.topics is None else asked.topics
        for topic in topics:
            response.topics.append(
                OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        self._fetched(asked.group_id, topic, partition, request.require_stable)
                        for partition in topic.partition_indexes
                    ],
                )
            )
        return Effects().reply(token, response)

    def _all_topics(self, group_id: str) -> list[OffsetFetchRequestTopics]:
        by_topic: dict[str, list[int]] = {}
        for (topic, partition), _ in self._store.of_group(group_id):
            by_topic.setdefault(topic, []).append(partition)
        return [
            OffsetFetchRequestTopics(name=topic, partition_indexes=sorted(partitions))
            for topic, partitions in by_topic.items()
        ]

    def _fetched(
        self, group_id: str, topic: OffsetFetchRequestTopics, partition: int, require_stable: bool
    ) -> OffsetFetchResponsePartitions:
        answer = OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=INVALID_OFFSET, committed_leader_epoch=-1, metadata=""
        )
        if require_stable and self._store.is_pending(group_id, topic.name, partition):
            answer.error_code = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
            return answer
        found = self._store.get(group_id, topic.name, partition)
        if found is None or _is_of_other_topic(found, topic.topic_id):
            return answer
        answer.committed_offset = found.offset
        answer.committed_leader_epoch = found.leader_epoch
        answer.metadata = found.metadata
        return answer

    # OffsetDelete

    def delete(self, token: ReplyTo[Any] | None, body: OffsetDeleteRequest) -> Effects:
        group = self._state.group(body.group_id)
        if isinstance(group, ClassicGroup):
            if not group.is_empty and not group.speaks_consumer_protocol:
                raise KafkaError(
                    ErrorCode.NON_EMPTY_GROUP, f"group {body.group_id} has members that may use its offsets"
                )
            subscribed = group.subscribed_topics or frozenset()
        else:
            subscribed = group.subscribed_topics
        effects = Effects()
        response = OffsetDeleteResponse()
        pending = self._store.pending_of_group(body.group_id)
        for topic in body.topics:
            answered = OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(answered)
            for partition in topic.partitions:
                where = (topic.name, partition.partition_index)
                code = ErrorCode.NONE
                if topic.name in subscribed:
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self._store.get(body.group_id, *where) is not None or where in pending:
                    effects.records.append(records.offset_commit(body.group_id, *where, None))
                answered.partitions.append(
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index, error_code=int(code)
                    )
                )
        return effects.reply(token, response)


def _is_of_other_topic(value: OffsetCommitValue, topic_id: bytes) -> bool:
    """A topic that was deleted and made again is another topic; its old offsets mean nothing there."""
    return topic_id != ZERO_UUID and value.topic_id not in (ZERO_UUID, topic_id)
