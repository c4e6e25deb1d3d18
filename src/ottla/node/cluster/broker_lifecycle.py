"""The broker's standing with the active controller: registered, alive, about to leave.

A broker registers under the incarnation id of this process and gets its epoch; from then on its heartbeats
say that it lives, how far it has read the metadata log, and whether it wants to be fenced, to serve or to
leave. It is fenced until it has read as far as its own registration and wants to serve. If the controller
does not know its epoch any more it registers again. Invariant: at most one of its requests is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.metadata.features import supported
from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint, registered
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from ottla.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)

if TYPE_CHECKING:
    from ottla.node.node import Node

_log = logging.getLogger(__name__)

# How often a broker asks again that waits for something: that its former life is over, that it may serve,
# that its leaderships have moved.
_WAITING_SECONDS: Final = 0.05
# How long a broker that leaves waits for some active controller.
_NOBODY_MS: Final = 3_000
_REGISTRATION_VERSION: Final = 4
_HEARTBEAT_VERSION: Final = 2
# What will not be otherwise however often it is asked.
_FATAL: Final = frozenset(
    (
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    )
)


class BrokerLifecycleManager:
    """This broker as the controller knows it. `epoch` is -1 until it has registered."""

    def __init__(
        self,
        node: Node,
        *,
        incarnation_id: bytes,
        directories: Mapping[str, bytes],
        endpoints: Iterable[Endpoint],
        previous_epoch: int,
    ) -> None:
        """`directories` are the ids by the paths; `previous_epoch` is that of the last life, if it ended
        cleanly.
        """
        self._node: Final = node
        self._link: Final = ControllerChannel(node, "ottla-broker-lifecycle", node.quorum.decide_locally)
        self._link.follow_leader()
        # A new controller should not have to wonder.
        node.metadata.watch_leader(self.hurry)
        self._request: Final = BrokerRegistrationRequest(
            broker_id=node.config.node_id,
            cluster_id=node.cluster_id,
            incarnation_id=incarnation_id,
            listeners=registered(endpoints, Listener),
            features=supported(Feature),
            rack=node.config.rack,
            log_dirs=list(directories.values()),
            previous_broker_epoch=previous_epoch,
        )
        self.epoch = -1
        self._refused: ErrorCode | None = None
        self._directories: Final = dict(directories)
        self._offline: set[bytes] = set()
        self._wants_to_serve = False
        self._steps_aside = False
        self._leaving = False
        self._may_go = False
        self._unfenced = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Joining

    async def register(self) -> None:
        """Register, and beat from then on. NodeFailed if that cannot be, or not in time."""
        limit_ms = self._node.config.number("initial.broker.registration.timeout.ms")
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._register()
        except TimeoutError:
            refused = self._refused
            why = "" if refused is None else f"; node.id {self._node.config.node_id}: {refused.text}"
            raise NodeFailed(
                f"no active controller registered this broker within {limit_ms} ms "
                f"(initial.broker.registration.timeout.ms){why}"
            ) from None
        self._task = asyncio.create_task(self._beat(), name="broker heartbeats")

    async def _register(self) -> None:
        while True:
            response = await self._link.ask_until_answered(self._request, _REGISTRATION_VERSION)
            assert isinstance(response, BrokerRegistrationResponse)
            code = ErrorCode.of(response.error_code)
            if code is ErrorCode.NONE:
                self.epoch = response.broker_epoch
                return
            if code in _FATAL:
                raise NodeFailed(f"the controller does not register this broker: {code.name}, {code.text}")
            if code is not self._refused:
                _log.info("the controller cannot register this broker yet: %s", code.name)
                self._refused = code
            await asyncio.sleep(_WAITING_SECONDS)

    async def caught_up(self) -> None:
        """Return once this broker has read the metadata log as far as its registration."""
        await self._caught_up.wait()

    async def serve(self) -> None:
        """Ask to be unfenced, and return once that is so."""
        self._wants_to_serve = True
        self._hurry.set()
        await self._unfenced.wait()

    def hurry(self) -> None:
        """Send the next heartbeat now: there is something to tell."""
        self._hurry.set()

    def directory_failed(self, path: str) -> None:
        """Have the controller know that what lies in a data directory is not here any more. Of one that was
        left aside at the start it has not heard.
        """
        if path in self._directories:
            self._offline.add(self._directories[path])
            self.hurry()

    def step_aside(self) -> None:
        """Leave all leaderships and places in in-sync sets to others, by being fenced until `step_back`."""
        self._steps_aside = True
        self.hurry()

    def step_back(self) -> None:
        self._steps_aside = False
        self.hurry()

    @property
    def is_aside(self) -> bool:
        return self._steps_aside

    # Living

    async def _beat(self) -> None:
        while True:
            try:
                await self.heartbeat()
            except OSError as error:
                _log.warning("%s", error)
            except NodeFailed as error:
                self._node.fail(str(error))
                return
            except Exception:
                _log.exception("a heartbeat failed; the next one may not")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_seconds()):
                    await self._hurry.wait()
            self._hurry.clear()

    def _pause_seconds(self) -> float:
        serves = self._wants_to_serve and not self._steps_aside
        waits = not self._caught_up.is_set() or (serves and not self._unfenced.is_set())
        if waits:
            return _WAITING_SECONDS
        return self._node.config.number("broker.heartbeat.interval.ms") / 1000

    async def heartbeat(self, timeout_ms: int | None = None) -> None:
        """Say once that the broker lives. OSError if nobody could be told."""
        if timeout_ms is None:
            timeout_ms = self._node.config.number("broker.session.timeout.ms")
        response = await self._link.ask(
            BrokerHeartbeatRequest(
                broker_id=self._node.config.node_id,
                broker_epoch=self.epoch,
                current_metadata_offset=self._node.image.provenance.last_contained_offset,
                want_fence=not self._wants_to_serve or self._steps_aside,
                want_shut_down=self._leaving,
                offline_log_dirs=sorted(self._offline),
            ),
            _HEARTBEAT_VERSION,
            timeout_ms=timeout_ms,
        )
        assert isinstance(response, BrokerHeartbeatResponse)
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self._take(response)
        elif code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            if self._leaving:
                self._may_go = True
                return
            _log.warning(
                "the controller does not know this broker any more (%s); it registers again", code.name
            )
            self._unfenced.clear()
            await self._register()
            self._hurry.set()
        else:
            _log.warning("the controller refused a heartbeat: %s", code.name)

    def _take(self, response: BrokerHeartbeatResponse) -> None:
        if response.is_caught_up:
            self._caught_up.set()
        if response.is_fenced:
            self._unfenced.clear()
        else:
            self._unfenced.set()
        if response.should_shut_down:
            self._may_go = True

    # Leaving

    async def leave(self, timeout_seconds: float) -> bool:
        """Hand leaderships over; whether that was done within the time. If there is no active controller any
        more, as when all nodes stop, there is nobody to hand over to.
        """
        await self._stop_beating()
        self._leaving = True
        self._steps_aside = False
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self._may_go:
                    await self.heartbeat(_NOBODY_MS)
                    await asyncio.sleep(_WAITING_SECONDS)
        except OSError as error:
            _log.info("%s", error)
        return self._may_go

    async def _stop_beating(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Say nothing more."""
        await self._stop_beating()
        self._link.close()
