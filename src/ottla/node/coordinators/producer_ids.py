"""Producer ids: taken from the controller in blocks, given out one by one, never twice.

A block that was taken and not used up when the node stops is lost, which costs nothing: there are 2^63 ids.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

if TYPE_CHECKING:
    from ottla.node.node import Node

_VERSION: Final = 0


class ProducerIdManager:
    __slots__ = ("_end", "_next", "_node", "_refill")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """An id that nobody has."""
        while self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    await self._take_block()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _take_block(self) -> None:
        request = AllocateProducerIdsRequest(
            broker_id=self._node.config.node_id, broker_epoch=self._node.broker_epoch
        )
        try:
            response = await self._node.controllers.ask(request, _VERSION)
        except OSError as error:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"no producer ids to be had: {error}"
            ) from error
        assert isinstance(response, AllocateProducerIdsResponse)
        if response.error_code:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"no producer ids to be had from the controller: {ErrorCode.of(response.error_code).name}",
            )
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len
