"""The settings of GSSAPI: `sasl.kerberos.*`, and the options of Java's `Krb5LoginModule`."""

from __future__ import annotations

from ottla.runtime.pool import Pool
from ottla.security.sasl.kerberos import (
    GssapiClientFactory,
    GssapiServerFactory,
    KerberosMissing,
    client_credentials,
    default_realm,
    load_gssapi,
    server_credentials,
)
from ottla.security.sasl.kerberos_rules import KerberosShortNamer, parse_rules
from ottla.security.sasl.mechanism_settings import MechanismSettings, SaslConfigError


def make_server(settings: MechanismSettings) -> GssapiServerFactory:
    """Make the server's side for a listener. SaslConfigError says what is missing."""
    try:
        load_gssapi()
    except KerberosMissing as error:
        raise SaslConfigError(f"sasl.enabled.mechanisms: {error}") from None
    try:
        given = settings.setting("sasl.kerberos.principal.to.local.rules") or "DEFAULT"
        rules = parse_rules(given.split(","))
    except ValueError as error:
        raise SaslConfigError(f"sasl.kerberos.principal.to.local.rules: {error}") from None
    options = dict(settings.jaas.options)
    try:
        credentials = server_credentials(options)
    except ValueError as error:
        raise SaslConfigError(f"{settings.source}: {error}") from None
    return GssapiServerFactory(credentials, KerberosShortNamer(rules, default_realm()))


def make_client(settings: MechanismSettings, pool: Pool) -> GssapiClientFactory:
    """Make the client's side. SaslConfigError says what is missing."""
    try:
        load_gssapi()
    except KerberosMissing as error:
        raise SaslConfigError(f"sasl.mechanism: {error}") from None
    service = settings.setting("sasl.kerberos.service.name")
    of_jaas = settings.jaas.options.get("serviceName")
    if service and of_jaas and service != of_jaas:
        raise SaslConfigError(
            "sasl.kerberos.service.name and the option serviceName of the login module are different"
        )
    options = dict(settings.jaas.options)
    for name, option in (("sasl.kerberos.keytab", "keyTab"), ("sasl.kerberos.principal", "principal")):
        if (value := settings.setting(name)) is not None:
            options.setdefault(option, value)
    try:
        return GssapiClientFactory(service or of_jaas or "kafka", client_credentials(options), pool)
    except ValueError as error:
        raise SaslConfigError(f"{settings.source}: {error}") from None
