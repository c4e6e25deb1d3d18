"""Probes by which the active controller finds brokers whose process has ended before their session does.

A process that dies leaves a closed connection and a port behind that refuses new ones. When the connection of
a broker's heartbeats closes, and when this node has just become the active controller, it connects to every
listener of the broker: if all of them refuse, the broker is fenced at once. A broker that misses heartbeats
gets a request; if nothing answers, not even its machine when a connection is opened, it may be fenced before
its session ends. A broker that answers has its full session, and so has one that is only slow: the system
takes connections for a process that is busy, or that waits for its disk.

A mistake costs more than leaderships: a broker that is fenced leaves the in-sync sets, and what it has is not
counted on any more. If the others then lose data, records are lost that it still had. A refused connection is
no mistake, as the process has ended. Silence may be one, since it is the same whether the broker or this
controller is cut off. Invariant: silence ends a session early only if, since the probe began, a majority of
the quorum has fetched from this controller and every other broker has sent a heartbeat, so that at most one
broker is doubted at a time. Otherwise the session decides, as in Kafka.
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
from ottla.node.network.connection import ClientConnection
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.security_protocol import SecurityProtocol
from ottla.rpc.channel import InterNodeClient
from ottla.rpc.connection import PLAINTEXT, ConnectionSecurity
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

# Pauses before each attempt: sockets of a dying process need not all close at the same moment.
_ATTEMPT_PAUSES_SECONDS: Final = (0.0, 0.02, 0.1, 0.3)
_ATTEMPT_TIMEOUT_MS: Final = 1_000
# Of a session: how much of it may pass without a heartbeat before a broker is probed, and how long it then
# has to answer. A broker that has not sent a heartbeat to a new controller is probed sooner.
_SILENT_PART: Final = 3 / 9
_WITHOUT_HEARTBEAT_PART: Final = 1 / 9
_ANSWER_PART: Final = 2 / 9
# How long a broker that answers, but sends no heartbeats, is not probed again.
_REPEAT_SECONDS: Final = 1.0
# How soon to look again for heartbeats of the other brokers.
_LOOK_AGAIN_SECONDS: Final = 0.05


class ProbeResult(Enum):
    ALIVE = "it answers"
    GONE = "its ports refuse connections"
    BUSY = "its machine takes connections, and the process does not answer"
    SILENT = "no answer"
    NONE = "it cannot be probed"


class BrokerLivenessProbe:
    """At most one probe of each broker runs at a time."""

    def __init__(
        self,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        active_controller: ActiveController,
        security: ConnectionSecurity = PLAINTEXT,
    ) -> None:
        """`security` is that of the inter-broker listener."""
        self._runtime: Final = runtime
        self._config: Final = config
        self._metadata: Final = metadata
        self._active_controller: Final = active_controller
        self._channel: Final = InterNodeClient(runtime.network, "ottla-watch")
        self._inter_broker: Final = InterNodeClient(runtime.network, "ottla-watch", security)
        self._probing: dict[int, asyncio.Task[None]] = {}

    # When to probe

    def on_heartbeat(self, connection: ClientConnection, broker: int, epoch: int) -> None:
        """Remember that the heartbeats of a broker come by this connection."""
        connection.broker_incarnation = (broker, epoch)

    def on_connection_closed(self, connection: ClientConnection) -> None:
        broker = connection.broker_incarnation
        if broker is not None:
            self._start_probe(broker[0], self._probe_whether_gone(*broker))

    def on_controller_active(self) -> None:
        """Probe all brokers: the process of the previous controller may have been a broker too."""
        for broker in self._metadata.image.cluster.brokers.values():
            if not broker.fenced and broker.id != self._config.current.node_id:
                self._start_probe(broker.id, self._probe_whether_gone(broker.id, broker.epoch))

    def probe_silent_brokers(self) -> None:
        """Probe brokers that miss heartbeats; to be called a few times a second."""
        active = self._active_controller.current
        if active is None:
            return
        session_ms = self._config.current.number("broker.session.timeout.ms")
        silent = active.silent_brokers(int(session_ms * _SILENT_PART))
        without_heartbeat = active.brokers_without_heartbeat(int(session_ms * _WITHOUT_HEARTBEAT_PART))
        for broker, epoch in dict.fromkeys((*silent, *without_heartbeat)):
            if broker != self._config.current.node_id:
                self._start_probe(broker, self._probe_silent(broker, epoch, session_ms))

    def _start_probe(self, broker: int, work: Coroutine[None, None, None]) -> None:
        if broker in self._probing or self._active_controller.current is None:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=f"probe of broker {broker}")
        self._probing[broker] = task
        task.add_done_callback(lambda done: self._on_probe_ended(broker, done))

    def _on_probe_ended(self, broker: int, task: asyncio.Task[None]) -> None:
        self._probing.pop(broker, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("%s failed; it is probed again while it is silent", task.get_name(), exc_info=error)

    # The probes

    async def _probe_whether_gone(self, broker: int, epoch: int) -> None:
        for pause in _ATTEMPT_PAUSES_SECONDS:
            await asyncio.sleep(pause)
            sign = await self._probe(broker, epoch, _ATTEMPT_TIMEOUT_MS)
            if sign is ProbeResult.GONE:
                await self._fence(broker, epoch, "its process has ended")
            if sign is not ProbeResult.NONE:
                return

    async def _probe_silent(self, broker: int, epoch: int, session_ms: int) -> None:
        clock, wait_ms = self._runtime.clock, int(session_ms * _ANSWER_PART)
        began_ns = clock.monotonic_ns()
        sign = await self._probe(broker, epoch, wait_ms)
        if sign in (ProbeResult.ALIVE, ProbeResult.BUSY):
            await asyncio.sleep(_REPEAT_SECONDS)
            return
        if sign is not ProbeResult.GONE:
            # It has its time, also where it turned out at once that it cannot be probed.
            waited_ms = (clock.monotonic_ns() - began_ns) // 1_000_000
            await asyncio.sleep(max(wait_ms - waited_ms, 0) / 1000)
            if not await self._hears_all_others(broker, epoch, began_ns):
                return
        active = self._active_controller.current
        asked_ms = (clock.monotonic_ns() - began_ns) // 1_000_000
        if active is None or (broker, epoch) not in active.silent_brokers(asked_ms):
            return
        if sign is not ProbeResult.GONE and not active.is_followed_since(began_ns):
            return  # this controller may be the one that is cut off
        await self._fence(broker, epoch, f"it sends no heartbeats, and when it was probed: {sign.value}")

    async def _hears_all_others(self, broker: int, epoch: int, since_ns: int) -> bool:
        """Whether all other unfenced brokers have sent a heartbeat since then; waits for that, but not longer
        than until the next heartbeat of each is due.
        """
        clock, interval_ms = self._runtime.clock, self._config.current.number("broker.heartbeat.interval.ms")
        deadline_ns = clock.monotonic_ns() + interval_ms * 1_000_000
        while (active := self._active_controller.current) is not None:
            if all(each == (broker, epoch) for each in active.brokers_not_heard_since(since_ns)):
                return True
            if clock.monotonic_ns() >= deadline_ns:
                return False
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        return False

    async def _probe(self, broker: int, epoch: int, timeout_ms: int) -> ProbeResult:
        """Probe all listeners of the broker. It is gone only if each of them refuses, as some may be meant
        for other networks, and lead elsewhere from here.
        """
        registration = self._metadata.image.cluster.brokers.get(broker)
        if registration is None or registration.epoch != epoch:
            return ProbeResult.ALIVE
        signs = await asyncio.gather(
            *(
                self._probe_listener(name, endpoint, timeout_ms)
                for name, endpoint in registration.listeners.items()
            )
        )
        for sign in (ProbeResult.ALIVE, ProbeResult.BUSY, ProbeResult.SILENT, ProbeResult.NONE):
            if sign in signs:
                return sign
        return ProbeResult.GONE if signs else ProbeResult.NONE

    async def _probe_listener(self, name: str, endpoint: ListenerEndpoint, timeout_ms: int) -> ProbeResult:
        address = Address(endpoint.host, endpoint.port)
        config = self._config.current
        is_inter_broker = (
            name == config.inter_broker_listener
            and config.security_protocols.get(name) == endpoint.security_protocol
        )
        channel = self._inter_broker if is_inter_broker else self._channel
        began_ns = self._runtime.clock.monotonic_ns()
        is_connected = False
        try:
            transport, _ = await self._runtime.network.connect(
                asyncio.Protocol, endpoint.host, endpoint.port, timeout_ms=timeout_ms
            )
            transport.abort()
            is_connected = True
            if not is_inter_broker and endpoint.security_protocol != SecurityProtocol.PLAINTEXT:
                return ProbeResult.NONE
            waited_ms = (self._runtime.clock.monotonic_ns() - began_ns) // 1_000_000
            await channel.api_versions(address, timeout_ms=max(timeout_ms - waited_ms, 1))
            return ProbeResult.ALIVE
        except ConnectionRefusedError:
            return ProbeResult.GONE
        except TimeoutError:
            return ProbeResult.BUSY if is_connected else ProbeResult.SILENT
        except (OSError, KafkaError):
            return ProbeResult.NONE
        finally:
            channel.drop(address)

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
        tasks = list(self._probing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._channel.close()
        self._inter_broker.close()
