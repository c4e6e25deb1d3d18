"""Settings of clients by Kafka's dotted names or by keyword, as text or as values, checked against a
dataclass.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ottla.runtime.address import Address
from ottla.security.clients.settings import PLAINTEXT_SETTINGS, SecuritySettings, is_security_setting

DEFAULT_PORT = 9092


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings that all kinds of clients have, with Kafka's names, meanings and defaults; only the sizes
    of socket buffers are left to the system (-1) if they are not given.
    """

    bootstrap_servers: str | Iterable[str] = "localhost:9092"
    client_id: str | None = "ottla"
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    connections_max_idle_ms: int = 540_000
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    metadata_max_age_ms: int = 300_000
    metadata_cluster_check_enable: bool = True
    enable_metrics_push: bool = True
    security: SecuritySettings = PLAINTEXT_SETTINGS


@dataclass(frozen=True, slots=True)
class ConnectionConfig(ClientConfig):
    """What a client's connections need of its settings."""

    allow_auto_create_topics: bool = True


def parse_addresses(servers: str | Iterable[str]) -> list[Address]:
    """Parse `host:port` pairs from a list or from one text with commas. ValueError names the one that is
    wrong.

    >>> parse_addresses("localhost, [::1]:9093")
    [Address(host='localhost', port=9092), Address(host='::1', port=9093)]
    """
    texts = servers.split(",") if isinstance(servers, str) else servers
    addresses = []
    for text in (text.strip() for text in texts):
        if not text:
            continue
        host, colon, port = text.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = text, str(DEFAULT_PORT)
        bracketed = host.startswith("[") and host.endswith("]")
        if ":" in host and not bracketed:
            raise ValueError(f"bootstrap.servers: {text!r} is not host:port; write IPv6 as [::1]:9092")
        host = host[1:-1] if bracketed else host
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"bootstrap.servers: {text!r} is not host:port")
        addresses.append(Address(host, int(port)))
    if not addresses:
        raise ValueError("bootstrap.servers is empty; give at least one host:port")
    return addresses


T = TypeVar("T")

Servers = str | Iterable[str] | Mapping[str, Any] | None
"""The bootstrap servers, or all settings as a mapping with Kafka's names."""


def dotted(name: str) -> str:
    """Return the name of a setting as Kafka writes it."""
    return name.replace("_", ".")


SHARED_SETTINGS = frozenset(dotted(field.name) for field in fields(ClientConfig)) - {
    *("bootstrap.servers", "client.id", "request.timeout.ms", "security")
}
"""Settings of connections that all kinds of clients have, apart from those of security."""


def settings_of(kind: type[T], servers: Servers, keywords: Mapping[str, Any]) -> T:
    """Make `kind` from a mapping (or the bootstrap servers) and from keywords, which take precedence.

    ValueError names a setting that does not exist, or whose text is not of its type.
    """
    given: dict[str, Any] = {}
    if isinstance(servers, Mapping):
        given.update(servers)
    elif servers is not None:
        given["bootstrap_servers"] = servers
    given.update(keywords)
    types_of = get_type_hints(kind)
    known = {field.name for field in fields(kind) if field.init} - {"security"}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    security: dict[str, Any] = {}
    for name, value in given.items():
        plain = name.replace(".", "_")
        if is_about_security(plain):
            security[dotted(plain)] = value
            continue
        if plain not in known:
            near = get_close_matches(plain, sorted(known), n=1)
            hint = f"; did you mean {dotted(near[0])}?" if near else ""
            raise ValueError(f"there is no setting {name!r} for {_subject(kind)}{hint}")
        values[plain] = _value(name, value, types_of[plain])
    if security:
        values["security"] = SecuritySettings.of(security)
    return kind(**values)


def is_about_security(name: str) -> bool:
    """Whether a setting, by either spelling of its name, is about TLS or SASL."""
    return is_security_setting(name.replace("_", "."))


def connection_config(config: Any) -> ConnectionConfig:
    """Return the part of a client's settings that is about connections."""
    known = {field.name for field in fields(config)}
    shared = [field.name for field in fields(ConnectionConfig) if field.name in known]
    return ConnectionConfig(**{name: getattr(config, name) for name in shared})


def _subject(kind: type[Any]) -> str:
    name = kind.__name__.removesuffix("Config").lower()
    return f"an {name} client" if name == "admin" else f"a {name}"


def _value(name: str, value: Any, kind: Any) -> Any:
    if not isinstance(value, str):
        return value
    options = set(get_args(kind)) if get_origin(kind) in (Union, types.UnionType) else {kind}
    text = value.strip()
    if str in options:
        return value
    try:
        if bool in options:
            return {"true": True, "false": False}[text.lower()]
        if int in options:
            return int(text)
        if float in options:
            return float(text)
    except (KeyError, ValueError):
        wanted = "true or false" if bool in options else "a number"
        raise ValueError(f"{name}={value!r} is not {wanted}") from None
    return value
