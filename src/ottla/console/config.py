"""The settings of a console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ottla.console.messages.topic_schemas import TopicSchemas


class LoginMode(StrEnum):
    """Who may use the console: all who reach it, or who have the address that it has shown, acting as its own
    principal; or the cluster's users, each acting as themselves.
    """

    NONE = "none"
    ADDRESS = "address"
    SASL = "sasl"


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """`client_settings` are those of Kafka's clients, by their names, with `bootstrap.servers`. With a login
    they are without credentials, and `mechanisms` are tried in their order.
    """

    client_settings: Mapping[str, str] = field(repr=False)
    login: LoginMode = LoginMode.NONE
    mechanisms: tuple[str, ...] = ()
    principal: str | None = None
    """As what a console that takes no credentials acts, if that is known."""
    loopback_only: bool = True
    """Whether browsers have to name this machine as loopback does: others were led here by a foreign page."""
    own_host: str = ""
    """The host of the listener, by which browsers may name it too."""
    read_only: bool = False
    payloads: bool = True
    schemas: TopicSchemas = field(default_factory=TopicSchemas)
    registry_url: str | None = field(default=None, repr=False)
    pipelines: tuple[Path, ...] = ()
    own_registry_url: str | None = field(default=None, repr=False)
    """The schema registry of the node that the console is in, if those who reach the console may reach it."""

    @property
    def managed_registry_url(self) -> str | None:
        """The registry whose schemas are shown and changed; None if there is none, or users log in: it is
        asked with the rights of the operator, which are not theirs.
        """
        if self.login is LoginMode.SASL:
            return None
        return self.registry_url or self.schemas.registry_url or self.own_registry_url

    @property
    def bootstrap_servers(self) -> str:
        return self.client_settings.get("bootstrap.servers", "")
