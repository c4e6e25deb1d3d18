"""The SASL settings of a listener: `listener.name.<listener>.<mechanism>.` before `listener.name.<listener>.`
before the plain name, as Kafka reads them.

The login module has no plain name: a broker has one for each mechanism, so Kafka takes
`listener.name.<listener>.<mechanism>.sasl.jaas.config` or `<mechanism>.sasl.jaas.config`. All is read when
the listener is made, and what cannot be used is refused then, by the name of the setting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.node.config.definitions.config_def import ConfigError
from ottla.node.config.node_config import NodeConfig
from ottla.security.jaas import JaasEntry, JaasError, parse_jaas
from ottla.security.sasl.mechanism import SaslClientFactory
from ottla.security.sasl.mechanism_settings import MechanismSettings, SaslConfigError
from ottla.security.sasl.registry import SaslEnvironment, check_classes, find_mechanism
from ottla.security.sasl.server_authenticator import ServerMechanism

if TYPE_CHECKING:
    from ottla.security.oauth.claims import TokenValidator

JAAS: Final = "sasl.jaas.config"
_OAUTHBEARER: Final = "OAUTHBEARER"
_ENABLED: Final = "sasl.enabled.mechanisms"
_MAX_REAUTH: Final = "connections.max.reauth.ms"


def server_mechanisms(
    config: NodeConfig, listener: str, environment: SaslEnvironment
) -> dict[str, ServerMechanism]:
    """The mechanisms that a listener offers. ConfigError names a setting that cannot be used."""
    enabled = config.with_listener_prefix(listener, _ENABLED)
    if not isinstance(enabled, tuple) or not enabled:
        raise ConfigError(f"{_ENABLED}: no SASL mechanism is enabled for listener {listener}")
    mechanisms: dict[str, ServerMechanism] = {}
    try:
        for name in enabled:
            mechanism = find_mechanism(name, _ENABLED)
            settings = mechanism_settings(config, listener, name)
            check_classes(mechanism, settings)
            max_reauth_ms = settings.setting(_MAX_REAUTH)
            mechanisms[name] = ServerMechanism(
                mechanism.make_server(settings, environment), _milliseconds(max_reauth_ms, mechanism.name)
            )
    except SaslConfigError as error:
        raise ConfigError(str(error)) from None
    return mechanisms


def _milliseconds(text: str | None, mechanism: str) -> int:
    # With the prefix of a mechanism it has no definition, and so was not checked with the others.
    try:
        return 0 if text is None else int(text)
    except ValueError:
        raise SaslConfigError(
            f"Invalid value {text} for configuration {_MAX_REAUTH} of {mechanism}: it is no number"
        ) from None


def client_mechanism(
    config: NodeConfig, listener: str, mechanism_setting: str, environment: SaslEnvironment
) -> SaslClientFactory:
    """How this node logs in at other nodes' listener of this name; `mechanism_setting` is
    `sasl.mechanism.inter.broker.protocol` or `sasl.mechanism.controller.protocol`.
    """
    name = str(config.with_listener_prefix(listener, mechanism_setting))
    try:
        mechanism = find_mechanism(name, mechanism_setting)
        settings = mechanism_settings(config, listener, name)
        check_classes(mechanism, settings)
        return mechanism.make_client(settings, environment)
    except SaslConfigError as error:
        raise ConfigError(str(error)) from None


def http_token_validator(
    config: NodeConfig, listener: str, environment: SaslEnvironment
) -> TokenValidator | None:
    """What checks the tokens that clients of an HTTP listener bring, by the settings of OAUTHBEARER; None if
    they name no keys. Unsecured tokens are never taken there.
    """
    from ottla.security.sasl.oauthbearer_settings import signed_validator

    of_listener = f"listener.name.{listener.lower()}."
    settings = MechanismSettings(
        _OAUTHBEARER, JaasEntry("", {}), of_listener, _setting_of(config, listener, _OAUTHBEARER)
    )
    assert environment.start_task is not None
    try:
        return signed_validator(settings, environment.runtime, environment.start_task)
    except SaslConfigError as error:
        raise ConfigError(str(error)) from None


def _setting_of(config: NodeConfig, listener: str, mechanism: str) -> Callable[[str], str | None]:
    of_listener, of_mechanism = f"listener.name.{listener.lower()}.", f"{mechanism.lower()}."

    def setting(name: str) -> str | None:
        for full in (of_listener + of_mechanism + name, of_mechanism + name, of_listener + name, name):
            value = config.given_text(full)
            if value is not None:
                return value
        return None

    return setting


def mechanism_settings(config: NodeConfig, listener: str, mechanism: str) -> MechanismSettings:
    of_listener, of_mechanism = f"listener.name.{listener.lower()}.", f"{mechanism.lower()}."
    for source in (of_listener + of_mechanism + JAAS, of_mechanism + JAAS):
        text = config.given_text(source)
        if text is not None:
            break
    else:
        raise SaslConfigError(
            f"Could not find a login module for {mechanism} on listener {listener}: set "
            f"{of_listener + of_mechanism + JAAS} (a file by java.security.auth.login.config is not read)"
            f"{_default_hint(config, listener, mechanism)}"
        )
    try:
        jaas = parse_jaas(text)
    except JaasError as error:
        raise SaslConfigError(f"{source}: {error}") from None
    return MechanismSettings(mechanism, jaas, source, _setting_of(config, listener, mechanism))


def _default_hint(config: NodeConfig, listener: str, mechanism: str) -> str:
    """Say that the mechanism is only the default, if it is."""
    if config.is_set(_ENABLED) or config.is_set_for_listener(listener, _ENABLED):
        return ""
    return f". {_ENABLED} is not set, and its default is {mechanism}"
