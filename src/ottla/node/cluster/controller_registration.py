"""A controller's registration: by which addresses it is reached, and what it supports, for all to read.

It is renewed whenever the metadata does not have it, as after the first start or a change of addresses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ottla.metadata.features import supported
from ottla.node.config.listeners import Endpoint, registered
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    Feature,
    Listener,
)

if TYPE_CHECKING:
    from ottla.node.node import Node

_log = logging.getLogger(__name__)

_VERSION: Final = 0
_PAUSE_SECONDS: Final = 0.1


async def register_controller(node: Node, incarnation_id: bytes, endpoints: Iterable[Endpoint]) -> None:
    """Return once the active controller has written this one down, or a cluster of an older
    metadata.version has no room for it.
    """
    request = ControllerRegistrationRequest(
        controller_id=node.config.node_id,
        incarnation_id=incarnation_id,
        listeners=registered(endpoints, Listener),
        features=supported(Feature),
    )
    while True:
        response = await node.controllers.ask_until_answered(request, _VERSION)
        assert isinstance(response, ControllerRegistrationResponse)
        code = ErrorCode.of(response.error_code)
        if code in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
            return
        _log.warning("the controller did not register this one: %s %s", code.name, response.error_message)
        await asyncio.sleep(_PAUSE_SECONDS)
