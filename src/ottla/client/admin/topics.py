"""Topics: create, list and describe them, add partitions, delete them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.client.admin.requests import AdminRequests
from ottla.client.cluster_metadata import TopicInfo
from ottla.protocol.acl import AclOperation, operations_of
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

# Between two attempts, where a broker does not say how long a quota is used up.
_LEAST_WAIT_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. `partitions` and `replication_factor` of -1 take the broker's defaults;
    `assignments` give the replicas of each partition instead of both.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class TopicsAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    async def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create one topic; TOPIC_ALREADY_EXISTS if there is one with this name."""
        topic = NewTopic(name, partitions, replication_factor, configs or {}, assignments or {})
        error = (await self.create_many([topic], validate_only=validate_only))[name]
        if error is not None:
            raise error

    async def create_many(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, KafkaError | None]:
        """Create topics, and return the result of each; `validate_only` only checks whether they could be
        created.
        """
        wanted = list(topics)

        async def attempt(names: Sequence[str]) -> tuple[dict[str, KafkaError | None], int]:
            request = CreateTopicsRequest(
                topics=[_creatable(topic) for topic in wanted if topic.name in names],
                timeout_ms=self._requests.timeout_ms,
                validate_only=validate_only,
            )
            answer = await self._requests.controller(
                request, CreateTopicsResponse, lambda r: (topic.error_code for topic in r.topics)
            )
            results = {
                result.name: self._requests.error_of(result, f"topic {result.name!r}")
                for result in answer.topics
            }
            return results, answer.throttle_time_ms

        return await self._within_quota([topic.name for topic in wanted], attempt)

    async def _within_quota(
        self,
        names: Sequence[str],
        attempt: Callable[[Sequence[str]], Awaitable[tuple[dict[str, KafkaError | None], int]]],
    ) -> dict[str, KafkaError | None]:
        """Repeat for those topics that the quota on changes of partitions does not allow yet, after the time
        that the broker says; THROTTLING_QUOTA_EXCEEDED of those for which that is too long.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._requests.timeout_ms / 1000
        results: dict[str, KafkaError | None] = {}
        left = names
        while True:
            found, throttle_ms = await attempt(left)
            results |= found
            left = [
                name
                for name, error in found.items()
                if error is not None and error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
            ]
            wait_s = max(throttle_ms / 1000, _LEAST_WAIT_S)
            if not left or loop.time() + wait_s > deadline:
                return results
            await asyncio.sleep(wait_s)

    async def delete(self, *names: str) -> None:
        """Delete topics by name; the first failure is raised after all were tried."""
        for error in (await self.delete_many(names)).values():
            if error is not None:
                raise error

    async def delete_many(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        """Delete topics, and return the result of each."""
        connection = await self._requests.cluster.any_connection()
        by_state = connection.version_for(DeleteTopicsRequest) >= 6

        async def attempt(wanted: Sequence[str]) -> tuple[dict[str, KafkaError | None], int]:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in wanted] if by_state else [],
                topic_names=list(wanted),
                timeout_ms=self._requests.timeout_ms,
            )
            answer = await self._requests.controller(
                request, DeleteTopicsResponse, lambda r: (topic.error_code for topic in r.responses)
            )
            results = {
                result.name: self._requests.error_of(result, f"topic {result.name!r}")
                for result in answer.responses
                if result.name is not None
            }
            return results, answer.throttle_time_ms

        return await self._within_quota(list(names), attempt)

    async def list(self, *, include_internal: bool = False) -> list[TopicInfo]:
        """All topics by name."""
        view = await self._requests.cluster.refresh(all_topics=True)
        return [
            view.topics[name]
            for name in sorted(view.topics)
            if include_internal or not view.topics[name].is_internal
        ]

    async def describe(self, name: str) -> TopicInfo:
        """The topic by fresh metadata; UNKNOWN_TOPIC_OR_PARTITION if there is none with this name."""
        info = (await self._requests.cluster.refresh(topics=[name])).topics.get(name)
        if info is None or info.error:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
            text = self._requests.cluster.explain(code, AclOperation.DESCRIBE, name)
            raise KafkaError(code, f"topic {name!r}: {text}")
        return info

    async def authorized_operations(self, name: str) -> frozenset[AclOperation]:
        """What the principal of this client may do with a topic; UNKNOWN_TOPIC_OR_PARTITION if there is none
        with this name, or the principal may not see it.
        """
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        answer = await self._requests.any(request, MetadataResponse)
        for topic in answer.topics:
            code = ErrorCode.of(topic.error_code)
            if code:
                text = self._requests.cluster.explain(code, AclOperation.DESCRIBE, name)
                raise KafkaError(code, f"topic {name!r}: {text}")
        return operations_of(answer.topics[0].topic_authorized_operations)

    async def add_partitions(
        self,
        name: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Increase a topic to `total` partitions; `assignments` give the replicas of each new one."""
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=name,
                    count=total,
                    assignments=None
                    if assignments is None
                    else [CreatePartitionsAssignment(broker_ids=list(ids)) for ids in assignments],
                )
            ],
            timeout_ms=self._requests.timeout_ms,
            validate_only=validate_only,
        )

        async def attempt(_names: Sequence[str]) -> tuple[dict[str, KafkaError | None], int]:
            answer = await self._requests.controller(
                request, CreatePartitionsResponse, lambda r: (topic.error_code for topic in r.results)
            )
            return {
                name: self._requests.error_of(answer.results[0], f"topic {name!r}")
            }, answer.throttle_time_ms

        error = (await self._within_quota([name], attempt))[name]
        if error is not None:
            raise error


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignments else topic.partitions,
        replication_factor=-1 if topic.assignments else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in topic.assignments.items()
        ],
        configs=[CreatableTopicConfig(name=n, value=v) for n, v in topic.configs.items()],
    )
