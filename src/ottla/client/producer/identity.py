"""The producer id and epoch, by which brokers recognise retries and fence former producers."""

from __future__ import annotations

from typing import Protocol

from ottla.client.network_client import NetworkClient
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.names import TopicPartition

MAX_EPOCH = 32_767
NO_TRANSACTION_TIMEOUT = 2**31 - 1


class ProducerIdentity(Protocol):
    """A producer's identity as the sender uses it; without transactions most methods do nothing."""

    producer_id: int
    epoch: int

    @property
    def is_transactional(self) -> bool: ...

    @property
    def is_known(self) -> bool: ...

    async def obtain(self) -> None:
        """Get an id from a broker if there is none."""
        ...

    def begin_new_epoch(self) -> None:
        """Begin the next epoch after a gap in a partition's sequence, or a new id when no epoch is left."""
        ...

    def may_send_to(self, partition: TopicPartition) -> bool: ...

    def produce_version(self, at_most: int | None) -> int | None: ...

    def on_written(self, partition: TopicPartition) -> None: ...

    def on_failed(self, partition: TopicPartition, error: KafkaError) -> None: ...


class IdempotentProducerIdentity:
    """The identity of an idempotent producer without transactions: an id from any broker, and epochs that it
    counts itself.
    """

    __slots__ = ("_cluster", "epoch", "producer_id")

    is_transactional = False

    def __init__(self, cluster: NetworkClient) -> None:
        self._cluster = cluster
        self.producer_id = -1
        self.epoch = -1

    @property
    def is_known(self) -> bool:
        return self.producer_id >= 0

    async def obtain(self) -> None:
        if self.is_known:
            return
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT)
        answer = await self._cluster.request_any(request, InitProducerIdResponse)
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            text = self._cluster.explain(code, AclOperation.IDEMPOTENT_WRITE, "")
            raise KafkaError(code, f"cannot get a producer id: {text}")
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def begin_new_epoch(self) -> None:
        if self.epoch < MAX_EPOCH:
            self.epoch += 1
        else:
            self.producer_id = self.epoch = -1

    def may_send_to(self, partition: TopicPartition) -> bool:
        return True

    def produce_version(self, at_most: int | None) -> int | None:
        return at_most

    def on_written(self, partition: TopicPartition) -> None:
        pass

    def on_failed(self, partition: TopicPartition, error: KafkaError) -> None:
        pass
