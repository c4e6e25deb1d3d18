"""The security settings of a client: `security.protocol`, `ssl.*` and `sasl.*`, as Kafka's Java client and
librdkafka name them.

They are plain data, so that Spark can send them to its executors; passwords are not part of their `repr`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from ottla.protocol.security_protocol import SecurityProtocol
from ottla.security.sasl.client_settings import (
    CLIENT_NAMES,
    CREDENTIALS,
    check_client_sasl,
    is_client_setting,
)
from ottla.security.tls.settings import JAVA_NAMES, LIBRDKAFKA_NAMES, client_tls_settings

_PREFIXES: Final = ("security.", "ssl.", "sasl.", "https.ca.", "enable.sasl.")
_OAUTH_CB: Final = "oauth.cb"
_OTHERS: Final = frozenset(("enable.ssl.certificate.verification", _OAUTH_CB))
_KNOWN: Final = frozenset(("security.protocol", "security.providers", *JAVA_NAMES, *LIBRDKAFKA_NAMES))


def is_security_setting(name: str) -> bool:
    """Whether a setting, by its dotted name, is about TLS or SASL."""
    return name.startswith(_PREFIXES) or name in _OTHERS


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """`values` are the settings that were given, by their dotted names."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    # `oauth_cb`: gives tokens to OAUTHBEARER.
    oauth_cb: Callable[[str], Any] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, given: Mapping[str, object]) -> SecuritySettings:
        """Check the settings of a client. ValueError names the one that is wrong, and shows no secret."""
        values = {name: str(value) for name, value in given.items() if value is not None}
        values.pop(_OAUTH_CB, None)
        oauth_cb = given.get(_OAUTH_CB)
        if oauth_cb is not None and not callable(oauth_cb):
            raise ValueError("oauth_cb is not a function that returns a token")
        text = values.pop("security.protocol", "PLAINTEXT").strip().upper()
        if text not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ValueError(f"security.protocol={text!r} is not known; use one of {known}")
        for name in values:
            if name not in _KNOWN and not is_client_setting(name):
                near = get_close_matches(name, (*_KNOWN, *CLIENT_NAMES), n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"{name} is not a setting that this client knows{hint}")
        settings = cls(SecurityProtocol[text], tuple(sorted(values.items())), oauth_cb)
        if settings.protocol.sasl:
            check_client_sasl(values)
        elif "security.protocol" not in given:
            for name in CREDENTIALS:
                if name in values:
                    raise ValueError(
                        f"{name} is set, and security.protocol is not: without SASL_SSL or SASL_PLAINTEXT "
                        "the client would not log in"
                    )
        if settings.protocol.tls:
            client_tls_settings(values)
        return settings

    def get(self, name: str) -> str | None:
        return dict(self.values).get(name)


PLAINTEXT_SETTINGS: Final = SecuritySettings()
