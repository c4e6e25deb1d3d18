"""The committed offsets of one partition's groups: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete.

The coordinator accepts a commit of a member only in the member's generation or epoch, so that a member that
was replaced cannot overwrite what its successor has committed. In consumer groups it accepts a commit of an
older epoch for partitions that the member has owned since then: a rebalance that did not touch them fences
nothing. Streams groups are the same, by tasks in place of partitions.

The offsets of a transaction are kept apart until its marker comes. If it commits, they count, unless a newer
offset was committed for the partition in the meantime. Invariant: an offset is replaced only by one whose
record is later in the log, also when it was written earlier and became visible later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.classic_group import ClassicGroup, ClassicGroupState
from ottla.coordinator.group.classic_group_manager import ClassicGroupManager
from ottla.coordinator.group.consumer.consumer_group import ConsumerGroup, ConsumerGroupMember
from ottla.coordinator.group.group_metadata_manager import Group, GroupMetadataManager
from ottla.coordinator.group.requests import (
    CommitOffsets,
    CommitTransactionalOffsets,
    DeleteOffsets,
    FetchOffsets,
)
from ottla.coordinator.group.share.share_group import ShareGroup
from ottla.coordinator.group.streams.streams_group import StreamsGroup, StreamsGroupMember
from ottla.coordinator.runtime.effects import (
    CoordinatorRecord,
    Effects,
    EventTime,
    ProducerIdAndEpoch,
    ReplayedRecord,
    ReplyTo,
)
from ottla.protocol.consumer_offsets_records import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import (
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
_NO_EXPIRY = 2**63 - 1
_FIRST_VERSION_WITH_EPOCHS = 9
_FIRST_TRANSACTIONAL_WITH_EPOCHS = 6

PartitionCheck = Callable[[str, bytes, int], None] | None
"""Raises for a partition that the sender may not commit; None: it may commit all."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset, as its record has it."""

    value: OffsetCommitValue
    record_offset: int
    """The offset of the record in the log."""


TopicPartitionKey = tuple[str, int]


class OffsetMetadataManager:
    """The offsets change only by replay."""

    __slots__ = ("_classic_groups", "_committed", "_metadata", "_pending")

    def __init__(self, metadata: GroupMetadataManager, classic_groups: ClassicGroupManager) -> None:
        self._metadata = metadata
        self._classic_groups = classic_groups
        self._committed: dict[str, dict[TopicPartitionKey, OffsetAndMetadata]] = {}  # by group
        # By producer id: the offsets of its open transaction, by group.
        self._pending: dict[int, dict[str, dict[TopicPartitionKey, OffsetAndMetadata]]] = {}

    # OffsetCommit

    def commit_offsets(
        self, to: ReplyTo[OffsetCommitResponse] | None, request: CommitOffsets, now: EventTime
    ) -> Effects:
        body = request.body
        check = self._validate_offset_commit(request, now)
        effects = Effects()
        response = OffsetCommitResponse()
        expire_ms = (
            -1 if body.retention_time_ms < 0 else min(now.wall_ms + body.retention_time_ms, _NO_EXPIRY)
        )
        for topic in body.topics:
            answered = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answered)
            for partition in topic.partitions:
                if check is not None:
                    check(topic.name, topic.topic_id, partition.partition_index)
                code = self._add_record(
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
        return effects.reply(to, response)

    def _add_record(
        self, effects: Effects, group_id: str, topic: str, partition: int, value: OffsetCommitValue
    ) -> ErrorCode:
        if len(value.metadata) > self._metadata.settings.node.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        known = self._metadata.image.topics.by_name.get(topic)
        if value.topic_id == ZERO_UUID and known is not None:
            value.topic_id = known.id
        effects.records.append(records.offset_commit(group_id, topic, partition, value))
        return ErrorCode.NONE

    def _validate_offset_commit(self, request: CommitOffsets, now: EventTime) -> PartitionCheck:
        """Raise unless the sender may commit; the result checks each partition."""
        body = request.body
        epoch = body.generation_id_or_member_epoch
        group = self._metadata.groups.get(body.group_id)
        if group is None:
            if epoch < 0:
                return None  # from outside of any group: the commit creates a simple group
            if request.version >= _FIRST_VERSION_WITH_EPOCHS:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {body.group_id} not found.")
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"Group {body.group_id} not found; join again.")
        if isinstance(group, ConsumerGroup):
            return self._check_consumer(
                group, body.member_id, epoch, old_version=request.version < _FIRST_VERSION_WITH_EPOCHS
            )
        if isinstance(group, StreamsGroup):
            if request.version < _FIRST_VERSION_WITH_EPOCHS and body.member_id in group.members:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "OffsetCommit version 9 or above must be used by members using the streams group "
                    "protocol",
                )
            return self._check_streams(group, body.member_id, epoch)
        if isinstance(group, ShareGroup):
            raise _has_no_offsets(body.group_id)
        self._check_classic(group, body.member_id, body.group_instance_id, epoch, transactional=False)
        member = group.members.get(body.member_id)
        if member is not None and group.state in (
            ClassicGroupState.STABLE,
            ClassicGroupState.PREPARING_REBALANCE,
        ):
            self._classic_groups.reschedule_heartbeat(group, member, now)
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
        if generation < 0 and group.state is ClassicGroupState.EMPTY:
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
                f"group {group.group_id} has members; only an empty group accepts offsets from outside",
            )
        if not transactional and group.state is ClassicGroupState.COMPLETING_REBALANCE:
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

    def _check_epoch(self, group: ConsumerGroup, member: ConsumerGroupMember, epoch: int) -> PartitionCheck:
        if epoch == member.epoch:
            return None
        if member.is_classic or epoch > member.epoch or epoch < 0:
            code = ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
            raise KafkaError(
                code,
                f"member {member.member_id} of {group.group_id} is in epoch {member.epoch}, not {epoch}",
            )
        by_name = self._metadata.image.topics.by_name

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

    def _check_streams(self, group: StreamsGroup, member_id: str, epoch: int) -> PartitionCheck:
        if epoch < 0 and group.is_empty:
            return None
        member = group.member(member_id)
        if epoch == member.epoch:
            return None
        if epoch > member.epoch:
            raise _stale(f"Received member epoch {epoch} is newer than current member epoch {member.epoch}.")
        return partial(_check_task, group, member, epoch)

    # TxnOffsetCommit

    def commit_transactional_offsets(
        self, to: ReplyTo[TxnOffsetCommitResponse] | None, request: CommitTransactionalOffsets, now: EventTime
    ) -> Effects:
        body = request.body
        # Older versions do not know the errors of consumer groups.
        knows_epochs = request.version >= _FIRST_TRANSACTIONAL_WITH_EPOCHS
        stale = nullcontext if knows_epochs else _stale_is_illegal_generation
        with stale():
            check = self._validate_transactional_offset_commit(body, knows_epochs=knows_epochs)
        effects = Effects(producer=ProducerIdAndEpoch(body.producer_id, body.producer_epoch))
        response = TxnOffsetCommitResponse()
        for topic in body.topics:
            answered = TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
            response.topics.append(answered)
            for partition in topic.partitions:
                if check is not None:
                    with stale():
                        check(topic.name, topic.topic_id, partition.partition_index)
                code = self._add_record(
                    effects,
                    body.group_id,
                    topic.name,
                    partition.partition_index,
                    OffsetCommitValue(
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.committed_metadata or "",
                        commit_timestamp=now.wall_ms,
                        topic_id=topic.topic_id,
                    ),
                )
                answered.partitions.append(
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=int(code)
                    )
                )
        return effects.reply(to, response)

    def _validate_transactional_offset_commit(
        self, body: TxnOffsetCommitRequest, *, knows_epochs: bool
    ) -> PartitionCheck:
        """Raise unless the sender may commit; the result checks each partition."""
        group = self._metadata.groups.get(body.group_id)
        epoch, member_id = body.generation_id_or_member_epoch, body.member_id
        if group is None:
            if epoch >= 0:
                code = ErrorCode.GROUP_ID_NOT_FOUND if knows_epochs else ErrorCode.ILLEGAL_GENERATION
                raise KafkaError(code, f"there is no group {body.group_id!r} in generation {epoch}")
        elif isinstance(group, ClassicGroup):
            self._check_classic(group, member_id, body.group_instance_id, epoch, transactional=True)
        elif isinstance(group, ShareGroup):
            raise _has_no_offsets(body.group_id)
        elif epoch != -1 or member_id or body.group_instance_id is not None:
            if isinstance(group, StreamsGroup):
                return self._check_streams(group, member_id, epoch)
            return self._check_consumer(group, member_id, epoch, old_version=False)
        return None

    # OffsetFetch

    def fetch_offsets(self, to: ReplyTo[OffsetFetchResponseGroup] | None, request: FetchOffsets) -> Effects:
        asked = request.group
        group = self._metadata.groups.get(asked.group_id)
        if isinstance(group, ConsumerGroup) and (asked.member_id is not None or asked.member_epoch >= 0):
            member = group.member(asked.member_id or "")
            if asked.member_epoch != member.epoch:
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH,
                    f"member {member.member_id} of group {asked.group_id} is in epoch {member.epoch}, "
                    f"not {asked.member_epoch}",
                )
        elif isinstance(group, StreamsGroup) and (asked.member_id is not None or asked.member_epoch >= 0):
            expected = group.member(asked.member_id or "").epoch
            if asked.member_epoch != expected:
                raise _stale(
                    f"The received member epoch {asked.member_epoch} does not match the expected member "
                    f"epoch {expected}."
                )
        response = OffsetFetchResponseGroup(group_id=asked.group_id)
        topics = self._all_topics(asked.group_id) if asked.topics is None else asked.topics
        for topic in topics:
            response.topics.append(
                OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        self._partition_response(asked.group_id, topic, partition, request.require_stable)
                        for partition in topic.partition_indexes
                    ],
                )
            )
        return Effects().reply(to, response)

    def _all_topics(self, group_id: str) -> list[OffsetFetchRequestTopics]:
        by_topic: dict[str, list[int]] = {}
        for (topic, partition), _ in self._offsets_of(group_id):
            by_topic.setdefault(topic, []).append(partition)
        return [
            OffsetFetchRequestTopics(name=topic, partition_indexes=sorted(partitions))
            for topic, partitions in by_topic.items()
        ]

    def _partition_response(
        self, group_id: str, topic: OffsetFetchRequestTopics, partition: int, require_stable: bool
    ) -> OffsetFetchResponsePartitions:
        answer = OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=INVALID_OFFSET, committed_leader_epoch=-1, metadata=""
        )
        if require_stable and self._has_pending(group_id, topic.name, partition):
            answer.error_code = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
            return answer
        found = self.offset(group_id, topic.name, partition)
        if found is None or _is_of_other_topic(found, topic.topic_id):
            return answer
        answer.committed_offset = found.offset
        answer.committed_leader_epoch = found.leader_epoch
        answer.metadata = found.metadata
        return answer

    # OffsetDelete

    def delete_offsets(self, to: ReplyTo[OffsetDeleteResponse] | None, request: DeleteOffsets) -> Effects:
        body = request.body
        group = self._metadata.group(body.group_id)
        if isinstance(group, ClassicGroup):
            if not group.is_empty and not group.speaks_consumer_protocol:
                raise KafkaError(
                    ErrorCode.NON_EMPTY_GROUP, f"group {body.group_id} has members that may use its offsets"
                )
            subscribed = group.subscribed_topics or frozenset()
        elif isinstance(group, ShareGroup):
            raise _has_no_offsets(body.group_id)
        else:
            subscribed = group.subscribed_topics
        effects = Effects()
        response = OffsetDeleteResponse()
        pending = self._pending_of(body.group_id)
        for topic in body.topics:
            answered = OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(answered)
            for partition in topic.partitions:
                where = (topic.name, partition.partition_index)
                code = ErrorCode.NONE
                if topic.name in subscribed:
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self.offset(body.group_id, *where) is not None or where in pending:
                    effects.records.append(records.offset_commit(body.group_id, *where, None))
                answered.partitions.append(
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index, error_code=int(code)
                    )
                )
        return effects.reply(to, response)

    # Deletion and expiry

    def delete_all_offsets(self, group_id: str, out: list[CoordinatorRecord]) -> None:
        """Delete the offsets of a group that is deleted."""
        keys = {key for key, _ in self._offsets_of(group_id)} | self._pending_of(group_id)
        out += [records.offset_commit(group_id, *key, None) for key in sorted(keys)]

    def on_topics_deleted(self, topics: frozenset[str]) -> Effects:
        """Delete the offsets of deleted topics, so that they do not count for later topics of the name."""
        return Effects(
            records=[
                records.offset_commit(group_id, topic, partition, None)
                for group_id, (topic, partition) in self._offsets_of_topics(topics)
            ],
            atomic=False,
        )

    def cleanup_expired_offsets(self, group: Group, out: list[CoordinatorRecord], wall_ms: int) -> bool:
        """Delete the expired offsets of a group; True if none remain."""
        group_id = group.group_id
        pending = self._pending_of(group_id)
        remain = bool(pending)
        for (topic, partition), value in self._offsets_of(group_id):
            if (topic, partition) in pending or not self._is_expired(group, topic, value, wall_ms):
                remain = True
            else:
                out.append(records.offset_commit(group_id, topic, partition, None))
        return not remain

    def _is_expired(self, group: Group, topic: str, value: OffsetCommitValue, wall_ms: int) -> bool:
        since_ms = value.commit_timestamp
        if isinstance(group, ConsumerGroup | StreamsGroup):
            if topic in group.subscribed_topics:
                return False
        elif isinstance(group, ClassicGroup) and group.protocol_type is not None:
            if group.state is ClassicGroupState.EMPTY:
                if group.state_timestamp_ms >= 0:
                    since_ms = group.state_timestamp_ms
            elif (
                group.state is not ClassicGroupState.STABLE
                or group.subscribed_topics is None
                or topic in group.subscribed_topics
            ):
                return False
        if value.expire_timestamp != -1:
            return wall_ms >= value.expire_timestamp
        return wall_ms - since_ms >= self._metadata.settings.node.offsets_retention_ms

    # The offsets

    def offset(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        found = self._committed.get(group_id, {}).get((topic, partition))
        return None if found is None else found.value

    def committed(self, group_id: str) -> list[tuple[TopicPartitionKey, int]]:
        """The committed offsets of a group, by topic and partition."""
        found = self._committed.get(group_id, {})
        return [(key, committed.value.offset) for key, committed in found.items()]

    @property
    def committed_count(self) -> int:
        return sum(map(len, self._committed.values()))

    def _offsets_of(self, group_id: str) -> Iterator[tuple[TopicPartitionKey, OffsetCommitValue]]:
        for key, committed in list(self._committed.get(group_id, {}).items()):
            yield key, committed.value

    def _offsets_of_topics(self, topics: Collection[str]) -> list[tuple[str, TopicPartitionKey]]:
        """By group, the partitions of these topics that have offsets, also in open transactions."""
        return sorted(
            {
                (group_id, where)
                for groups in (self._committed, *self._pending.values())
                for group_id, offsets in groups.items()
                for where in offsets
                if where[0] in topics
            }
        )

    # Open transactions

    def _has_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has committed an offset for this partition."""
        return any((topic, partition) in groups.get(group_id, {}) for groups in self._pending.values())

    def _pending_of(self, group_id: str) -> set[TopicPartitionKey]:
        return {key for groups in self._pending.values() for key in groups.get(group_id, {})}

    # Replay

    def replay(self, record: ReplayedRecord) -> str | None:
        """Apply the record of an offset; the group of the offset, None for a tombstone."""
        key, value = record.key, record.value
        if isinstance(key, LegacyOffsetCommitKey):
            assert value is None or isinstance(value, LegacyOffsetCommitValue)
            key, value = _current_key(key), None if value is None else _current_value(value)
        assert isinstance(key, OffsetCommitKey)
        assert value is None or isinstance(value, OffsetCommitValue)
        self._replay_offset(key, value, record.offset, record.producer)
        return None if value is None else key.group

    def _replay_offset(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        offset: int,
        producer: ProducerIdAndEpoch | None,
    ) -> None:
        where = (key.topic, key.partition)
        if value is None:
            self._remove(key.group, where)
            # A deletion reaches what open transactions hold as well.
            for producer_id in list(self._pending):
                self._remove_pending(producer_id, key.group, where)
        elif producer is None:
            self._committed.setdefault(key.group, {})[where] = OffsetAndMetadata(value, offset)
        else:
            groups = self._pending.setdefault(producer.id, {})
            groups.setdefault(key.group, {})[where] = OffsetAndMetadata(value, offset)

    def replay_end_transaction(self, producer_id: int, commit: bool) -> list[str]:
        """Commit or drop the offsets of a transaction; the groups for which it had offsets."""
        groups = self._pending.pop(producer_id, {})
        if commit:
            for group_id, offsets in groups.items():
                for where, pending in offsets.items():
                    known = self._committed.get(group_id, {}).get(where)
                    if known is None or known.record_offset < pending.record_offset:
                        self._committed.setdefault(group_id, {})[where] = pending
        return list(groups)

    def _remove(self, group_id: str, where: TopicPartitionKey) -> None:
        offsets = self._committed.get(group_id)
        if offsets is not None and offsets.pop(where, None) is not None and not offsets:
            del self._committed[group_id]

    def _remove_pending(self, producer_id: int, group_id: str, where: TopicPartitionKey) -> None:
        groups = self._pending[producer_id]
        offsets = groups.get(group_id)
        if offsets is not None and offsets.pop(where, None) is not None and not offsets:
            del groups[group_id]
            if not groups:
                del self._pending[producer_id]


def _check_task(
    group: StreamsGroup, member: StreamsGroupMember, epoch: int, topic: str, _topic_id: bytes, partition: int
) -> None:
    """Raise unless the member has had the task of a partition since the epoch of its commit."""
    if group.topology is None:
        raise _stale("Topology is not available for offset commit validation.")
    id = group.topology.source_topics.get(topic)
    if id is None:
        raise _stale(f"Topic {topic} is not in the topology.")
    since = member.assigned.active.get(id, {}).get(partition)
    if since is None:
        since = member.revoking.active.get(id, {}).get(partition)
    if since is None:
        raise _stale(f"Task {id}-{partition} is not assigned or pending revocation for member.")
    if epoch < since:
        raise _stale(
            f"Received member epoch {epoch} is older than assignment epoch {since} for task {id}-{partition}."
        )


def _stale(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH, message)


@contextmanager
def _stale_is_illegal_generation() -> Iterator[None]:
    """In transactions a stale epoch is ILLEGAL_GENERATION, the one that older producers know."""
    try:
        yield
    except KafkaError as error:
        if error.code is ErrorCode.STALE_MEMBER_EPOCH:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.message) from None
        raise


def _has_no_offsets(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")


def _is_of_other_topic(value: OffsetCommitValue, topic_id: bytes) -> bool:
    """Whether the offset is of a deleted topic of the same name, and so means nothing in the present one."""
    return topic_id != ZERO_UUID and value.topic_id not in (ZERO_UUID, topic_id)


def _current_key(key: LegacyOffsetCommitKey) -> OffsetCommitKey:
    return OffsetCommitKey(group=key.group, topic=key.topic, partition=key.partition)


def _current_value(value: LegacyOffsetCommitValue) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=value.offset, metadata=value.metadata, commit_timestamp=value.commit_timestamp
    )
