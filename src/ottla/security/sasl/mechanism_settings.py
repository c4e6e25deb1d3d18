"""The settings of one mechanism, of a listener or a client, as the mechanism reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ottla.security.jaas import JaasEntry


class SaslConfigError(ValueError):
    """Settings of SASL cannot be used; the message names the setting, and no secret."""


@dataclass(frozen=True, slots=True)
class MechanismSettings:
    """The settings of one mechanism of a listener, or of a client."""

    mechanism: str
    jaas: JaasEntry
    # The name of the setting that has the login module, for messages.
    source: str
    # Reads another setting, with the prefixes of listener and mechanism applied; None if it is not set.
    setting: Callable[[str], str | None]

    def option(self, name: str) -> str:
        """An option of the login module. SaslConfigError if it is missing."""
        value = self.jaas.options.get(name)
        if value is None:
            raise SaslConfigError(f"{self.source}: the login module of {self.mechanism} has no {name!r}")
        return value
