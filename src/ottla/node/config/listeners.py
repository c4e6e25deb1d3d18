"""Listeners: the text of `listeners` and `advertised.listeners`, and the security protocol of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.node.config.definitions.config_def import ConfigError
from ottla.protocol.security_protocol import SecurityProtocol

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A named address; an empty host is every interface."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int

    @property
    def wildcard(self) -> bool:
        """Whether it means every interface and so is no address that a client could use."""
        return self.host in WILDCARD_HOSTS

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


WILDCARD_HOSTS: Final = frozenset(("", "0.0.0.0", "::", "0:0:0:0:0:0:0:0"))
_ENDPOINT: Final = re.compile(
    r"(?P<name>[^:/\s]+)://(\[(?P<v6>[0-9a-fA-F:.%\w]*)\]|(?P<host>[^\s:/\[\]]*)):(?P<port>-?[0-9]+)"
)


def parse_endpoints(
    setting: str, entries: Iterable[str], protocols: Mapping[str, SecurityProtocol]
) -> tuple[Endpoint, ...]:
    """Parse `listeners` or `advertised.listeners`; ConfigError names the entry that is wrong."""
    endpoints: list[Endpoint] = []
    for entry in entries:
        match = _ENDPOINT.fullmatch(entry)
        if match is None:
            raise ConfigError(
                f"Unable to parse {entry} to a broker endpoint: {setting} expects NAME://host:port"
            )
        name, port = match["name"].upper(), int(match["port"])
        if not 0 <= port <= 65535:
            raise ConfigError(
                f"Unable to parse {entry} to a broker endpoint: the port in {setting} must be 0 to 65535"
            )
        if name not in protocols:
            raise ConfigError(
                f"No security protocol defined for listener {name} of {setting}; add it to "
                "listener.security.protocol.map"
            )
        host = match["v6"] if match["v6"] is not None else match["host"]
        endpoints.append(Endpoint(name, protocols[name], host, port))
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise ConfigError(
            f"Each listener must have a different name, {setting}: {','.join(map(str, endpoints))}"
        )
    return tuple(endpoints)


HTTP_LISTENER_NAME: Final = "HTTP"
"""The name by which TLS settings are given to the HTTP listener: `listener.name.http.ssl.*`."""


def parse_http_listener(text: str, setting: str = "http.listener") -> Endpoint | None:
    """Parse a listener for HTTP: `http://host:port` or `https://host:port`; None if it is empty."""
    if not text:
        return None
    match = _ENDPOINT.fullmatch(text.removesuffix("/"))
    scheme = "" if match is None else match["name"].lower()
    if match is None or scheme not in ("http", "https") or not 0 <= int(match["port"]) <= 65535:
        raise ConfigError(
            f"Invalid value {text} for configuration {setting}: expected http://host:port or "
            "https://host:port, or nothing"
        )
    protocol = SecurityProtocol.SSL if scheme == "https" else SecurityProtocol.PLAINTEXT
    host = match["v6"] if match["v6"] is not None else match["host"]
    return Endpoint(HTTP_LISTENER_NAME, protocol, host, int(match["port"]))


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """Parse `listener.security.protocol.map`: the protocols by the names of listeners."""
    setting = "listener.security.protocol.map"
    protocols: dict[str, SecurityProtocol] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, separator, protocol = entry.rpartition(":")
        if not separator or protocol.strip().upper() not in SecurityProtocol.__members__:
            allowed = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(
                f"Invalid value {entry} for configuration {setting}: expected NAME:PROTOCOL, with "
                f"one of {allowed}"
            )
        protocols[name.strip().upper()] = SecurityProtocol[protocol.strip().upper()]
    return protocols


def registration_listeners(endpoints: Iterable[Endpoint], kind: Callable[..., L]) -> list[L]:
    """Convert endpoints for a registration: those of brokers and of controllers have a class each."""
    return [
        kind(name=each.name, host=each.host, port=each.port, security_protocol=each.protocol)
        for each in endpoints
    ]
