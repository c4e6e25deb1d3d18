"""The active controller's watch over brokers whose process may have ended.

A process that dies leaves a closed connection and a port behind that refuses new ones. When the connection of
a broker's heartbeats closes, and when this node has just become the active controller, the broker is knocked
at wherever it serves: if it is refused everywhere, it is fenced at once. A broker that lets heartbeats out is
asked for a sign of life; if it gives none either, it is fenced before its session ends. Whoever answers has
its full session. Invariant: a mistake costs a broker its leaderships until its next heartbeat, and nothing
else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from enum import Enum
from typing import Final

from ottla.metadata.controller.quorum_controller import ActiveController
from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.entities import ListenerEndpoint
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.listeners import SecurityProtocol
from ottla.node.network.connection import ClientConnection
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

# Pauses before each knock: sockets of a dying process need not all close at the same moment.
_KNOCKS_SECONDS: Final = (0.0, 0.02, 0.1, 0.3)
_KNOCK_TIMEOUT_MS: Final = 1_000
# Of a session: how much of it may pass in silence before a broker is asked for a sign of life, and how long
# it then has to give one. A broker that has not turned up at a new controller is asked sooner.
_SILENT_PART: Final = 3 / 9
_UNHEARD_PART: Final = 1 / 9
_ANSWER_PART: Final = 2 / 9
# How long a broker that answers, but sends no heartbeats, is left in peace.
_PEACE_SECONDS: Final = 1.0


class ProbeResult(Enum):
    ALIVE = "it answers"
    GONE = "nobody listens there"
    SILENT = "no answer"
    NONE = "it cannot be asked"


class BrokerLivenessProbe:
    """At most one examination of each broker at a time."""

    def __init__(
        self,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        active_controller: ActiveController,
    ) -> None:
        self._runtime: Final = runtime
        self._config: Final = config
        self._metadata: Final = metadata
        self._active_controller: Final = active_controller
        self._channel: Final = InterNodeClient(runtime.network, "ottla-watch")
        self._examining: dict[int, asyncio.Task[None]] = {}

    # When to look

    def on_heartbeat(self, connection: ClientConnection, broker: int, epoch: int) -> None:
        """The broker's heartbeats come by this connection."""
        connection.broker_incarnation = (broker, epoch)

    def on_connection_closed(self, connection: ClientConnection) -> None:
        broker = connection.broker_incarnation
        if broker is not None:
            self._examine(broker[0], self._knock(*broker))

    def on_controller_active(self) -> None:
        """This node has become the active controller: its predecessor's process may have been a broker's."""
        for broker in self._metadata.image.cluster.brokers.values():
            if not broker.fenced and broker.id != self._config.current.node_id:
                self._examine(broker.id, self._knock(broker.id, broker.epoch))

    def probe_silent_brokers(self) -> None:
        """For a few times a second."""
        active = self._active_controller.current
        if active is None:
            return
        session_ms = self._config.current.number("broker.session.timeout.ms")
        silent = active.silent_brokers(int(session_ms * _SILENT_PART))
        unheard = active.unheard_brokers(int(session_ms * _UNHEARD_PART))
        for broker, epoch in dict.fromkeys((*silent, *unheard)):
            if broker != self._config.current.node_id:
                self._examine(broker, self._wait_for_sign(broker, epoch, int(session_ms * _ANSWER_PART)))

    def _examine(self, broker: int, work: Coroutine[None, None, None]) -> None:
        if broker in self._examining or self._active_controller.current is None:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=f"examine broker {broker}")
        self._examining[broker] = task
        task.add_done_callback(lambda _: self._examining.pop(broker, None))

    # What is seen

    async def _knock(self, broker: int, epoch: int) -> None:
        for pause in _KNOCKS_SECONDS:
            await asyncio.sleep(pause)
            sign = await self._sign_of_life(broker, epoch, _KNOCK_TIMEOUT_MS)
            if sign is ProbeResult.GONE:
                await self._fence(broker, epoch, "its process has ended")
            if sign is not ProbeResult.NONE:
                return

    async def _wait_for_sign(self, broker: int, epoch: int, wait_ms: int) -> None:
        clock = self._runtime.clock
        began_ns = clock.monotonic_ns()
        sign = await self._sign_of_life(broker, epoch, wait_ms)
        if sign is ProbeResult.ALIVE:
            await asyncio.sleep(_PEACE_SECONDS)
            return
        if sign is not ProbeResult.GONE:
            # It has its time, also where it was found out at once that nobody can be asked.
            waited_ms = (clock.monotonic_ns() - began_ns) // 1_000_000
            await asyncio.sleep(max(wait_ms - waited_ms, 0) / 1000)
        active = self._active_controller.current
        asked_ms = (clock.monotonic_ns() - began_ns) // 1_000_000
        if active is not None and (broker, epoch) in active.silent_brokers(asked_ms):
            await self._fence(broker, epoch, f"it has been silent, and when it was asked: {sign.value}")

    async def _sign_of_life(self, broker: int, epoch: int, timeout_ms: int) -> ProbeResult:
        """What is seen at all addresses of the broker: gone is only whom each of them refuses, as some may
        be meant for others, and lead elsewhere from here.
        """
        registration = self._metadata.image.cluster.brokers.get(broker)
        if registration is None or registration.epoch != epoch:
            return ProbeResult.ALIVE
        signs = await asyncio.gather(
            *(self._touch(endpoint, timeout_ms) for endpoint in registration.listeners.values())
        )
        for sign in (ProbeResult.ALIVE, ProbeResult.SILENT, ProbeResult.NONE):
            if sign in signs:
                return sign
        return ProbeResult.GONE if signs else ProbeResult.NONE

    async def _touch(self, endpoint: ListenerEndpoint, timeout_ms: int) -> ProbeResult:
        address = Address(endpoint.host, endpoint.port)
        try:
            if endpoint.security_protocol == SecurityProtocol.PLAINTEXT:
                await self._channel.api_versions(address, timeout_ms=timeout_ms)
                return ProbeResult.ALIVE
            transport, _ = await self._runtime.network.connect(
                asyncio.Protocol, endpoint.host, endpoint.port, timeout_ms=timeout_ms
            )
            transport.abort()
            return ProbeResult.NONE
        except ConnectionRefusedError:
            return ProbeResult.GONE
        except TimeoutError:
            return ProbeResult.SILENT
        except (OSError, KafkaError):
            return ProbeResult.NONE
        finally:
            self._channel.drop(address)

    async def _fence(self, broker: int, epoch: int, reason: str) -> None:
        active = self._active_controller.current
        if active is None:
            return
        try:
            if await active.fence_gone_broker(broker, epoch):
                _log.warning("broker %d is fenced: %s", broker, reason)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                _log.error("broker %d could not be fenced: %s", broker, error.message)

    async def close(self) -> None:
        tasks = list(self._examining.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._channel.close()
