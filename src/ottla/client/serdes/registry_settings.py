"""The client of a registry, by the settings that Confluent's clients have: its address, logins and TLS.

A token of an identity provider is used until most of its life is over, and while there is no other one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

from ottla.runtime.clock import SystemClock
from ottla.runtime.disk import RealDisk
from ottla.runtime.http import HttpError, HttpRequest, TlsContext, http_fetch
from ottla.schemas.registry_client import RegistryClient
from ottla.security.oauth.token_source import ClientToken, TokenUnavailable, parsed_token, read_token

RegistrySettings: TypeAlias = str | Mapping[str, Any] | RegistryClient
Headers: TypeAlias = Callable[[], Mapping[str, str]]

_PREFIX: Final = "schema.registry."
_SOURCE: Final = "bearer.auth.credentials.source"
_TOKEN: Final = "bearer.auth.token"
_FUNCTION: Final = "bearer.auth.custom.provider.function"
_OAUTH: Final = tuple(f"bearer.auth.{name}" for name in ("issuer.endpoint.url", "client.id", "client.secret"))
_CLUSTER: Final = "bearer.auth.logical.cluster"
_POOL: Final = "bearer.auth.identity.pool.id"
_KNOWN: Final = frozenset(
    (
        *("url", "timeout", "basic.auth.credentials.source", "basic.auth.user.info"),
        *("sasl.username", "sasl.password", _SOURCE, _TOKEN, *_OAUTH, "bearer.auth.scope", _CLUSTER, _POOL),
        *(_FUNCTION, "bearer.auth.custom.provider.config"),
    )
)
# Of a token's life, what passes before another one is asked for.
_USED: Final = 0.8


def registry_client(given: RegistrySettings) -> RegistryClient:
    """The client of an address, of settings by Confluent's names, or the one that is given. ValueError says
    what is wrong.
    """
    if isinstance(given, RegistryClient):
        return given
    if isinstance(given, str):
        return RegistryClient.of(given)
    settings = {name.removeprefix(_PREFIX): value for name, value in given.items()}
    unknown = [name for name in settings if name not in _KNOWN and not name.startswith("ssl.")]
    if unknown:
        raise ValueError(f"a schema registry has no setting {', '.join(sorted(unknown))}")
    url = settings.get("url")
    if not isinstance(url, str):
        raise ValueError("the settings of a schema registry have its address as url")
    more = {} if settings.get("timeout") is None else {"timeout_seconds": float(settings["timeout"])}
    tls = _tls(settings)
    return RegistryClient.of(url, headers=login_headers(settings, tls), tls=tls, **more)


def login_headers(settings: Mapping[str, Any], tls: TlsContext | None = None) -> Headers | None:
    """What makes the headers of a login, if the settings have one."""
    if settings.get(_SOURCE) is not None:
        return _bearer(settings, tls)
    source = str(settings.get("basic.auth.credentials.source") or "USER_INFO")
    login = settings.get("basic.auth.user.info")
    if source == "SASL_INHERIT":
        login = f"{_required(settings, 'sasl.username')}:{_required(settings, 'sasl.password')}"
    elif source not in ("USER_INFO", "URL"):
        raise ValueError(f"basic.auth.credentials.source={source}: there are USER_INFO, URL and SASL_INHERIT")
    if login is None or source == "URL":
        return None
    if ":" not in str(login):
        raise ValueError("basic.auth.user.info is a name and a password, with a colon between them")
    header = {"Authorization": "Basic " + base64.b64encode(str(login).encode()).decode()}
    return lambda: header


def _required(settings: Mapping[str, Any], name: str) -> str:
    value = settings.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is missing")
    return value


def _tls(settings: Mapping[str, Any]) -> TlsContext | None:
    given = {name: str(value) for name, value in settings.items() if name.startswith("ssl.")}
    if not given:
        return None
    from ottla.security.tls.context import TlsMaterial, client_context
    from ottla.security.tls.settings import client_tls_settings

    found = client_tls_settings(given)
    return client_context(found, TlsMaterial.load(RealDisk(), found))


# The Bearer scheme


def _bearer(settings: Mapping[str, Any], tls: TlsContext | None) -> Headers:
    source = str(settings[_SOURCE])
    others = {
        header: str(settings[name]) for name, header in _OF_CONFLUENT_CLOUD if settings.get(name) is not None
    }
    if source == "STATIC_TOKEN":
        static = parsed_token(_required(settings, _TOKEN)).value
        return lambda: _authorization(static.reveal()) | others
    if source == "OAUTHBEARER":
        tokens = _ProviderTokens(_provider_request(settings, tls))
        return lambda: _authorization(tokens.token()) | others
    if source == "CUSTOM":
        function = settings.get(_FUNCTION)
        if not callable(function):
            raise ValueError(f"{_FUNCTION} is no function")
        return lambda: _of_function(function(settings.get("bearer.auth.custom.provider.config")))
    raise ValueError(f"{_SOURCE}={source}: there are STATIC_TOKEN, OAUTHBEARER and CUSTOM")


_OF_CONFLUENT_CLOUD: Final = ((_CLUSTER, "target-sr-cluster"), (_POOL, "Confluent-Identity-Pool-Id"))


def _authorization(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _of_function(fields: Mapping[str, Any]) -> dict[str, str]:
    others = {header: str(fields[name]) for name, header in _OF_CONFLUENT_CLOUD if fields.get(name)}
    return _authorization(_required(fields, _TOKEN)) | others


def _provider_request(settings: Mapping[str, Any], tls: TlsContext | None) -> HttpRequest:
    """The request for a token, by OAuth's client credentials."""
    url, client_id, secret = (_required(settings, name) for name in _OAUTH)
    form = {"grant_type": "client_credentials"}
    if settings.get("bearer.auth.scope"):
        form["scope"] = str(settings["bearer.auth.scope"])
    return HttpRequest(
        url,
        "POST",
        {
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
            "Authorization": "Basic " + base64.b64encode(f"{client_id}:{secret}".encode()).decode(),
        },
        urlencode(form).encode(),
        tls=tls if url.lower().startswith("https:") else None,
    )


class _ProviderTokens:
    """Tokens of an identity provider. Of two threads that need one, both may ask for it."""

    def __init__(self, request: HttpRequest) -> None:
        self._request: Final = request
        self._clock: Final = SystemClock()
        # The token, and when another one is asked for.
        self._known: tuple[ClientToken, int] | None = None

    def token(self) -> str:
        """HttpError if there is none."""
        now_ms = self._clock.wall_ms()
        known = self._known
        if known is not None and now_ms < known[1]:
            return known[0].value.reveal()
        try:
            found = read_token(http_fetch(self._request), now_ms)
        except (TokenUnavailable, HttpError) as error:
            if known is not None and (known[0].expires_at_ms or 0) > now_ms:
                return known[0].value.reveal()
            raise HttpError(f"{self._request.shown_url} gives no token: {error}") from None
        expires_ms = now_ms if found.expires_at_ms is None else found.expires_at_ms
        self._known = found, now_ms + int((expires_ms - now_ms) * _USED)
        return found.value.reveal()
