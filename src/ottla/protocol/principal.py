"""The principal of a request that a broker forwards to the controller, as Envelope carries it."""

from __future__ import annotations

from ottla.protocol.schema import Message, boolean, string


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    """The principal that sent the request; encoded with its version before it (`ottla.protocol.prefixed`)."""

    type: str = string()
    name: str = string()
    token_authenticated: bool = boolean()
