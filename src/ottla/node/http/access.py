"""Who may ask a node over HTTP, and for what.

On a loopback address every client of this machine gets all, if it asked for a name of this machine: a page
of another site cannot. On any other address clients log in, with a certificate or, over TLS, by name and
password of one of the cluster's SCRAM users (HTTP's Basic scheme, which Prometheus speaks) or with a token of
the identity provider whose keys OAUTHBEARER's settings name (the Bearer scheme), and need the permission to
describe the cluster where there is an authorizer. What `http.public.paths` lists is open to all.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.metadata.image.entities import ScramCredential, ScramUser
from ottla.metadata.image.image import MetadataImage
from ottla.node.config.listeners import Endpoint
from ottla.node.http.mounts import MountAccess
from ottla.node.network.connection import ClientFaultLog
from ottla.node.network.server import ListenerTls
from ottla.protocol import scram
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.address import Address
from ottla.runtime.http_server import HttpMatch, HttpProblem, HttpServerRequest, HttpServerResponse
from ottla.runtime.pool import Pool
from ottla.security.oauth.claims import TokenRefused, TokenValidator
from ottla.security.principal import ANONYMOUS, USER_TYPE, KafkaPrincipal

if TYPE_CHECKING:
    from ottla.runtime.clock import Clock
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer

# Each attempt takes milliseconds of a thread of the pool.
_MAX_ATTEMPTS_AT_ONCE: Final = 2
# A refused login is answered so long after it began, and the next one from its address begins then.
_FAILURE_SECONDS: Final = 0.5
# Of an address that has more logins in line, further ones are refused unseen.
_MAX_LINE_SECONDS: Final = 5.0
_MAX_ADDRESSES: Final = 10_000
_MAX_REMEMBERED: Final = 100


@dataclass(frozen=True, slots=True)
class HttpRequester:
    """A client as the authorizer sees it."""

    principal: KafkaPrincipal
    client_host: str
    request_name: str = "HTTP"
    client_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Tried:
    """A credential that a password is tried with. One that is not of the user fits no password."""

    mechanism: ScramMechanism
    credential: ScramCredential
    is_of_user: bool
    # Of the name, the password and the user's stored key.
    digest: bytes


class HttpAccess:
    """`access_of` is the access of a mount by its prefix; the users are those of the newest image. `tokens`
    checks those of the Bearer scheme, if they are taken.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        public_paths: tuple[str, ...],
        access_of: Callable[[str], MountAccess],
        image: Callable[[], MetadataImage],
        tls: ListenerTls | None,
        authorizer: StandardAuthorizer | None,
        pool: Pool,
        clock: Clock,
        tokens: TokenValidator | None,
    ) -> None:
        self._is_local: Final = endpoint.is_loopback
        self._public: Final = tuple(path.rstrip("/") for path in public_paths)
        self._access_of: Final = access_of
        self._image: Final = image
        self._tls: Final = tls
        self._authorizer: Final = authorizer
        self._pool: Final = pool
        self._clock: Final = clock
        self._tokens: Final = tokens
        self._attempts: Final = asyncio.Semaphore(_MAX_ATTEMPTS_AT_ONCE)
        # When the next login from an address begins, of those from which one was refused or is under way.
        self._next_login: dict[str, float] = {}
        self._fault_log: Final = ClientFaultLog()
        self.refused_logins = 0
        # The users for which `_examples` were found, as the credentials of users who do not exist.
        self._of_examples: Mapping[ScramUser, ScramCredential] | None = None
        self._examples: dict[ScramMechanism, ScramCredential] = {}
        # Digests of names, passwords and the credentials that they fitted: a scraper comes every few seconds.
        self._known: dict[bytes, None] = {}
        own_names = ("", "localhost", "127.0.0.1", "::1", endpoint.host.lower())
        self.hosts: Final = frozenset(own_names) if self._is_local else None

    async def check(self, request: HttpServerRequest, match: HttpMatch) -> HttpServerResponse | None:
        """Set the principal of a request, None if it has no name; the response of one that is refused."""
        if self._is_local:
            request.principal = ANONYMOUS
            return None
        access = self._access_of(match.mount)
        if access is MountAccess.OWN:
            # It has a login of its own: no list of public paths may have passwords sent as plain text.
            if self._tls is None:
                raise HttpProblem(403, _OWN_NEEDS_TLS)
            return None
        if self._is_public(request.path):
            request.principal = ANONYMOUS
            return None
        principal = await self._authenticate(request)
        if principal is not None and (access is MountAccess.USER or self._may_describe(principal, request)):
            request.principal = principal
        elif access in (MountAccess.LOGIN, MountAccess.USER):
            if principal is not None:
                raise HttpProblem(403, f"{principal} may not describe the cluster.")
            if self._tls is None:
                raise HttpProblem(403, _NEEDS_TLS)
            schemes = _BASIC if self._tokens is None else f"{_BASIC}, {_BEARER}"
            raise HttpProblem(401, "This needs a login.", {"WWW-Authenticate": schemes})
        return None

    def _is_public(self, path: str) -> bool:
        return any(path == public or path.startswith(f"{public}/") for public in self._public)

    def _may_describe(self, principal: KafkaPrincipal, request: HttpServerRequest) -> bool:
        return self._authorizer is None or self._authorizer.allowed(
            HttpRequester(principal, request.peer.host),
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
        if scheme.lower() == "bearer" and self._tokens is not None:
            return self._bearer(request.peer, encoded.strip(), self._tokens)
        if scheme.lower() != "basic":
            return None
        try:
            name, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise HttpProblem(400, "The Authorization header cannot be read.") from None
        tried = self._tried(name, password)
        if any(each.digest in self._known for each in tried):
            return KafkaPrincipal(USER_TYPE, name)
        await self._log_in(request.peer, name, password, tried)
        return KafkaPrincipal(USER_TYPE, name)

    def _bearer(self, peer: Address, token: str, tokens: TokenValidator) -> KafkaPrincipal:
        """The principal of a token. HttpProblem if it is not valid: the client does not learn why."""
        try:
            return KafkaPrincipal(USER_TYPE, tokens.validate(token, self._clock.wall_ms()).principal_name)
        except TokenRefused as refused:
            self._refuse(peer, str(refused))
            raise HttpProblem(
                401, "The token is not valid.", {"WWW-Authenticate": f'{_BEARER}, error="{refused.status}"'}
            ) from None

    async def _log_in(self, peer: Address, name: str, password: str, tried: list[_Tried]) -> None:
        """Raise HttpProblem unless it is a password of the user, at the same time after the login began for
        each user and for those who do not exist.

        Logins from one address take turns, also where a client does not wait for the answer.
        """
        now = asyncio.get_running_loop().time
        began = max(now(), self._next_login.get(peer.host, 0.0))
        if began - now() > _MAX_LINE_SECONDS:
            self._refuse(peer, "too many of them failed, and more wait")
            raise HttpProblem(429, "Too many logins from this address have failed.")
        self._next_login[peer.host] = began + _FAILURE_SECONDS
        self._forget_addresses(now())
        await asyncio.sleep(began - now())
        if await self._fits_one(password, tried):
            self._next_login.pop(peer.host, None)
            return
        self._refuse(peer, f"the name or the password of {name!r} is wrong")
        # It may have taken longer than that, with many iterations or much else to do.
        await asyncio.sleep((began - now()) % _FAILURE_SECONDS)
        raise HttpProblem(401, "The name or the password is wrong.", {"WWW-Authenticate": _BASIC})

    def _refuse(self, peer: Address, reason: str) -> None:
        self.refused_logins += 1
        now = asyncio.get_running_loop().time()
        self._fault_log.log_refused_login((peer.host, peer.port), reason, now)

    def _forget_addresses(self, now: float) -> None:
        if len(self._next_login) > _MAX_ADDRESSES:
            self._next_login = {host: at for host, at in self._next_login.items() if at > now}
            while len(self._next_login) > _MAX_ADDRESSES:
                del self._next_login[next(iter(self._next_login))]

    def _tried(self, name: str, password: str) -> list[_Tried]:
        """What the password is tried with: a credential of each mechanism, whichever of them the user has."""
        users = self._image().scram
        tried = []
        for mechanism in ScramMechanism:
            credential = users.get(ScramUser(mechanism, name))
            stored_key = b"" if credential is None else credential.stored_key
            digest = hashlib.sha256(b"\0".join((name.encode(), password.encode(), stored_key))).digest()
            example = self._example(mechanism, users)
            tried.append(_Tried(mechanism, credential or example, credential is not None, digest))
        return tried

    async def _fits_one(self, password: str, tried: list[_Tried]) -> bool:
        """Try all, also after one has fitted: the time must not show what a user has."""
        if any(each.digest in self._known for each in tried):
            return True
        async with self._attempts:
            fitting = [each for each in tried if await self._pool.run(_fits, password, each)]
        for each in fitting:
            if len(self._known) >= _MAX_REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[each.digest] = None
        return bool(fitting)

    def _example(
        self, mechanism: ScramMechanism, users: Mapping[ScramUser, ScramCredential]
    ) -> ScramCredential:
        """The credential of another user, which takes as long to try."""
        if users is not self._of_examples:
            self._of_examples = users
            self._examples.clear()
        found = self._examples.get(mechanism)
        if found is None:
            candidates = [user for user in users if user.mechanism == mechanism] or list(users)
            found = self._examples[mechanism] = users[min(candidates)] if candidates else _NO_CREDENTIAL
        return found


_BASIC: Final = 'Basic realm="ottla"'
_BEARER: Final = 'Bearer realm="ottla"'
_NEEDS_TLS: Final = (
    "On an address that other machines reach this needs TLS (http.listener=https://...), or "
    "http.public.paths."
)
_OWN_NEEDS_TLS: Final = "On an address that other machines reach this needs TLS (http.listener=https://...)."
_NO_CREDENTIAL: Final = ScramCredential(bytes(17), bytes(32), bytes(32), scram.DEFAULT_ITERATIONS)


def _fits(password: str, tried: _Tried) -> bool:
    mechanism, credential = tried.mechanism, tried.credential
    salted = scram.salted_password(mechanism, password, credential.salt, credential.iterations)
    key = scram.stored_key(mechanism, scram.client_key(mechanism, salted))
    return hmac.compare_digest(key, credential.stored_key) and tried.is_of_user
