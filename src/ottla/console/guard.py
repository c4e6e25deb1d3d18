"""Which requests a console answers at all: its own pages' only.

A browser sends requests for any page, to any address, with the cookies of that address. So a request must
name this server as its host (a foreign name that suddenly has the address of this machine is refused), must
not come from another origin, and a change must carry the token that only a page of this console can read.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final
from urllib.parse import urlsplit

from ottla.console.api_request import ApiRequest, ConsoleError

CSRF_HEADER: Final = "x-ottla-csrf"
SAFE_METHODS: Final = frozenset(("GET", "HEAD"))
LOOPBACK_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1", "[::1]"))
_FOREIGN_SITES: Final = frozenset(("cross-site", "same-site"))
_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class RequestGuard:
    """`secret` makes the tokens; it is of this process, and random. `own_host` is the loopback address that
    the console listens on: it may be another one than 127.0.0.1.
    """

    def __init__(self, secret: bytes, *, loopback_only: bool, own_host: str = "") -> None:
        self._secret: Final = secret
        self._hosts: Final = LOOPBACK_NAMES | {own_host.lower()} - {""} if loopback_only else None

    def csrf_token(self, session_id: str) -> str:
        """The token of a session; that of no session is of the empty text."""
        return hmac.new(self._secret, f"csrf:{session_id}".encode(), hashlib.sha256).hexdigest()

    def check_host(self, request: ApiRequest) -> None:
        """Refuse a request to a name that is not one of this machine's own."""
        host = _host_name(request.headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            raise ConsoleError(
                403, "ORIGIN", "the console is open to this machine only: use http://localhost or 127.0.0.1"
            )

    def check_origin(self, request: ApiRequest) -> None:
        """Refuse a request that a page of another origin has made."""
        if request.headers.get("sec-fetch-site", "") in _FOREIGN_SITES:
            raise ConsoleError(403, "ORIGIN", "the request comes from a page of another origin")
        origin = request.headers.get("origin")
        if origin is None:
            return
        scheme = "https" if request.is_tls else "http"
        if origin.lower() != f"{scheme}://{request.headers.get('host', '')}".lower():
            raise ConsoleError(403, "ORIGIN", "the request comes from a page of another origin")

    def check_token(self, request: ApiRequest, session_id: str) -> None:
        """Refuse a change without the token of its session."""
        if request.method in SAFE_METHODS:
            return
        given = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(given.encode(), self.csrf_token(session_id).encode()):
            raise ConsoleError(
                403, "CSRF", "the request lacks the token of this session; load the page again"
            )


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
