"""The broker's standing with the controller: registered, alive, about to leave.

A broker registers once in its life, under a new incarnation id, and gets its epoch; from then on its
heartbeats say that it lives, how far it has read the metadata log, and whether it wants to serve or to leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from ottla.metadata.control_brokers import HeartbeatReply
from ottla.metadata.features import SUPPORTED_FEATURES
from ottla.metadata.quorum_controller import QuorumController
from ottla.node.listeners import Endpoint
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from ottla.protocol.messages.controller_registration import ControllerRegistrationRequest
from ottla.protocol.messages.controller_registration import Feature as ControllerFeature
from ottla.protocol.messages.controller_registration import Listener as ControllerListener

# How often a broker that leaves asks whether its leaderships have moved.
_LEAVING_PAUSE_SECONDS: Final = 0.05


class BrokerRegistration:
    """This broker as the controller knows it. `epoch` is -1 until it has registered."""

    def __init__(
        self,
        controller: QuorumController,
        *,
        broker_id: int,
        cluster_id: str,
        incarnation_id: bytes,
        directories: Sequence[bytes],
    ) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._incarnation_id = incarnation_id
        self._directories = list(directories)
        self.epoch = -1
        self.offline_directories: set[bytes] = set()

    async def register(
        self, endpoints: Iterable[Endpoint], rack: str | None, previous_epoch: int = -1
    ) -> None:
        """Register these addresses. `previous_epoch` is that of the last life, if it ended cleanly."""
        self.epoch = await self._controller.register_broker(
            BrokerRegistrationRequest(
                broker_id=self._broker_id,
                cluster_id=self._cluster_id,
                incarnation_id=self._incarnation_id,
                listeners=[
                    Listener(
                        name=endpoint.name,
                        host=endpoint.host,
                        port=endpoint.port,
                        security_protocol=endpoint.protocol,
                    )
                    for endpoint in endpoints
                ],
                features=[
                    Feature(name=name, min_supported_version=levels.min, max_supported_version=levels.max)
                    for name, levels in SUPPORTED_FEATURES.items()
                ],
                rack=rack,
                log_dirs=self._directories,
                previous_broker_epoch=previous_epoch,
            ),
            # This process holds the lock of the directories, so there is no former one left to wait for.
            supersede=True,
        )

    async def register_controller(self, endpoints: Iterable[Endpoint]) -> None:
        """Say by which addresses this node is reached as a controller."""
        request = ControllerRegistrationRequest(
            controller_id=self._broker_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                ControllerListener(
                    name=endpoint.name,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=endpoint.protocol,
                )
                for endpoint in endpoints
            ],
            features=[
                ControllerFeature(
                    name=name, min_supported_version=levels.min, max_supported_version=levels.max
                )
                for name, levels in SUPPORTED_FEATURES.items()
            ],
        )
        await self._controller.commit(self._controller.controller.register_controller(request))

    async def heartbeat(self, *, leaving: bool = False) -> HeartbeatReply:
        """Say that the broker lives and wants to serve, or (leaving) to hand over and stop."""
        return await self._controller.process_heartbeat(
            BrokerHeartbeatRequest(
                broker_id=self._broker_id,
                broker_epoch=self.epoch,
                current_metadata_offset=self._controller.image.provenance.last_contained_offset,
                want_shut_down=leaving,
                offline_log_dirs=sorted(self.offline_directories),
            )
        )

    async def leave(self, timeout_seconds: float) -> bool:
        """Hand leaderships over; whether that was done within the time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    reply = await self.heartbeat(leaving=True)
                    if reply.should_shut_down:
                        return True
                    await asyncio.sleep(_LEAVING_PAUSE_SECONDS)
        except TimeoutError:
            return False
