"""The way to the active controller, wherever it is.

If it is on this node, its code is called; if not, the request goes to the controller listener of the
quorum's leader, whom this node knows as it follows the metadata log. While there is no leader, or the one
that was asked is none any more, the question waits and is asked again. Invariant: an answer is the active
controller's; a question that got none in time ends with an OSError, and may have been heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.log.directory.meta_properties import StorageError
from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Request, Response
from ottla.rpc.channel import InterNodeClient

if TYPE_CHECKING:
    from ottla.node.node import Node

_log = logging.getLogger(__name__)

# How long to wait before a controller that could not answer is asked again, unless there is news before.
_PAUSE_SECONDS: Final = 0.05
# A controller may have to wait for the commit of a change; that is not a sign that it is gone.
_LEAST_TIMEOUT_MS: Final = 10_000
# How many questions wait for an answer at the same time; the others wait here.
_MAX_ASKED: Final = 64


LocalController: TypeAlias = Callable[[Request, int], Awaitable[Response | None]]
"""Answers a request, of a version, as the active controller on this node; None if it is elsewhere by now."""


class ControllerChannel:
    """Connections of its own to the controllers, so that what waits for an answer does not hold up others
    that use another link.
    """

    def __init__(self, node: Node, client_id: str, decide_locally: LocalController) -> None:
        self._node: Final = node
        self._decide_locally: Final = decide_locally
        self._channel: Final = InterNodeClient(node.runtime.network, client_id)
        self._room: Final = asyncio.Semaphore(_MAX_ASKED)

    def follow_leader(self) -> None:
        """Ask whoever leads: what was asked of a former leader, which may be silent, is asked again."""
        self._node.metadata.watch_leader(self._channel.drop_all)

    async def ask(self, request: Request, newest_version: int, *, timeout_ms: int | None = None) -> Response:
        """The active controller's answer, in the newest version that it and this node speak; an error other
        than that it is not the controller is an answer too. OSError if there is none within the time.
        """
        limit_ms = self._node.config.number("request.timeout.ms") if timeout_ms is None else timeout_ms
        name = API[request.API_KEY].name
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while True:
                    response = await self._ask_once(request, newest_version)
                    if response is not None and not _is_elsewhere(response):
                        return response
                    await self._pause()
        except TimeoutError:
            raise TimeoutError(f"{name}: no answer of the active controller within {limit_ms} ms") from None
        except StorageError as error:
            raise ConnectionAbortedError(f"{name}: {error}") from error

    async def ask_until_answered(self, request: Request, newest_version: int) -> Response:
        """The active controller's answer, as long as it takes until there is one: for what a node cannot go
        on without.
        """
        while True:
            try:
                return await self.ask(request, newest_version)
            except OSError as error:
                _log.info("%s", error)
                await asyncio.sleep(_PAUSE_SECONDS)  # where the metadata log has failed it is told at once

    async def _ask_once(self, request: Request, newest_version: int) -> Response | None:
        """None if the active controller could not be asked."""
        node = self._node
        if node.active_controller.current is not None:
            return await self._decide_locally(request, newest_version)
        address = node.metadata.leader_address
        if address is None:
            return None
        timeout_ms = node.config.number("controller.quorum.request.timeout.ms")
        try:
            async with self._room:
                return await self._channel.request(
                    address, request, newest_version, timeout_ms=max(timeout_ms, _LEAST_TIMEOUT_MS)
                )
        except OSError as error:
            _log.debug("the controller at %s:%d cannot be asked: %s", *address, error)
        except KafkaError as error:
            _log.info("the controller at %s:%d cannot answer: %s", *address, error.message)
        return None

    async def _pause(self) -> None:
        """Until there is news of the quorum, but not for long."""
        node = self._node
        leader, epoch = node.metadata.leader_id, node.metadata.epoch
        active = node.active_controller.current
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_SECONDS):
                await node.metadata.until(
                    lambda: (
                        (node.metadata.leader_id, node.metadata.epoch) != (leader, epoch)
                        or node.active_controller.current is not active
                    )
                )

    def close(self) -> None:
        self._channel.close()


def _is_elsewhere(response: Response) -> bool:
    """Whether it says that the active controller is another node, as a whole or for any of its parts."""
    if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
        return True
    return any(
        getattr(each, "error_code", 0) == ErrorCode.NOT_CONTROLLER
        for field in response.FIELDS
        if isinstance(value := getattr(response, field.name), list)
        for each in value
    )
