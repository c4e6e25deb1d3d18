"""SaslHandshake: refuse to begin a login where none is due.

`node.network.login` answers the handshakes of clients that are not known yet and of those whose session ends
at some time. What comes here is from a client that is known, or on a listener without SASL: the answer is
ILLEGAL_SASL_STATE, with no mechanisms, as in Kafka.

Version 1 has the same fields; after it, tokens come in SaslAuthenticate (KIP-152).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(_context: RequestContext, _request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
