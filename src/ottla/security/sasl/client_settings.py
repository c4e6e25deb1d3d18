"""The SASL settings of a client, as Kafka's Java client and librdkafka name them, as a login.

Java has the credentials in `sasl.jaas.config`; librdkafka has `sasl.username` and `sasl.password`, which mean
the same as the two options of the mechanism's login module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.security.jaas import JaasEntry, JaasError, parse_jaas
from ottla.security.sasl.client_authenticator import SaslLogin
from ottla.security.sasl.mechanism_settings import MechanismSettings, SaslConfigError
from ottla.security.sasl.registry import (
    Mechanism,
    SaslEnvironment,
    check_classes,
    find_mechanism,
)

JAAS: Final = "sasl.jaas.config"
# Settings that ask for a login: a client that has them and no SASL would only look secure.
CREDENTIALS: Final = ("sasl.mechanism", "sasl.mechanisms", JAAS, "sasl.username", "sasl.password")
CLIENT_NAMES: Final = frozenset(
    (
        *CREDENTIALS,
        *("enable.sasl.oauthbearer.unsecure.jwt", "https.ca.location", "https.ca.pem"),
        *("sasl.client.callback.handler.class", "sasl.login.callback.handler.class", "sasl.login.class"),
    )
)
# Mechanisms beyond PLAIN and SCRAM have settings of their own.
_PREFIXES: Final = ("sasl.kerberos.", "sasl.login.", "sasl.oauthbearer.")
_DEFAULT_MECHANISM: Final = "GSSAPI"


def is_client_setting(name: str) -> bool:
    return name in CLIENT_NAMES or name.startswith(_PREFIXES)


def check_client_sasl(values: Mapping[str, str]) -> None:
    """Raise SaslConfigError, which names the setting, if a client cannot log in with these settings."""
    _mechanism_settings(values)


def client_login(values: Mapping[str, str], environment: SaslEnvironment) -> SaslLogin:
    """Make the login of a client. SaslConfigError names a setting that is missing or wrong."""
    mechanism, settings = _mechanism_settings(values)
    return SaslLogin(mechanism.make_client(settings, environment), environment.runtime.random)


def _mechanism_settings(values: Mapping[str, str]) -> tuple[Mechanism, MechanismSettings]:
    given = [values[name].strip() for name in ("sasl.mechanism", "sasl.mechanisms") if name in values]
    if len(given) > 1 and given[0] != given[1]:
        raise SaslConfigError("sasl.mechanism and sasl.mechanisms are two names of one setting, and differ")
    name = given[0] if given else _DEFAULT_MECHANISM
    mechanism = find_mechanism(name, "sasl.mechanism")
    text = values.get(JAAS)
    if text is not None:
        try:
            jaas, source = parse_jaas(text), JAAS
        except JaasError as error:
            raise SaslConfigError(f"{JAAS}: {error}") from None
    else:
        options = {
            option: values[f"sasl.{option}"]
            for option in ("username", "password")
            if f"sasl.{option}" in values
        }
        jaas, source = JaasEntry(mechanism.login_module, options), "sasl.username and sasl.password"
    settings = MechanismSettings(name, jaas, source, values.get)
    check_classes(mechanism, settings)
    for option in mechanism.required_options:
        settings.option(option)
    return mechanism, settings
