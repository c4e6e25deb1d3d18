"""Who may ask a node over HTTP, and for what.

On a loopback address every client of this machine gets all, if it asked for a name of this machine: a page
of another site cannot. On any other address clients log in, with a certificate or, over TLS, by name and
password of one of the cluster's SCRAM users (HTTP's Basic scheme, which Prometheus speaks), and need the
permission to describe the cluster where there is an authorizer. What `http.public.paths` lists is open to
all.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.metadata.image.entities import ScramCredential, ScramUser
from ottla.metadata.image.image import MetadataImage
from ottla.node.config.listeners import Endpoint
from ottla.node.http.mounts import MountAccess
from ottla.node.network.server import ListenerTls
from ottla.protocol import scram
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.http_server import HttpMatch, HttpProblem, HttpServerRequest, HttpServerResponse
from ottla.runtime.pool import Pool
from ottla.security.principal import ANONYMOUS, USER_TYPE, KafkaPrincipal

if TYPE_CHECKING:
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer

# Each attempt takes milliseconds of a thread of the pool.
_MAX_ATTEMPTS_AT_ONCE: Final = 2
_FAILURE_DELAY_SECONDS: Final = 0.5
_MAX_REMEMBERED: Final = 100


@dataclass(frozen=True, slots=True)
class _HttpRequester:
    """A client as the authorizer sees it."""

    principal: KafkaPrincipal
    client_host: str
    request_name: str = "HTTP"
    client_id: str | None = None


class HttpAccess:
    """`access_of` is the access of a mount by its prefix; the users are those of the newest image."""

    def __init__(
        self,
        endpoint: Endpoint,
        public_paths: tuple[str, ...],
        access_of: Callable[[str], MountAccess],
        image: Callable[[], MetadataImage],
        tls: ListenerTls | None,
        authorizer: StandardAuthorizer | None,
        pool: Pool,
    ) -> None:
        self._is_local: Final = endpoint.is_loopback
        self._public: Final = tuple(path.rstrip("/") for path in public_paths)
        self._access_of: Final = access_of
        self._image: Final = image
        self._tls: Final = tls
        self._authorizer: Final = authorizer
        self._pool: Final = pool
        self._attempts: Final = asyncio.Semaphore(_MAX_ATTEMPTS_AT_ONCE)
        # Digests of names, passwords and the credentials that they fitted: a scraper comes every few seconds.
        self._known: dict[bytes, None] = {}
        own_names = ("", "localhost", "127.0.0.1", "::1", endpoint.host.lower())
        self.hosts: Final = frozenset(own_names) if self._is_local else None

    async def check(self, request: HttpServerRequest, match: HttpMatch) -> HttpServerResponse | None:
        """Set the principal of a request, None if it has no name; the response of one that is refused."""
        if self._is_local or self._is_public(request.path):
            request.principal = ANONYMOUS
            return None
        access = self._access_of(match.mount)
        if access is MountAccess.OWN:
            if self._tls is None:
                raise HttpProblem(403, _NEEDS_TLS)
            return None
        principal = await self._authenticate(request)
        if principal is not None and self._may_describe(principal, request):
            request.principal = principal
        elif access is MountAccess.LOGIN:
            if principal is not None:
                raise HttpProblem(403, f"{principal} may not describe the cluster.")
            if self._tls is None:
                raise HttpProblem(403, _NEEDS_TLS)
            raise HttpProblem(401, "This needs a login.", {"WWW-Authenticate": 'Basic realm="ottla"'})
        return None

    def _is_public(self, path: str) -> bool:
        return any(path == public or path.startswith(f"{public}/") for public in self._public)

    def _may_describe(self, principal: KafkaPrincipal, request: HttpServerRequest) -> bool:
        return self._authorizer is None or self._authorizer.allowed(
            _HttpRequester(principal, request.peer.host),
            AclOperation.DESCRIBE,
            AclResourceType.CLUSTER,
            CLUSTER_NAME,
        )

    async def _authenticate(self, request: HttpServerRequest) -> KafkaPrincipal | None:
        if self._tls is None:
            return None  # a password would be there for all to read
        try:
            principal = self._tls.principal(request.transport)
        except ValueError:
            principal = ANONYMOUS
        if principal != ANONYMOUS:
            return principal
        given = request.headers.get("authorization")
        if given is None:
            return None
        scheme, _, encoded = given.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise HttpProblem(400, "The Authorization header cannot be read.") from None
        if colon and await self._is_password(name, password):
            return KafkaPrincipal(USER_TYPE, name)
        await asyncio.sleep(_FAILURE_DELAY_SECONDS)
        raise HttpProblem(
            401, "The name or the password is wrong.", {"WWW-Authenticate": 'Basic realm="ottla"'}
        )

    async def _is_password(self, name: str, password: str) -> bool:
        """Whether it is a password of the user; one that does not exist takes as long to refuse."""
        users = self._image().scram
        credentials = [(each, users.get(ScramUser(each, name))) for each in ScramMechanism]
        for mechanism, credential in [each for each in credentials if each[1]] or credentials[:1]:
            stored_key = b"" if credential is None else credential.stored_key
            digest = hashlib.sha256(b"\0".join((name.encode(), password.encode(), stored_key))).digest()
            if digest in self._known:
                return True
            async with self._attempts:
                fits = await self._pool.run(_fits, mechanism, password, credential)
            if fits:
                if len(self._known) >= _MAX_REMEMBERED:
                    del self._known[next(iter(self._known))]
                self._known[digest] = None
                return True
        return False


_NEEDS_TLS: Final = (
    "On an address that other machines reach this needs TLS (http.listener=https://...), or "
    "http.public.paths."
)
_NO_CREDENTIAL: Final = ScramCredential(bytes(17), bytes(32), bytes(32), scram.DEFAULT_ITERATIONS)


def _fits(mechanism: ScramMechanism, password: str, credential: ScramCredential | None) -> bool:
    tried = credential or _NO_CREDENTIAL
    salted = scram.salted_password(mechanism, password, tried.salt, tried.iterations)
    key = scram.stored_key(mechanism, scram.client_key(mechanism, salted))
    return hmac.compare_digest(key, tried.stored_key) and credential is not None
