"""The committed offsets of a group: fetch and commit, for members and for other clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.network_client import NetworkClient
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import ZERO_UUID
from ottla.rpc.connection import BrokerConnection

WITHOUT_TOPIC_IDS = 9
STABLE_FROM = 7
SINGLE_GROUP = 7


class CommittedOffset(NamedTuple):
    """The offset of the next record to read; `leader_epoch` is that of the record before it, -1 if
    unknown.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupMemberIdentity(NamedTuple):
    """The member that commits. The default, no member, is allowed while the group has no members."""

    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


class GroupOffsets:
    """OffsetFetch and OffsetCommit for one group."""

    __slots__ = ("_cluster", "_coordinator", "_group_id")

    def __init__(self, cluster: NetworkClient, group_id: str, coordinator: CoordinatorClient) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._coordinator = coordinator

    def _topic_id(self, topic: str) -> bytes | None:
        info = self._cluster.metadata.topics.get(topic)
        return info.topic_id if info is not None and not info.error else None

    def _ids(self, topics: Iterable[str]) -> tuple[dict[str, bytes], bool]:
        found = {topic: self._topic_id(topic) for topic in topics}
        return {topic: found_id or ZERO_UUID for topic, found_id in found.items()}, all(found.values())

    # Reading.

    async def fetch(
        self,
        partitions: Iterable[TopicPartition] | None,
        *,
        require_stable: bool = True,
        member: GroupMemberIdentity | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of these partitions, or of all; partitions without a commit are left
        out. The first error is raised.
        """
        indexes: dict[str, list[int]] | None = None
        if partitions is not None:
            indexes = {}
            for topic, index in partitions:
                indexes.setdefault(topic, []).append(index)
        ids, all_ids = self._ids(indexes or ())

        def request(connection: BrokerConnection) -> OffsetFetchRequest:
            version = connection.version_for(OffsetFetchRequest)
            if version <= SINGLE_GROUP:
                names = [
                    OffsetFetchRequestTopic(name=t, partition_indexes=i) for t, i in (indexes or {}).items()
                ]
                return OffsetFetchRequest(
                    group_id=self._group_id,
                    topics=names if indexes is not None else None,
                    # Brokers before Kafka 2.5 do not wait for transactions that are about to end.
                    require_stable=require_stable and version >= STABLE_FROM,
                )
            group = OffsetFetchRequestGroup(
                group_id=self._group_id,
                member_id=member.member_id if member is not None else None,
                member_epoch=member.epoch if member is not None else -1,
                topics=None
                if indexes is None
                else [
                    OffsetFetchRequestTopics(name=topic, topic_id=ids[topic], partition_indexes=numbers)
                    for topic, numbers in indexes.items()
                ],
            )
            return OffsetFetchRequest(groups=[group], require_stable=require_stable)

        answer = await self._coordinator.call(
            request,
            OffsetFetchResponse,
            _fetch_errors,
            at_most=None if indexes is not None and all_ids else WITHOUT_TOPIC_IDS,
            also_later=(ErrorCode.UNSTABLE_OFFSET_COMMIT,),
            timeout_ms=timeout_ms,
        )
        return self._committed_offsets(answer, {found: name for name, found in ids.items()})

    def _committed_offsets(
        self, answer: OffsetFetchResponse, names: Mapping[bytes, str]
    ) -> dict[TopicPartition, CommittedOffset]:
        group = answer.groups[0] if answer.groups else answer
        if group.error_code:
            code = ErrorCode.of(group.error_code)
            text = self._cluster.explain(code, AclOperation.DESCRIBE, self._group_id)
            raise KafkaError(code, f"group {self._group_id!r}: cannot read its offsets: {text}")
        found: dict[TopicPartition, CommittedOffset] = {}
        for topic in group.topics:
            name = topic.name or names.get(getattr(topic, "topic_id", ZERO_UUID), "")
            for entry in topic.partitions:
                partition = TopicPartition(name, entry.partition_index)
                if entry.error_code:
                    code = ErrorCode.of(entry.error_code)
                    text = self._cluster.explain(code, AclOperation.DESCRIBE, name)
                    raise KafkaError(
                        code, f"group {self._group_id!r}: cannot read its offset of {partition}: {text}"
                    )
                if entry.committed_offset >= 0:
                    found[partition] = CommittedOffset(
                        entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                    )
        return found

    # Writing.

    async def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member: GroupMemberIdentity = GroupMemberIdentity(),  # noqa: B008
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit, and return the error of each partition, or None. Retried while the coordinator moves."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, index), committed in offsets.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        ids, all_ids = self._ids(topics)
        answer = await self._coordinator.call(
            OffsetCommitRequest(
                group_id=self._group_id,
                generation_id_or_member_epoch=member.epoch,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                topics=[
                    OffsetCommitRequestTopic(name=topic, topic_id=ids[topic], partitions=entries)
                    for topic, entries in topics.items()
                ],
            ),
            OffsetCommitResponse,
            lambda answer: [entry.error_code for topic in answer.topics for entry in topic.partitions],
            at_most=None if all_ids else WITHOUT_TOPIC_IDS,
            timeout_ms=timeout_ms,
        )
        names = {found: name for name, found in ids.items()}
        return {
            partition: self._commit_error(partition, entry.error_code)
            for topic in answer.topics
            for entry in topic.partitions
            for partition in [TopicPartition(topic.name or names[topic.topic_id], entry.partition_index)]
        }

    def _commit_error(self, partition: TopicPartition, code: int) -> KafkaError | None:
        if not code:
            return None
        error = ErrorCode.of(code)
        of_group = error is ErrorCode.GROUP_AUTHORIZATION_FAILED
        text = self._cluster.explain(
            error, AclOperation.READ, self._group_id if of_group else partition.topic
        )
        return KafkaError(error, f"group {self._group_id!r}: cannot commit {partition}: {text}")


def _fetch_errors(answer: OffsetFetchResponse) -> list[int]:
    codes = [answer.error_code]
    codes += [entry.error_code for topic in answer.topics for entry in topic.partitions]
    for group in answer.groups:
        codes.append(group.error_code)
        codes += [entry.error_code for topic in group.topics for entry in topic.partitions]
    return codes
