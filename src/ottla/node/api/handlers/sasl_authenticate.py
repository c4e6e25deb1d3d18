"""SaslAuthenticate: refuse a token where no login is under way.

`node.network.login` takes the tokens of a login; what comes here is out of place: the answer is
ILLEGAL_SASL_STATE, as in Kafka.

Version 1 has the lifetime of the session (KIP-368).
Version 2 is flexible (KIP-482).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(_context: RequestContext, _request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
