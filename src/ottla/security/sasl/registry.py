"""The mechanisms that there are: which login module each takes, and what makes its two sides.

Settings name Java classes. Those of Kafka's own that Ottla replaces are known here; any other is refused by
name when a node or client starts, as a listener without the check that its operator asked for would only look
secure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.protocol.scram import ScramMechanism
from ottla.runtime.runtime import Runtime
from ottla.security.sasl.mechanism import SaslClientFactory, SaslServerFactory
from ottla.security.sasl.mechanism_settings import MechanismSettings, SaslConfigError
from ottla.security.sasl.oauthbearer_classes import OAUTH_CLASSES
from ottla.security.sasl.plain import PLAIN, PlainClientFactory, PlainServerFactory, plain_users
from ottla.security.sasl.scram_client import TOKEN_AUTH, ScramClientFactory
from ottla.security.secret import Secret

if TYPE_CHECKING:
    from ottla.security.sasl.scram_server import ScramCredentials


@dataclass(frozen=True, slots=True)
class SaslEnvironment:
    """What mechanisms use of the world."""

    runtime: Runtime
    # The users and delegation tokens of the cluster; None for a client.
    scram: ScramCredentials | None = None
    # Runs a node's background work, by its name; None for a client.
    start_task: Callable[[str, Callable[[], Awaitable[None]]], object] | None = None
    # What gives tokens to a client, if the program has a function for that.
    oauth_cb: Callable[[str], Any] | None = None


class MakeServer(Protocol):
    def __call__(self, settings: MechanismSettings, environment: SaslEnvironment, /) -> SaslServerFactory: ...


class MakeClient(Protocol):
    def __call__(self, settings: MechanismSettings, environment: SaslEnvironment, /) -> SaslClientFactory: ...


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A mechanism that Ottla speaks, and the Java classes whose work it does."""

    name: str
    login_module: str
    make_server: MakeServer
    make_client: MakeClient
    # Classes that may stand in sasl.{server,client,login}.callback.handler.class and sasl.login.class.
    classes: frozenset[str] = frozenset()
    # Options of the login module without which no client can log in.
    required_options: tuple[str, ...] = ()


def _plain_server(settings: MechanismSettings, environment: SaslEnvironment) -> SaslServerFactory:
    return PlainServerFactory(plain_users(settings.jaas.options), environment.runtime.random)


def _plain_client(settings: MechanismSettings, _environment: SaslEnvironment) -> SaslClientFactory:
    return PlainClientFactory(settings.option("username"), Secret(settings.option("password")))


def _scram_server(settings: MechanismSettings, environment: SaslEnvironment) -> SaslServerFactory:
    from ottla.security.sasl.scram_server import ScramServerFactory

    mechanism = ScramMechanism.of_name(settings.mechanism)
    assert mechanism is not None, settings.mechanism
    assert environment.scram is not None, "a server without users"
    return ScramServerFactory(mechanism, environment.scram, environment.runtime.random)


def _scram_client(settings: MechanismSettings, environment: SaslEnvironment) -> SaslClientFactory:
    mechanism = ScramMechanism.of_name(settings.mechanism)
    assert mechanism is not None, settings.mechanism
    extensions = {}
    if settings.jaas.options.get(TOKEN_AUTH, "").lower() == "true":
        extensions[TOKEN_AUTH] = "true"
    username, password = settings.option("username"), Secret(settings.option("password"))
    return ScramClientFactory(mechanism, username, password, environment.runtime.random, extensions)


def _oauth_server(settings: MechanismSettings, environment: SaslEnvironment) -> SaslServerFactory:
    from ottla.security.sasl.oauthbearer_settings import make_server

    assert environment.start_task is not None, "a node has background tasks"
    return make_server(settings, environment.runtime, environment.start_task)


def _oauth_client(settings: MechanismSettings, environment: SaslEnvironment) -> SaslClientFactory:
    from ottla.security.sasl.oauthbearer_settings import make_client

    return make_client(settings, environment.runtime, environment.oauth_cb)


def _gssapi_server(settings: MechanismSettings, _environment: SaslEnvironment) -> SaslServerFactory:
    from ottla.security.sasl.kerberos_settings import make_server

    return make_server(settings)


def _gssapi_client(settings: MechanismSettings, environment: SaslEnvironment) -> SaslClientFactory:
    from ottla.security.sasl.kerberos_settings import make_client

    return make_client(settings, environment.runtime.pool)


_KAFKA: Final = "org.apache.kafka.common.security"
_COMMON_CLASSES: Final = frozenset(
    (
        f"{_KAFKA}.authenticator.DefaultLogin",
        f"{_KAFKA}.authenticator.AbstractLogin$DefaultLoginCallbackHandler",
        f"{_KAFKA}.authenticator.SaslClientCallbackHandler",
    )
)
_NAME_AND_PASSWORD: Final = ("username", "password")
_CLASS_SETTINGS: Final = (
    "sasl.server.callback.handler.class",
    "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
)

MECHANISMS: Final[dict[str, Mechanism]] = {
    each.name: each
    for each in (
        Mechanism(
            PLAIN,
            f"{_KAFKA}.plain.PlainLoginModule",
            _plain_server,
            _plain_client,
            frozenset((f"{_KAFKA}.plain.internals.PlainServerCallbackHandler",)),
            _NAME_AND_PASSWORD,
        ),
        *(
            Mechanism(
                scram.mechanism_name,
                f"{_KAFKA}.scram.ScramLoginModule",
                _scram_server,
                _scram_client,
                frozenset((f"{_KAFKA}.scram.internals.ScramServerCallbackHandler",)),
                _NAME_AND_PASSWORD,
            )
            for scram in ScramMechanism
        ),
        Mechanism(
            "OAUTHBEARER",
            f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule",
            _oauth_server,
            _oauth_client,
            OAUTH_CLASSES,
        ),
        Mechanism(
            "GSSAPI",
            "com.sun.security.auth.module.Krb5LoginModule",
            _gssapi_server,
            _gssapi_client,
            frozenset(
                (f"{_KAFKA}.kerberos.KerberosLogin", f"{_KAFKA}.authenticator.SaslServerCallbackHandler")
            ),
        ),
    )
}


def find_mechanism(name: str, setting: str) -> Mechanism:
    """Find a mechanism by its name. SaslConfigError names the setting that asks for one that is not there."""
    mechanism = MECHANISMS.get(name)
    if mechanism is None:
        raise SaslConfigError(f"{setting}: SASL mechanism {name} is not supported; {_supported()}")
    return mechanism


def check_classes(mechanism: Mechanism, settings: MechanismSettings) -> None:
    """Raise SaslConfigError if the settings ask for a Java class whose work Ottla does not do."""
    if settings.jaas.login_module != mechanism.login_module:
        raise SaslConfigError(
            f"{settings.source}: the login module {settings.jaas.login_module} is not supported for "
            f"{mechanism.name}, which takes {mechanism.login_module}"
        )
    for name in _CLASS_SETTINGS:
        value = settings.setting(name)
        if value and value not in _COMMON_CLASSES and value not in mechanism.classes:
            raise SaslConfigError(
                f"{name}: the class {value} is not supported for {mechanism.name}: Ottla loads no Java"
            )


def _supported() -> str:
    return f"these are: {', '.join(MECHANISMS)}"
