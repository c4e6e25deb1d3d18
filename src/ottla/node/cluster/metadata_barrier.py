"""Wait until this broker's image of the metadata is as new as the moment at which it was asked.

An image may be behind, and what is not in it may be newer than it is. No leader of the quorum can say by
itself how far the metadata are: another one may have been elected. So the active controller is asked for
something that it has to have committed, a block of producer ids. Whatever was committed before the request is
before that record, and an image that shows the record has all of it. The ids are not used: there are 2^63.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

_VERSION: Final = 0
_TIMEOUT_S: Final = 30.0


class MetadataBarrier:
    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        controller: ControllerChannel,
        metadata: MetadataLog,
    ) -> None:
        self._broker_id: Final = broker_id
        self._broker_epoch: Final = broker_epoch
        self._controller: Final = controller
        self._metadata: Final = metadata

    async def newest_image(self) -> MetadataImage:
        """Return an image that has everything that was committed before this call. OSError or KafkaError if
        there is none in time.
        """
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        response = await self._controller.request(request, _VERSION)
        assert isinstance(response, AllocateProducerIdsResponse)
        if response.error_code:
            code = ErrorCode.of(response.error_code)
            raise KafkaError(code, f"the controller confirms no metadata: {code.name}")
        end, metadata = response.producer_id_start + response.producer_id_len, self._metadata
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await metadata.until(lambda: metadata.image.next_producer_id >= end)
        except StorageError as error:
            raise ConnectionAbortedError(str(error)) from error
        return metadata.image
