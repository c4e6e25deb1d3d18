"""Send admin requests to the right node, and retry some of their failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeVar

from ottla.client.network_client import NetworkClient
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import Request, Response
from ottla.rpc.errors import ClientFailure

R = TypeVar("R", bound=Response)
T = TypeVar("T")


class HasError(Protocol):
    error_code: int
    error_message: str | None


# What a client must be allowed to do, by the result that says that it is not.
_OPERATIONS: Final = {
    "CreatableTopicResult": AclOperation.CREATE,
    "DeletableTopicResult": AclOperation.DELETE,
    "CreatePartitionsTopicResult": AclOperation.ALTER,
    "DescribeConfigsResult": AclOperation.DESCRIBE_CONFIGS,
    "DescribeClientQuotasResponse": AclOperation.DESCRIBE_CONFIGS,
    "AlterConfigsResourceResponse": AclOperation.ALTER_CONFIGS,
    "EntryData": AclOperation.ALTER_CONFIGS,
    "DescribeAclsResponse": AclOperation.DESCRIBE,
    "DescribeQuorumResponse": AclOperation.DESCRIBE,
    "ListPartitionReassignmentsResponse": AclOperation.DESCRIBE,
    "DescribeUserScramCredentialsResponse": AclOperation.DESCRIBE,
    "PartitionResponse": AclOperation.READ,
    "DescribeShareRecordsResponse": AclOperation.DESCRIBE,
    "DescribeShareRecordsResponsePartition": AclOperation.DESCRIBE,
    "AlterShareRecordsResponse": AclOperation.READ,
    "AlterShareRecordsResponsePartition": AclOperation.READ,
}


class AdminRequests:
    """Sends requests to any node, to the controller, or to the leaders of partitions, within one time limit
    for a call.
    """

    __slots__ = ("cluster", "timeout_ms")

    def __init__(self, cluster: NetworkClient, timeout_ms: int) -> None:
        self.cluster = cluster
        self.timeout_ms = timeout_ms

    def error_of(self, result: HasError, subject: str) -> KafkaError | None:
        """Return the error of a result about `subject`, in the broker's words if it has some."""
        if not result.error_code:
            return None
        code = ErrorCode.of(result.error_code)
        operation = _OPERATIONS.get(type(result).__name__, AclOperation.ALTER)
        name = getattr(result, "name", None) or getattr(result, "resource_name", None) or subject
        text = self.cluster.explain(code, operation, name, result.error_message)
        return KafkaError(code, f"{subject}: {text}")

    def raise_error(self, result: HasError, subject: str) -> None:
        error = self.error_of(result, subject)
        if error is not None:
            raise error

    async def retrying(self, attempt: Callable[[], Awaitable[T]], what: str) -> T:
        return await self.cluster.retrying(attempt, timeout_ms=self.timeout_ms, what=what)

    async def any(self, request: Request, response_type: type[R]) -> R:
        return await self.retrying(
            lambda: self.cluster.request_any(request, response_type), type(request).__name__
        )

    async def node(self, node_id: int, request: Request, response_type: type[R]) -> R:
        if node_id not in self.cluster.metadata.brokers:
            await self.cluster.refresh()
        return await self.cluster.request(node_id, request, response_type)

    async def every_broker(
        self, request: Request, response_type: type[R], error: Callable[[R], int], what: str
    ) -> list[R]:
        """Ask all brokers, and again those that say that they cannot tell yet, as while they load."""

        async def ask(broker: int) -> R:
            answer = await self.node(broker, request, response_type)
            code = ErrorCode.of(error(answer))
            if code:
                raise KafkaError(code, f"cannot {what}: {code.text}")
            return answer

        brokers = sorted((await self.cluster.refresh()).brokers)
        return await asyncio.gather(*(self.retrying(partial(ask, broker), what) for broker in brokers))

    async def controller(
        self, request: Request, response_type: type[R], errors: Callable[[R], Iterable[int]]
    ) -> R:
        """Send to the node that metadata names as controller, and again while the response says that it is
        another.
        """

        async def attempt() -> R:
            if self.cluster.metadata.controller_id not in self.cluster.metadata.brokers:
                await self.cluster.refresh()
            controller = self.cluster.metadata.controller_id
            try:
                if controller in self.cluster.metadata.brokers:
                    answer = await self.cluster.request(controller, request, response_type)
                else:
                    answer = await self.cluster.request_any(request, response_type)
            except ClientFailure:
                # The controller cannot be reached or does not answer: another one may have taken over.
                with contextlib.suppress(KafkaError):
                    await self.cluster.refresh()
                raise
            if ErrorCode.NOT_CONTROLLER in errors(answer):
                await self.cluster.refresh()
                raise KafkaError(ErrorCode.NOT_CONTROLLER)
            return answer

        return await self.retrying(attempt, type(request).__name__)

    async def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of an existing topic; UNKNOWN_TOPIC_OR_PARTITION otherwise."""
        view = await self.cluster.refresh(topics=[topic])
        info = view.topics.get(topic)
        if info is None or info.error:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
            text = self.cluster.explain(code, AclOperation.DESCRIBE, topic)
            raise KafkaError(code, f"topic {topic!r}: {text}")
        return [TopicPartition(topic, p.partition) for p in info.partitions]

    async def by_leader(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[dict[TopicPartition, T | KafkaError]]],
        what: str,
    ) -> dict[TopicPartition, T | KafkaError]:
        """Send to the leaders of all partitions at once, and again for retriable failures, after a metadata
        refresh. Partitions that still fail at the end of the time limit have their error as result.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_ms / 1000
        backoff = self.cluster.new_backoff()
        left = list(dict.fromkeys(partitions))
        results: dict[TopicPartition, T | KafkaError] = {}
        if any(self.cluster.metadata.leader(partition) is None for partition in left):
            await self.cluster.refresh(topics={p.topic for p in left})
        while left:
            leaders: dict[int, list[TopicPartition]] = {}
            for partition in left:
                info = self.cluster.metadata.leader(partition)
                if info is not None:
                    leaders.setdefault(info.leader, []).append(partition)
                else:
                    results[partition] = self._no_leader(partition)
            for found in await asyncio.gather(*(_tolerant(ask, n, owned) for n, owned in leaders.items())):
                results.update(found)
            left = [p for p in left if isinstance(error := results[p], KafkaError) and error.retriable]
            wait = backoff.next_ms() / 1000
            if not left or loop.time() + wait >= deadline:
                break
            await asyncio.sleep(wait)
            await self.cluster.refresh(topics={p.topic for p in left})
        return results

    def _no_leader(self, partition: TopicPartition) -> KafkaError:
        topic = self.cluster.metadata.topics.get(partition.topic)
        if topic is None or topic.error or partition.partition >= len(topic.partitions):
            # Not retried: a typing error should show at once.
            return _Final(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} does not exist")
        return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at the moment")


class _Final(KafkaError):
    @property
    def retriable(self) -> bool:
        return False


async def _tolerant(
    ask: Callable[[int, list[TopicPartition]], Awaitable[dict[TopicPartition, T | KafkaError]]],
    node_id: int,
    partitions: list[TopicPartition],
) -> dict[TopicPartition, T | KafkaError]:
    try:
        return await ask(node_id, partitions)
    except KafkaError as error:
        return dict.fromkeys(partitions, error)
