"""Producer ids: allocated by the controller in blocks, given out one by one, never twice.

A block that is not used up when the node stops is lost, which costs nothing: there are 2^63 ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

_VERSION: Final = 0


class ProducerIdManager:
    """Invariant: `_next` <= `_end`, and the ids from `_next` to `_end` are this broker's alone."""

    __slots__ = ("_broker_epoch", "_broker_id", "_controller", "_end", "_next", "_refill")

    def __init__(
        self, broker_id: int, broker_epoch: Callable[[], int], controller: ControllerChannel
    ) -> None:
        self._broker_id: Final = broker_id
        self._broker_epoch: Final = broker_epoch
        self._controller: Final = controller
        self._next = 0
        self._end = 0
        self._refill: Final = asyncio.Lock()

    @property
    def remaining(self) -> int:
        """Ids of the block that are left to give out."""
        return self._end - self._next

    async def generate_producer_id(self) -> int:
        """Return an id that no producer has."""
        while self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    await self._allocate_block()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _allocate_block(self) -> None:
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        try:
            response = await self._controller.request(request, _VERSION)
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
        start, end = response.producer_id_start, response.producer_id_start + response.producer_id_len
        assert self._end <= start <= end, (self._end, start, end)
        self._next, self._end = start, end
