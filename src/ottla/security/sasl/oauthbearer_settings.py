"""The settings of OAUTHBEARER, `sasl.oauthbearer.*` and options of its login module, as its two sides.

A listener takes signed tokens if `sasl.oauthbearer.jwks.endpoint.url` names their keys. It takes unsecured
ones only if its login module has an option `unsecured…`, or it names Kafka's class for them; with neither it
is refused, where Kafka would take unsecured ones. Clients may use Java's names or librdkafka's.
"""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from ottla.runtime.http import HttpRequest
from ottla.runtime.process import environment
from ottla.runtime.runtime import Runtime
from ottla.security.oauth.assertion import GRANT, AssertionSettings, make_assertion
from ottla.security.oauth.claims import (
    ClaimRules,
    SignedTokenValidator,
    TokenValidator,
    UnsecuredTokenValidator,
)
from ottla.security.oauth.jwks import JwksError
from ottla.security.oauth.key_source import FileKeySource, UrlKeySource
from ottla.security.oauth.token_source import (
    CallbackTokens,
    ClientToken,
    FileTokens,
    RefreshingTokens,
    RefreshSettings,
    RetrySettings,
    TokenServer,
    UnsecuredTokens,
)
from ottla.security.sasl.mechanism_settings import MechanismSettings, SaslConfigError
from ottla.security.sasl.oauthbearer import OAuthBearerClientFactory, OAuthBearerServerFactory
from ottla.security.sasl.oauthbearer_classes import (
    OAUTH_PACKAGE,
    OLD_SIGNED_VALIDATOR,
    SIGNED_VALIDATOR,
    UNSECURED_VALIDATOR,
)
from ottla.security.secret import Secret

_log = logging.getLogger(__name__)

# Where set, the only URLs and files that OAUTHBEARER's settings may name: Kafka's system properties
# org.apache.kafka.sasl.oauthbearer.allowed.urls and .files.
ALLOWED_URLS: Final = "OTTLA_SASL_OAUTHBEARER_ALLOWED_URLS"
ALLOWED_FILES: Final = "OTTLA_SASL_OAUTHBEARER_ALLOWED_FILES"

StartTask: TypeAlias = Callable[[str, Callable[[], Awaitable[None]]], object]

_RETRIEVERS: Final = ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")
_BEARER_RETRIEVER: Final = "JwtBearerJwtRetriever"
_VALIDATORS: Final = ("DefaultJwtValidator", "BrokerJwtValidator", "ClientJwtValidator")


def make_server(
    settings: MechanismSettings, runtime: Runtime, start_task: StartTask
) -> OAuthBearerServerFactory:
    """Make the server's side for a listener. SaslConfigError names a setting that cannot be used.
    `start_task` runs what keeps the keys up to date.
    """
    handler = settings.setting("sasl.server.callback.handler.class")
    asks_for_unsecured = any(name.startswith("unsecured") for name in settings.jaas.options)
    validator: TokenValidator | None = signed_validator(settings, runtime, start_task)
    if validator is not None:
        if handler == UNSECURED_VALIDATOR:
            raise SaslConfigError(
                f"sasl.server.callback.handler.class: {handler} takes unsecured tokens, and "
                f"sasl.oauthbearer.jwks.endpoint.url names keys for signed ones; remove one of the two"
            )
    elif handler in (SIGNED_VALIDATOR, OLD_SIGNED_VALIDATOR):
        raise SaslConfigError("The OAuth configuration option sasl.oauthbearer.jwks.endpoint.url is required")
    elif asks_for_unsecured or handler == UNSECURED_VALIDATOR:
        try:
            validator = UnsecuredTokenValidator(settings.jaas.options)
        except ValueError as error:
            raise SaslConfigError(f"{settings.source}: {error}") from None
        _log.warning(
            "%s: OAUTHBEARER takes unsecured tokens: every client may say that it is anyone. Set "
            "sasl.oauthbearer.jwks.endpoint.url unless this is for development",
            settings.source,
        )
    else:
        raise SaslConfigError(
            "sasl.oauthbearer.jwks.endpoint.url is missing: it names the keys that tokens are verified with. "
            f"(Unsecured tokens, for development, are taken if the login module of {settings.source} has an "
            'option unsecuredValidatorPrincipalClaimName="sub".)'
        )
    return OAuthBearerServerFactory(validator, runtime.clock)


def signed_validator(
    settings: MechanismSettings, runtime: Runtime, start_task: StartTask
) -> SignedTokenValidator | None:
    """Make what checks signed tokens; None if no setting names their keys."""
    _check_class(settings, "sasl.oauthbearer.jwt.validator.class", _VALIDATORS)
    setting = "sasl.oauthbearer.jwks.endpoint.url"
    url = settings.setting("sasl.oauthbearer.jwks.endpoint.url")
    if not url:
        return None
    audiences = (settings.setting("sasl.oauthbearer.expected.audience") or "").split(",")
    rules = ClaimRules(
        issuer=settings.setting("sasl.oauthbearer.expected.issuer") or None,
        audiences=frozenset(each.strip() for each in audiences if each.strip()),
        clock_skew_seconds=_number(settings, "sasl.oauthbearer.clock.skew.seconds", 30),
        subject_claim=_claim_name(settings, "sasl.oauthbearer.sub.claim.name", "sub"),
        scope_claim=_claim_name(settings, "sasl.oauthbearer.scope.claim.name", "scope"),
    )
    path = _file_path(url, setting)
    if path is not None:
        try:
            return SignedTokenValidator(FileKeySource(runtime.disk, path), rules)
        except JwksError as error:
            raise SaslConfigError(f"{setting}: {error}") from None
    if urlsplit(url).scheme == "http":
        _log.warning("%s: keys come by plain http, so others on the network can exchange them", setting)
    source = UrlKeySource(
        url,
        runtime.pool,
        runtime.clock,
        refresh_ms=_number(settings, "sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000),
        backoff_ms=_number(settings, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100),
        max_backoff_ms=_number(settings, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000),
        tls=_tls(settings, runtime),
    )
    start_task(f"keys of tokens {settings.source}", source.run)
    return SignedTokenValidator(source, rules)


def make_client(
    settings: MechanismSettings, runtime: Runtime, oauth_cb: Callable[[str], Any] | None
) -> OAuthBearerClientFactory:
    """Make the client's side. SaslConfigError names a setting that is missing or wrong."""
    _check_class(settings, "sasl.oauthbearer.jwt.retriever.class", (*_RETRIEVERS, _BEARER_RETRIEVER))
    fetch = _token_fetch(settings, runtime, oauth_cb)
    refresh = RefreshSettings(
        _fraction(settings, "sasl.login.refresh.window.factor", 0.8),
        _fraction(settings, "sasl.login.refresh.window.jitter", 0.05),
        _number(settings, "sasl.login.refresh.min.period.seconds", 60),
        _number(settings, "sasl.login.refresh.buffer.seconds", 300),
    )
    tokens = RefreshingTokens(fetch, runtime.clock, runtime.random, refresh)
    try:
        return OAuthBearerClientFactory(tokens, _extensions(settings))
    except ValueError as error:
        raise SaslConfigError(f"{settings.source}: {error}") from None


def check_client(settings: MechanismSettings, has_callback: bool) -> None:
    """Raise SaslConfigError if no token can be had by these settings."""
    if (
        has_callback
        or settings.setting("sasl.oauthbearer.token.endpoint.url")
        or _unsecured_options(settings)
    ):
        return
    raise SaslConfigError(
        "OAUTHBEARER has no token: set sasl.oauthbearer.token.endpoint.url (to a file: or a token "
        "server's address, with sasl.oauthbearer.client.credentials.client.id and .client.secret), or give "
        "oauth_cb"
    )


def _token_fetch(
    settings: MechanismSettings, runtime: Runtime, oauth_cb: Callable[[str], Any] | None
) -> Callable[[], Awaitable[ClientToken]]:
    check_client(settings, oauth_cb is not None)
    if oauth_cb is not None:
        config = settings.setting("sasl.oauthbearer.config") or ""
        return CallbackTokens(runtime.pool, oauth_cb, config).token
    setting = "sasl.oauthbearer.token.endpoint.url"
    url = settings.setting(setting)
    if not url:
        try:
            return UnsecuredTokens(runtime.clock, _unsecured_options(settings)).token
        except ValueError as error:
            raise SaslConfigError(f"{settings.source}: {error}") from None
    path = _file_path(url, setting)
    if path is not None:
        return FileTokens(runtime.disk, runtime.pool, path).token
    retry = RetrySettings(
        _number(settings, "sasl.login.retry.backoff.ms", 100),
        _number(settings, "sasl.login.retry.backoff.max.ms", 10_000),
    )
    return TokenServer(runtime.pool, runtime.clock, _token_request(settings, url, runtime), retry).token


def _token_request(settings: MechanismSettings, url: str, runtime: Runtime) -> Callable[[], HttpRequest]:
    """What makes the request to a token server."""
    tls = _tls(settings, runtime)
    connect_seconds = _number(settings, "sasl.login.connect.timeout.ms", 10_000) / 1000
    read_seconds = _number(settings, "sasl.login.read.timeout.ms", 10_000) / 1000
    scope = _of(settings, "sasl.oauthbearer.scope", "scope")
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}

    def request(form: dict[str, str], more_headers: dict[str, str]) -> HttpRequest:
        if scope:
            form["scope"] = scope
        return HttpRequest(
            url,
            "POST",
            {**headers, **more_headers},
            urlencode(form).encode(),
            connect_timeout_seconds=connect_seconds,
            read_timeout_seconds=read_seconds,
            tls=tls,
        )

    retriever = settings.setting("sasl.oauthbearer.jwt.retriever.class") or ""
    if settings.setting("sasl.oauthbearer.grant.type") == GRANT or retriever.endswith(
        f".{_BEARER_RETRIEVER}"
    ):
        assertion = _assertion_settings(settings)

        def with_assertion() -> HttpRequest:
            text = make_assertion(assertion, runtime.disk, runtime.clock, runtime.random)
            return request({"grant_type": GRANT, "assertion": text}, {})

        return with_assertion
    client_id = _of(
        settings, "sasl.oauthbearer.client.credentials.client.id", "clientId", "sasl.oauthbearer.client.id"
    )
    secret = _of(
        settings,
        "sasl.oauthbearer.client.credentials.client.secret",
        "clientSecret",
        "sasl.oauthbearer.client.secret",
    )
    if not client_id or not secret:
        missing = "secret" if client_id else "id"
        raise SaslConfigError(f"sasl.oauthbearer.client.credentials.client.{missing} is missing")
    if (settings.setting("sasl.oauthbearer.header.urlencode") or "").lower() == "true":
        client_id, secret = quote_plus(client_id), quote_plus(secret)
    basic = Secret(base64.b64encode(f"{client_id}:{secret}".encode()).decode())
    return lambda: request({"grant_type": "client_credentials"}, {"Authorization": f"Basic {basic.reveal()}"})


def _assertion_settings(settings: MechanismSettings) -> AssertionSettings:
    def secret(name: str) -> Secret | None:
        value = settings.setting(name)
        return None if value is None else Secret(value)

    def allowed(*names: str) -> str | None:
        for name in names:
            if path := settings.setting(name):
                _check_allowed(path, ALLOWED_FILES, name)
                return path
        return None

    claims = {
        "aud": settings.setting("sasl.oauthbearer.assertion.claim.aud"),
        "iss": settings.setting("sasl.oauthbearer.assertion.claim.iss"),
        "sub": settings.setting("sasl.oauthbearer.assertion.claim.sub"),
    }
    return AssertionSettings(
        file=allowed("sasl.oauthbearer.assertion.file"),
        algorithm=settings.setting("sasl.oauthbearer.assertion.algorithm") or "RS256",
        key_file=allowed("sasl.oauthbearer.assertion.private.key.file"),
        key_pem=secret("sasl.oauthbearer.assertion.private.key.pem"),
        passphrase=secret("sasl.oauthbearer.assertion.private.key.passphrase"),
        template_file=allowed(
            "sasl.oauthbearer.assertion.template.file", "sasl.oauthbearer.assertion.jwt.template.file"
        ),
        claims={name: value for name, value in claims.items() if value},
        expires_after_seconds=_number(settings, "sasl.oauthbearer.assertion.claim.exp.seconds", 300),
        not_before_seconds=_number(settings, "sasl.oauthbearer.assertion.claim.nbf.seconds", 60),
        has_id=(settings.setting("sasl.oauthbearer.assertion.claim.jti.include") or "").lower() == "true",
    )


def _extensions(settings: MechanismSettings) -> dict[str, str]:
    """SASL extensions: options `extension_…` and `unsecuredLoginExtension_…`, and librdkafka's setting."""
    extensions = {}
    options = {**settings.jaas.options, **_unsecured_options(settings)}
    for prefix in ("extension_", f"{UnsecuredTokens.PREFIX}Extension_"):
        for name, value in options.items():
            if name.startswith(prefix):
                extensions[name.removeprefix(prefix)] = value
    for pair in (settings.setting("sasl.oauthbearer.extensions") or "").split(","):
        if pair.strip():
            name, _, value = pair.strip().partition("=")
            extensions[name] = value
    return extensions


def _unsecured_options(settings: MechanismSettings) -> dict[str, str]:
    prefix = UnsecuredTokens.PREFIX
    options = {name: value for name, value in settings.jaas.options.items() if name.startswith(prefix)}
    if (settings.setting("enable.sasl.oauthbearer.unsecure.jwt") or "").lower() == "true":
        for pair in (settings.setting("sasl.oauthbearer.config") or "").split():
            name, _, value = pair.partition("=")
            if name == "principal":
                options[f"{prefix}StringClaim_sub"] = value
            elif name == "scope":
                options[f"{prefix}ListClaim_scope"] = f",{value}"
            elif name == "lifeSeconds":
                options[f"{prefix}LifetimeSeconds"] = value
            elif name.startswith("extension_"):
                options[f"{prefix}E{name[1:]}"] = value
    return options


def _of(settings: MechanismSettings, name: str, option: str, other_name: str | None = None) -> str | None:
    """A setting, librdkafka's name of it, or an option of the login module."""
    value = settings.setting(name)
    if value is None and other_name is not None:
        value = settings.setting(other_name)
    return settings.jaas.options.get(option) if value is None else value


def _check_class(settings: MechanismSettings, name: str, known: tuple[str, ...]) -> None:
    value = settings.setting(name)
    if value and value not in {OAUTH_PACKAGE + each for each in known}:
        raise SaslConfigError(f"{name}: the class {value} is not supported: Ottla loads no Java")


def _claim_name(settings: MechanismSettings, name: str, default: str) -> str:
    value = settings.setting(name)
    if value is not None and not value.strip():
        raise SaslConfigError(f"The OAuth configuration option {name} value is required")
    return default if value is None else value.strip()


def _number(settings: MechanismSettings, name: str, default: int) -> int:
    value = settings.setting(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdecimal()):
        raise SaslConfigError(f"{name} is no whole number, or is negative")
    return int(value)


def _fraction(settings: MechanismSettings, name: str, default: float) -> float:
    value = settings.setting(name)
    try:
        return default if value is None else float(value)
    except ValueError:
        raise SaslConfigError(f"{name} is no number") from None


def _file_path(url: str, setting: str) -> str | None:
    """The file of a `file:` URL; None for http and https. SaslConfigError if it is none of them, or not
    allowed.
    """
    where = urlsplit(url)
    if where.scheme in ("http", "https") and where.hostname:
        _check_allowed(url, ALLOWED_URLS, setting)
        return None
    if where.scheme == "file" and where.path.startswith("/") and where.netloc in ("", "localhost"):
        _check_allowed(url, ALLOWED_URLS, setting)
        return unquote(where.path)
    raise SaslConfigError(
        f"The OAuth configuration option {setting} is no URL of a supported protocol: http, https, file"
    )


def _check_allowed(resource: str, variable: str, setting: str) -> None:
    allowed = environment().get(variable)
    if allowed is not None and resource not in {each.strip() for each in allowed.split(",")}:
        raise SaslConfigError(
            f"{setting}: the resource cannot be accessed due to restrictions; it is not in the list of the "
            f"environment variable {variable}"
        )


def _tls(settings: MechanismSettings, runtime: Runtime) -> ssl.SSLContext | None:
    """What https servers are verified with: `ssl.*` options of the login module, or librdkafka's
    `https.ca.*`; None if none is given.
    """
    values = {name: value for name, value in settings.jaas.options.items() if name.startswith("ssl.")}
    for theirs, ours in (("https.ca.location", "ssl.ca.location"), ("https.ca.pem", "ssl.ca.pem")):
        if value := settings.setting(theirs):
            values[ours] = value
    if not values:
        return None
    from ottla.security.tls.context import TlsMaterial, client_context
    from ottla.security.tls.settings import client_tls_settings

    try:
        tls = client_tls_settings(values)
        return client_context(tls, TlsMaterial.load(runtime.disk, tls))
    except ValueError as error:
        raise SaslConfigError(f"{settings.source}: {error}") from None
