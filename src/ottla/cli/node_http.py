"""Ask a node over HTTP, for commands: with the TLS settings and the login of `--command-config`."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias
from urllib.parse import urlsplit

from ottla.cli.command_config import client_settings
from ottla.cli.commands import Option
from ottla.cli.errors import WrongUsage

if TYPE_CHECKING:
    import ssl

    from ottla.runtime.http import HttpResponse

DEFAULT_URL: Final = "http://127.0.0.1:9644"
_CONNECT_SECONDS: Final = 3.0
_READ_SECONDS: Final = 10.0
_MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024

Http: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "--http",
        metavar="URL",
        help=f"The HTTP listener of a node, such as {DEFAULT_URL}; may be repeated.",
    ),
]


def checked_url(text: str) -> str:
    """The address of a node's HTTP listener, without the slash at its end."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right or parts.path not in ("", "/") or parts.query:
        raise WrongUsage(f"--http {text}: expected http://HOST:PORT or https://HOST:PORT")
    return url.rstrip("/")


async def ask(url: str) -> HttpResponse:
    """Get a page of a node. HttpError if there is no answer."""
    from ottla.runtime.http import HttpRequest, http_fetch

    # Scheme names may be in capitals.
    is_https = urlsplit(url).scheme == "https"
    request = HttpRequest(
        url,
        # Without TLS anyone on the way, or who has the port, would read a password; no node takes one then.
        headers=login_headers() if is_https else {},
        connect_timeout_seconds=_CONNECT_SECONDS,
        read_timeout_seconds=_READ_SECONDS,
        max_body_bytes=_MAX_ANSWER_BYTES,
        tls=tls_context() if is_https else None,
    )
    return await asyncio.to_thread(http_fetch, request)


def tls_context() -> ssl.SSLContext | None:
    """What an https node is verified with; None is what the system trusts."""
    given = {name: value for name, value in client_settings().items() if name.startswith("ssl.")}
    return _tls_of(tuple(given.items())) if given else None


@lru_cache(maxsize=1)
def _tls_of(given: tuple[tuple[str, str], ...]) -> ssl.SSLContext:
    from ottla.runtime.disk import RealDisk
    from ottla.security.tls.context import TlsMaterial, client_context
    from ottla.security.tls.settings import client_tls_settings

    try:
        settings = client_tls_settings(dict(given))
        return client_context(settings, TlsMaterial.load(RealDisk(), settings))
    except ValueError as error:
        raise WrongUsage(f"--command-config: {error}") from None


def login_headers() -> dict[str, str]:
    """The header with the name and the password of the file. A delegation token is none that HTTP takes."""
    given = client_settings()
    options: dict[str, str | None] = {
        "username": given.get("sasl.username"),
        "password": given.get("sasl.password"),
    }
    if (jaas := given.get("sasl.jaas.config")) is not None:
        from ottla.security.jaas import JaasError, parse_jaas

        try:
            options = dict(parse_jaas(jaas).options)
        except JaasError as error:
            raise WrongUsage(f"--command-config: sasl.jaas.config: {error}") from None
    name, password = options.get("username"), options.get("password")
    is_token = (options.get("tokenauth") or "").lower() == "true"
    if not name or password is None or is_token:
        return {}
    return {"Authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}
