"""Send requests of this node to the active controller: Kafka's `NodeToControllerChannelManager`.

If the active controller is on this node, its code is called; if not, the request goes to the controller
listener of the quorum's leader, which this node knows from the metadata log. While there is no leader, or the
node that was asked does not lead any more, the request waits and is sent again. Invariant: a response is the
active controller's; a request without a response in time ends with an OSError, and may have had its effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeAlias

from ottla.log.directory.meta_properties import StorageError
from ottla.metadata.controller.quorum_controller import ActiveController
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Request, Response
from ottla.rpc.channel import InterNodeClient
from ottla.rpc.connection import PLAINTEXT, ConnectionSecurity
from ottla.runtime.network import Network

_log = logging.getLogger(__name__)

# How long to wait before a controller that could not answer is asked again, unless there is news before.
_PAUSE_SECONDS: Final = 0.05
# A controller may have to wait for the commit of a change; that is not a sign that it is gone.
_LEAST_TIMEOUT_MS: Final = 10_000
# How many requests wait for a response at the same time; the others wait here.
_MAX_IN_FLIGHT: Final = 64

LocalController: TypeAlias = Callable[[Request, int], Awaitable[Response | None]]
"""Has the controller of this node decide a request of a version; None if it is not active any more."""


class ControllerChannel:
    """It has connections of its own to the controllers, so that a request that waits for its response does
    not hold up those of another channel.
    """

    def __init__(
        self,
        network: Network,
        client_id: str,
        config: DynamicBrokerConfig,
        metadata: MetadataLog,
        active_controller: ActiveController,
        local_controller: LocalController,
        *,
        is_patient: bool = False,
        security: ConnectionSecurity = PLAINTEXT,
    ) -> None:
        """One that `is_patient` does not send a request again because its response takes long: the first one
        may have had its effect, and the response to the second one would be that the topic exists.
        """
        self._is_patient: Final = is_patient
        self._channel: Final = InterNodeClient(network, client_id, security)
        self._config: Final = config
        self._metadata: Final = metadata
        self._active_controller: Final = active_controller
        self._local_controller: Final = local_controller
        self._room: Final = asyncio.Semaphore(_MAX_IN_FLIGHT)
        # What was asked of a former leader, which may be silent, is asked again of the new one.
        metadata.watch_leader(self._channel.drop_all)

    async def request(
        self, request: Request, newest_version: int, *, timeout_ms: int | None = None
    ) -> Response:
        """Return the active controller's response, in the newest version that it and this node speak; an
        error other than NOT_CONTROLLER is a response too. OSError if there is none within the time.
        """
        limit_ms = self._config.current.number("request.timeout.ms") if timeout_ms is None else timeout_ms
        name = API[request.API_KEY].name
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while True:
                    response = await self._request_once(request, newest_version, limit_ms)
                    if response is not None and not _is_not_controller(response):
                        return response
                    await self._pause()
        except TimeoutError:
            raise TimeoutError(f"{name}: no answer of the active controller within {limit_ms} ms") from None
        except StorageError as error:
            raise ConnectionAbortedError(f"{name}: {error}") from error

    async def request_until(
        self,
        request: Request,
        newest_version: int,
        final: Collection[ErrorCode],
        *,
        on_refused: Callable[[ErrorCode, Response], None],
        retry_seconds: float,
    ) -> tuple[ErrorCode, Response]:
        """Send a request until the error code of the response is one of the final ones, however long that
        takes: for what a node cannot continue without. Each other response is reported to `on_refused`.
        """
        while True:
            try:
                response = await self.request(request, newest_version)
            except OSError as error:
                _log.info("%s", error)
                await asyncio.sleep(_PAUSE_SECONDS)  # a metadata log that has failed gives an error at once
                continue
            code = ErrorCode.of(getattr(response, "error_code"))  # noqa: B009
            if code in final:
                return code, response
            on_refused(code, response)
            await asyncio.sleep(retry_seconds)

    async def _request_once(self, request: Request, newest_version: int, limit_ms: int) -> Response | None:
        """Send a request once; return None if the active controller did not get it."""
        if self._active_controller.current is not None:
            return await self._local_controller(request, newest_version)
        address = self._metadata.leader_address
        if address is None:
            return None
        timeout_ms = self._config.current.number("controller.quorum.request.timeout.ms")
        timeout_ms = limit_ms if self._is_patient else max(timeout_ms, _LEAST_TIMEOUT_MS)
        try:
            async with self._room:
                return await self._channel.request(address, request, newest_version, timeout_ms=timeout_ms)
        except OSError as error:
            _log.debug("the controller at %s:%d cannot be asked: %s", *address, error)
        except KafkaError as error:
            _log.info("the controller at %s:%d cannot answer: %s", *address, error.message)
        return None

    async def _pause(self) -> None:
        """Wait until the leader of the quorum changes, but not for long."""
        metadata, active_controller = self._metadata, self._active_controller
        leader, epoch = metadata.leader_id, metadata.epoch
        active = active_controller.current
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_SECONDS):
                await metadata.until(
                    lambda: (
                        (metadata.leader_id, metadata.epoch) != (leader, epoch)
                        or active_controller.current is not active
                    )
                )

    def close(self) -> None:
        self._channel.close()


def _is_not_controller(response: Response) -> bool:
    """Whether it says that the active controller is another node, as a whole or for any of its parts."""
    if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
        return True
    return any(
        getattr(each, "error_code", 0) == ErrorCode.NOT_CONTROLLER
        for field in response.FIELDS
        if isinstance(value := getattr(response, field.name), list)
        for each in value
    )
