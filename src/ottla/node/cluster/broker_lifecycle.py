"""The registration of this broker with the active controller, from its start to its controlled shutdown.

A broker registers under the incarnation id of this process and gets its epoch; from then on its heartbeats
say that it lives, how far it has read the metadata log, and whether it wants to be fenced, to serve or to
shut down. It is fenced until it has read as far as its own registration and wants to serve. If the controller
does not know its epoch any more it registers again. Invariants: at most one of its requests is under way, and
its epoch never goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ottla.metadata.features import supported_features
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint, registration_listeners
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from ottla.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from ottla.protocol.schema import Response
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor

_log = logging.getLogger(__name__)

# How often a broker asks again that waits: for the end of its former session, to be unfenced, for its
# leaderships to move.
_WAITING_SECONDS: Final = 0.05
# How long a broker that shuts down waits for an active controller.
_NO_CONTROLLER_MS: Final = 3_000
_REGISTRATION_VERSION: Final = 4
_HEARTBEAT_VERSION: Final = 2
# Errors that no retry changes.
_FATAL: Final = frozenset(
    (
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    )
)
_FINAL: Final = _FATAL | {ErrorCode.NONE}


class BrokerLifecycleManager:
    """This broker as the controller knows it. `epoch` is -1 until it has registered."""

    def __init__(
        self,
        tasks: TaskSupervisor,
        channel: ControllerChannel,
        metadata: MetadataLog,
        config: DynamicBrokerConfig,
        *,
        cluster_id: str,
        incarnation_id: bytes,
        directories: Mapping[str, bytes],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`directories` are the ids of the data directories by path, and `on_fatal` is called if it cannot be
        registered again.
        """
        # Called before each heartbeat that says that this broker is ready to serve.
        self._announce: Callable[[], None] | None = None
        self._tasks: Final = tasks
        self._channel: Final = channel
        self._metadata: Final = metadata
        self._config: Final = config
        self._on_fatal: Final = on_fatal
        # A new controller has heard no heartbeat of this broker yet.
        metadata.watch_leader(self.heartbeat_now)
        self._request: Final = BrokerRegistrationRequest(
            broker_id=config.current.node_id,
            cluster_id=cluster_id,
            incarnation_id=incarnation_id,
            features=supported_features(Feature),
            rack=config.current.rack,
            log_dirs=list(directories.values()),
        )
        self.epoch = -1  # never goes back
        self._refused: ErrorCode | None = None
        self._directories: Final = dict(directories)
        self._offline: set[bytes] = set()
        # Those that no heartbeat has reported to a controller yet, each with the task that gives up on it.
        self._unreported: dict[bytes, SupervisedTask] = {}
        # When the last heartbeat was sent that a controller answered, on the clock of the event loop.
        self._answered_at: float | None = None
        self._ready_to_unfence = False
        self._fences_itself = False
        self._shutting_down = False
        self._may_shut_down = False
        self._unfenced = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._heartbeat_wanted = asyncio.Event()
        self._task: SupervisedTask | None = None

    # Joining

    async def register(
        self,
        endpoints: Iterable[Endpoint],
        previous_epoch: int,
        announce: Callable[[], None] | None = None,
    ) -> None:
        """Register, and send heartbeats from then on. NodeFailed if that cannot be, or not in time.

        `previous_epoch` is the broker epoch of the last run if that ended cleanly. `announce` is called
        before each heartbeat that says that this broker is ready to serve.
        """
        self._request.listeners = registration_listeners(endpoints, Listener)
        self._request.previous_broker_epoch = previous_epoch
        self._announce = announce
        limit_ms = self._config.current.number("initial.broker.registration.timeout.ms")
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._register()
        except TimeoutError:
            refused = self._refused
            why = "" if refused is None else f"; node.id {self._config.current.node_id}: {refused.text}"
            raise NodeFailed(
                "unable to register with the controller quorum: no active controller registered this broker "
                f"within {limit_ms} ms (initial.broker.registration.timeout.ms){why}"
            ) from None
        # Each heartbeat says all there is to say, so that the loop may start again after an error.
        self._task = self._tasks.start("broker heartbeats", self._send_heartbeats)

    async def _register(self) -> None:
        code, response = await self._channel.request_until(
            self._request,
            _REGISTRATION_VERSION,
            _FINAL,
            on_refused=self._on_registration_refused,
            retry_seconds=_WAITING_SECONDS,
        )
        if code is not ErrorCode.NONE:
            raise NodeFailed(f"unable to register with the controller quorum: {code.name}, {code.text}")
        assert isinstance(response, BrokerRegistrationResponse)
        assert response.broker_epoch >= self.epoch, (response.broker_epoch, self.epoch)
        self.epoch = response.broker_epoch

    def _on_registration_refused(self, code: ErrorCode, response: Response) -> None:
        if code is not self._refused:
            _log.info("the controller cannot register this broker yet: %s", code.name)
            self._refused = code

    def waits_for(self) -> str:
        """What this broker waits for until it serves, as text for messages."""
        leader = self._metadata.leader_id
        if leader is None:
            return "no controller is known"
        if self.epoch < 0:
            if self._refused is not None:
                return f"the controller, node {leader}, answers {self._refused.name}"
            return f"no answer of the controller, node {leader}"
        if self._answered_at is None or self.unanswered_ms > self._config.current.number(
            "broker.session.timeout.ms"
        ):
            return f"the controller, node {leader}, does not answer its heartbeats"
        if not self._caught_up.is_set():
            return (
                f"its metadata, up to offset {self._metadata.published_offset}, do not reach its registration"
            )
        return f"the controller, node {leader}, keeps it fenced"

    async def wait_until_caught_up(self) -> None:
        """Return once this broker has read the metadata log as far as its registration."""
        await self._caught_up.wait()

    async def unfence(self) -> None:
        """Ask to be unfenced, and return once that is so."""
        self._ready_to_unfence = True
        self.heartbeat_now()
        await self._unfenced.wait()

    def heartbeat_now(self) -> None:
        """Send the next heartbeat without delay: its content has changed."""
        self._heartbeat_wanted.set()

    def propagate_directory_failure(self, path: str) -> None:
        """Report a failed data directory to the controller. It does not know a directory that had failed
        before the start.
        """
        directory = self._directories.get(path)
        if directory is not None and directory not in self._offline:
            self._offline.add(directory)
            self._unreported[directory] = self._tasks.start(
                f"report of the failure of {path}", lambda: self._end_unless_reported(path, directory)
            )
            self.heartbeat_now()

    async def _end_unless_reported(self, path: str, directory: bytes) -> None:
        """End the broker if no controller learns of a failed directory in time: it may be the leader of
        partitions there, which no other broker would take over.
        """
        limit_ms = self._config.current.number("log.dir.failure.timeout.ms")
        await asyncio.sleep(limit_ms / 1000)
        if directory in self._unreported:
            self._on_fatal(
                f"Shutting down because broker was unable to communicate log dir failures to the controller: "
                f"{path}, within {limit_ms} ms (log.dir.failure.timeout.ms)"
            )

    def fence_itself(self) -> None:
        """Leave all leaderships and places in in-sync sets to others, until `stop_fencing_itself`."""
        self._fences_itself = True
        self.heartbeat_now()

    def stop_fencing_itself(self) -> None:
        self._fences_itself = False
        self.heartbeat_now()

    @property
    def fences_itself(self) -> bool:
        return self._fences_itself

    # Heartbeats

    async def _send_heartbeats(self) -> None:
        while True:
            try:
                await self._heartbeat()
            except OSError as error:
                _log.warning("%s", error)
            except NodeFailed as error:
                self._on_fatal(str(error))
                return
            except Exception:
                _log.exception("a heartbeat failed; the next one is sent as usual")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_seconds()):
                    await self._heartbeat_wanted.wait()
            self._heartbeat_wanted.clear()

    @property
    def unanswered_ms(self) -> int:
        """For how long no controller has answered a heartbeat; 0 before the first answer."""
        since = self._answered_at
        return 0 if since is None else int((asyncio.get_running_loop().time() - since) * 1000)

    @property
    def is_cut_off(self) -> bool:
        """Whether the controller may soon give this broker up, and its leaderships to others, or has done so.

        A controller that is cut off with this broker stops answering before the others elect another one;
        that gives up a broker after a third of its session at the earliest (`BrokerLivenessProbe`).
        """
        return self.unanswered_ms >= self._config.current.number("broker.session.timeout.ms") // 3

    def _pause_seconds(self) -> float:
        wants_to_serve = self._ready_to_unfence and not self._fences_itself
        waits = not self._caught_up.is_set() or (wants_to_serve and not self._unfenced.is_set())
        if waits:
            return _WAITING_SECONDS
        return self._config.current.number("broker.heartbeat.interval.ms") / 1000

    async def _heartbeat(self, timeout_ms: int | None = None) -> None:
        """Send one heartbeat. OSError if no active controller answered it."""
        config = self._config.current
        if timeout_ms is None:
            timeout_ms = config.number("broker.session.timeout.ms")
        offline = sorted(self._offline)
        if self._announce is not None and self._ready_to_unfence and not self._shutting_down:
            self._announce()
        sent_at = asyncio.get_running_loop().time()
        response = await self._channel.request(
            BrokerHeartbeatRequest(
                broker_id=config.node_id,
                broker_epoch=self.epoch,
                current_metadata_offset=self._metadata.published_offset,
                want_fence=not self._ready_to_unfence or self._fences_itself,
                want_shut_down=self._shutting_down,
                offline_log_dirs=offline,
            ),
            _HEARTBEAT_VERSION,
            timeout_ms=timeout_ms,
        )
        assert isinstance(response, BrokerHeartbeatResponse)
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self._answered_at = sent_at
            self._on_heartbeat_response(response)
            for directory in offline:
                if (waiting := self._unreported.pop(directory, None)) is not None:
                    waiting.cancel()
        elif code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            if self._shutting_down:
                self._may_shut_down = True
                return
            _log.warning(
                "the controller does not know this broker any more (%s); it registers again", code.name
            )
            self._unfenced.clear()
            await self._register()
            self.heartbeat_now()
        else:
            _log.warning("the controller refused a heartbeat: %s", code.name)

    def _on_heartbeat_response(self, response: BrokerHeartbeatResponse) -> None:
        if response.is_caught_up:
            self._caught_up.set()
        if response.is_fenced:
            self._unfenced.clear()
        else:
            self._unfenced.set()
        if response.should_shut_down:
            self._may_shut_down = True

    # Leaving

    async def controlled_shutdown(self, timeout_seconds: float) -> bool:
        """Have the controller move the leaderships of this broker; whether that was done within the time.
        Without an active controller, as when all nodes stop, there is no other broker to move them to.
        """
        await self._stop_heartbeats()
        self._shutting_down = True
        self._fences_itself = False
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self._may_shut_down:
                    await self._heartbeat(_NO_CONTROLLER_MS)
                    await asyncio.sleep(_WAITING_SECONDS)
        except OSError as error:
            _log.info("%s", error)
        return self._may_shut_down

    async def _stop_heartbeats(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await task.stop()

    async def close(self) -> None:
        """Stop the heartbeats and close the connections to the controllers."""
        await self._stop_heartbeats()
        for waiting in self._unreported.values():
            waiting.cancel()
        self._channel.close()
