"""Listeners: the text of `listeners` and `advertised.listeners`, and the security protocol each speaks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from ottla.node.config.errors import ConfigError

L = TypeVar("L")


class SecurityProtocol(IntEnum):
    """By their numbers in the broker's registration."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A named address; an empty host is every interface."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int

    @property
    def wildcard(self) -> bool:
        """Whether it stands for every interface and so is no address that a client could use."""
        return self.host in WILDCARD_HOSTS

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
    """The endpoints of `listeners` or `advertised.listeners`; ConfigError names the entry that is wrong."""
    endpoints: list[Endpoint] = []
    for entry in entries:
        match = _ENDPOINT.fullmatch(entry)
        if match is None:
            raise ConfigError(f"{setting}: {entry} cannot be used: expected NAME://host:port")
        name, port = match["name"].upper(), int(match["port"])
        if not 0 <= port <= 65535:
            raise ConfigError(f"{setting}: {entry} cannot be used: the port must be 0 to 65535")
        if name not in protocols:
            raise ConfigError(
                f"{setting}: {entry} cannot be used: no security protocol is defined "
                f"for {name}; add it to listener.security.protocol.map"
            )
        host = match["v6"] if match["v6"] is not None else match["host"]
        endpoints.append(Endpoint(name, protocols[name], host, port))
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise ConfigError(f"{setting} cannot be used: each listener needs a name of its own")
    return tuple(endpoints)


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """`listener.security.protocol.map`."""
    setting = "listener.security.protocol.map"
    protocols: dict[str, SecurityProtocol] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, separator, protocol = entry.rpartition(":")
        if not separator or protocol.strip().upper() not in SecurityProtocol.__members__:
            allowed = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(
                f"{setting}: {entry} cannot be used: expected NAME:PROTOCOL with one of {allowed}"
            )
        protocols[name.strip().upper()] = SecurityProtocol[protocol.strip().upper()]
    return protocols


def registered(endpoints: Iterable[Endpoint], kind: Callable[..., L]) -> list[L]:
    """The endpoints as a registration tells of them: a broker's and a controller's have a class each."""
    return [
        kind(name=each.name, host=each.host, port=each.port, security_protocol=each.protocol)
        for each in endpoints
    ]
