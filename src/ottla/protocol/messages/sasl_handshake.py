"""Choose a SASL mechanism.

- v0: the tokens of the mechanism follow as bare frames
- v1: the tokens follow in SaslAuthenticate
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, array, int16, string


class SaslHandshakeRequest(Request, api_key=17, versions="0-1"):
    mechanism: str = string()


class SaslHandshakeResponse(Response, api_key=17, versions="0-1"):
    error_code: int = int16()
    mechanisms: list[str] = array("string")
