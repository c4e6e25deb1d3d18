"""What the handlers of delegation tokens share: the settings, who may ask at all, and the way to the
controller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ottla.metadata.controller.delegation_tokens import DelegationTokenSettings
from ottla.node.api.context import ApiRequestContext, ForwardedRequestContext
from ottla.node.api.forwarding import at_controller
from ottla.node.config.node_config import NodeConfig
from ottla.protocol.schema import Request, Response
from ottla.protocol.security_protocol import SecurityProtocol
from ottla.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from ottla.metadata.controller.controller import Controller
    from ottla.metadata.controller.state import Result

R = TypeVar("R", bound=Response)


def token_settings(config: NodeConfig) -> DelegationTokenSettings:
    secret = config["delegation.token.secret.key"]
    return DelegationTokenSettings(
        secret_key=str(secret).encode() if secret else None,
        max_lifetime_ms=config.number("delegation.token.max.lifetime.ms"),
        expiry_time_ms=config.number("delegation.token.expiry.time.ms"),
    )


def may_use_tokens(context: ApiRequestContext) -> bool:
    """Whether the client is authenticated, and by other means than a token. For a request that a broker
    forwards, that broker has seen how.
    """
    if context.principal.token_authenticated:
        return False
    if isinstance(context, ForwardedRequestContext):
        return True
    protocol = context.config.security_protocols.get(context.listener.name, SecurityProtocol.PLAINTEXT)
    if protocol is SecurityProtocol.SSL:
        return context.principal != ANONYMOUS
    return protocol is not SecurityProtocol.PLAINTEXT


async def decided(
    context: ApiRequestContext,
    request: Request,
    decide: Callable[[Controller, DelegationTokenSettings, int], Result[R]],
) -> R:
    """Have the active controller decide, here or on another node, by its own settings and clock."""
    settings = token_settings(context.config)
    now_ms = context.services.node.now_ms
    return await at_controller(context, request, lambda controller: decide(controller, settings, now_ms()))
