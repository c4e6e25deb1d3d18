"""The registration of this controller with the active one, kept as long as the node runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.features import supported_features
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.node.config.listeners import Endpoint, registration_listeners
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    Feature,
    Listener,
)
from ottla.protocol.schema import Response

_log = logging.getLogger(__name__)

_VERSION: Final = 0
_RETRY_SECONDS: Final = 0.1
# A cluster of an older metadata.version has no record for the registration of a controller.
_FINAL: Final = frozenset((ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION))


class ControllerRegistrationManager:
    """Registers the addresses and features of a controller, again where the registration was removed or where
    the cluster gets a metadata.version that has registrations.
    """

    def __init__(
        self,
        node_id: int,
        incarnation_id: bytes,
        endpoints: Sequence[Endpoint],
        metadata: MetadataLog,
        channel: ControllerChannel,
    ) -> None:
        self._request: Final = ControllerRegistrationRequest(
            controller_id=node_id,
            incarnation_id=incarnation_id,
            listeners=registration_listeners(endpoints, Listener),
            features=supported_features(Feature),
        )
        self._metadata: Final = metadata
        self._channel: Final = channel
        self._registered: Final = asyncio.Event()

    async def run(self) -> None:
        """Register, and stay so until the metadata log fails: then no registration is seen any more, and
        the driver of the log has reported why. It may begin again after an error.
        """
        await self._register()
        self._registered.set()
        with contextlib.suppress(StorageError):
            while True:
                await self._metadata.until(lambda: self._is_registered or not self._has_registrations)
                await self._metadata.until(lambda: self._has_registrations and not self._is_registered)
                _log.warning("the registration of this controller is gone, and is made again")
                await self._register()

    async def _register(self) -> None:
        await self._channel.request_until(
            self._request, _VERSION, _FINAL, on_refused=_on_refused, retry_seconds=_RETRY_SECONDS
        )

    @property
    def _has_registrations(self) -> bool:
        return self._metadata.image.metadata_version.controller_registration

    @property
    def _is_registered(self) -> bool:
        return self._request.controller_id in self._metadata.image.cluster.controllers

    def waits_for(self) -> str:
        """What the registration waits for, as text for messages."""
        leader = self._metadata.leader_id
        return "no controller is known" if leader is None else f"no answer of the controller, node {leader}"

    async def wait_until_registered(self) -> None:
        await self._registered.wait()


def _on_refused(code: ErrorCode, response: Response) -> None:
    assert isinstance(response, ControllerRegistrationResponse)
    _log.warning("the controller did not register this one: %s %s", code.name, response.error_message)
