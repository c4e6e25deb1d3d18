"""GSSAPI (RFC 4752): Kerberos proves both sides to each other; then they agree to protect nothing further.

The package `gssapi` (the extra `kerberos`) does the work, with the Kerberos library of the system. Kafka's
protocol has no place for a security layer, so only authentication is offered, and taken. Tickets come from a
key tab or from the user's ticket cache, and what asks the KDC for them runs in the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ottla.runtime.pool import Pool
from ottla.security.principal import USER_TYPE, KafkaPrincipal
from ottla.security.sasl.kerberos_rules import KerberosShortNamer, NoMatchingRule
from ottla.security.sasl.mechanism import AuthenticatedClient, SaslFailure, ServerStep

if TYPE_CHECKING:
    import gssapi

GSSAPI: Final = "GSSAPI"
_NO_LAYER: Final = 1
# KRB5_KDC_UNREACH, as the library returns it.
_KDC_UNREACHABLE: Final = -1765328228 & 0xFFFFFFFF
# The bits of the layers that a side offers or takes, and three bytes for the size of wrapped messages.
_OFFER: Final = bytes((_NO_LAYER, 0, 0, 0))


class KerberosMissing(ValueError):
    """The package `gssapi` is not installed, or finds no Kerberos library."""


def load_gssapi() -> Any:
    """Import the package. KerberosMissing says what to install."""
    try:
        import gssapi
    except ImportError as error:
        raise KerberosMissing(
            f"GSSAPI needs the package gssapi and the Kerberos library of the system ({error}): "
            "pip install 'ottla[kerberos]' (Debian: apt install libkrb5-dev gcc)"
        ) from None
    return gssapi


def default_realm() -> str:
    """The realm of names without one, as the system's Kerberos is configured; empty if there is none."""
    gss = load_gssapi()
    try:
        name = gss.Name("x", gss.NameType.user).canonicalize(gss.MechType.kerberos)
    except gss.exceptions.GSSError:
        return ""
    return str(name).partition("@")[2]


class _Stage(Enum):
    CONTEXT = "tokens of Kerberos"
    OFFER = "an empty message, after which the server offers layers"
    CHOICE = "the layer that the client takes"


class GssapiServerFactory:
    def __init__(self, credentials: Callable[[], gssapi.Credentials], names: KerberosShortNamer) -> None:
        """`credentials` are those of the service; they are read again for each login, as key tabs change."""
        self._credentials: Final = credentials
        self._names: Final = names

    def create(self) -> GssapiServer:
        return GssapiServer(self._credentials, self._names)


class GssapiServer:
    def __init__(self, credentials: Callable[[], gssapi.Credentials], names: KerberosShortNamer) -> None:
        self._credentials = credentials
        self._names = names
        self._stage = _Stage.CONTEXT
        self._context: gssapi.SecurityContext | None = None

    def evaluate_response(self, response: bytes) -> ServerStep:
        gss = load_gssapi()
        try:
            if self._stage is _Stage.CONTEXT:
                return self._on_token(gss, response)
            assert self._context is not None
            if self._stage is _Stage.OFFER:
                if response:
                    raise SaslFailure("it sent a token after the last one of Kerberos")
                return self._offer()
            return self._on_choice(self._context.unwrap(response).message)
        except gss.exceptions.GSSError as error:
            raise SaslFailure(f"Kerberos refuses the client: {_reason(error)}") from None

    def _on_token(self, gss: Any, token: bytes) -> ServerStep:
        if self._context is None:
            self._context = gss.SecurityContext(creds=self._credentials(), usage="accept")
        answer = self._context.step(token)
        if not self._context.complete:
            return ServerStep(answer or b"")
        self._stage = _Stage.OFFER
        return ServerStep(answer) if answer else self._offer()

    def _offer(self) -> ServerStep:
        assert self._context is not None
        self._stage = _Stage.CHOICE
        return ServerStep(self._context.wrap(_OFFER, False).message)

    def _on_choice(self, choice: bytes) -> ServerStep:
        """The client may name another user in its choice; that counts for nothing, as in Kafka."""
        assert self._context is not None
        if len(choice) < len(_OFFER) or choice[0] != _NO_LAYER:
            raise SaslFailure("it asks for a security layer that was not offered")
        try:
            user = self._names.short_name(str(self._context.initiator_name))
        except NoMatchingRule as error:
            raise SaslFailure(f"{self._context.initiator_name}: {error}") from None
        return ServerStep(b"", AuthenticatedClient(KafkaPrincipal(USER_TYPE, user)))


class GssapiClientFactory:
    mechanism: Final = GSSAPI

    def __init__(
        self, service: str, credentials: Callable[[], gssapi.Credentials | None], pool: Pool
    ) -> None:
        self._service: Final = service
        self._credentials: Final = credentials
        self._pool: Final = pool

    async def create(self, host: str) -> GssapiClient:
        gss = load_gssapi()
        try:
            return await self._pool.run(self._begin, gss, host)
        except gss.exceptions.GSSError as error:
            raise SaslFailure(
                f"there is no ticket for {self._service}@{host}: {_reason(error)}",
                is_temporary=error.min_code == _KDC_UNREACHABLE,
            ) from None

    def _begin(self, gss: Any, host: str) -> GssapiClient:
        context = gss.SecurityContext(
            name=gss.Name(f"{self._service}@{host}", gss.NameType.hostbased_service),
            creds=self._credentials(),
            mech=gss.MechType.kerberos,
            flags=(gss.RequirementFlag.mutual_authentication, gss.RequirementFlag.integrity),
            usage="initiate",
        )
        return GssapiClient(context, context.step(None) or b"")


class GssapiClient:
    def __init__(self, context: gssapi.SecurityContext, first: bytes) -> None:
        self._context = context
        self._first = first
        # Whether the layer has been chosen; only the server's confirmation, which is empty, follows.
        self._has_chosen = False

    def initial_response(self) -> bytes:
        return self._first

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        gss = load_gssapi()
        try:
            if self._has_chosen:
                return None
            if not self._context.complete:
                return self._context.step(challenge) or b""
            offered = self._context.unwrap(challenge).message
            if len(offered) != len(_OFFER) or not offered[0] & _NO_LAYER:
                raise SaslFailure("the broker insists on a security layer, which Kafka's protocol has not")
            self._has_chosen = True
            return bytes(self._context.wrap(_OFFER, False).message)
        except gss.exceptions.GSSError as error:
            raise SaslFailure(f"Kerberos refuses the broker: {_reason(error)}") from None


def server_credentials(options: Mapping[str, str]) -> Callable[[], gssapi.Credentials]:
    """The credentials of a service, of the options of its login module. KerberosMissing or ValueError, with
    the reason, if there are none.
    """
    gss = load_gssapi()
    store = {"keytab": options["keyTab"]} if "keyTab" in options else None
    principal = options.get("principal")
    # `*` in Java's options stands for all keys of the key tab.
    name = None
    if principal not in (None, "*"):
        name = gss.Name(principal, gss.NameType.kerberos_principal)

    def acquire() -> Any:
        return gss.Credentials(name=name, usage="accept", store=store, mechs=[gss.MechType.kerberos])

    try:
        acquire()
    except gss.exceptions.GSSError as error:
        raise ValueError(f"there are no keys for {principal or 'this service'}: {_reason(error)}") from None
    return acquire


def client_credentials(options: Mapping[str, str]) -> Callable[[], gssapi.Credentials | None]:
    """What gets the credentials of a client: of its key tab, or of the ticket cache."""
    gss = load_gssapi()
    principal = options.get("principal")
    name = None if principal is None else gss.Name(principal, gss.NameType.kerberos_principal)
    store: dict[str, str] = {}
    if "keyTab" in options:
        # Tickets stay in this process; the library gets new ones once they end.
        store = {"client_keytab": options["keyTab"], "ccache": f"MEMORY:ottla-{principal}"}
    elif "ticketCache" in options:
        store = {"ccache": options["ticketCache"]}

    def acquire() -> Any:
        return gss.Credentials(name=name, usage="initiate", store=store or None)

    return acquire


def _reason(error: Exception) -> str:
    """The library's text, on one line."""
    return " ".join(str(error).split())[:300]
