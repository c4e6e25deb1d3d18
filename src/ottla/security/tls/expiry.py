"""When certificates end: what `ottla secure show` prints, and what a node warns of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.security.tls.distinguished_name import subject_name

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

DAY_MS: Final = 86_400_000
# A node warns once when so many days are left.
WARNING_DAYS: Final = (30, 14, 7, 3, 2, 1)


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    subject: str
    hosts: tuple[str, ...]
    begins_ms: int
    ends_ms: int
    end_text: str


def describe(certificate: Certificate) -> CertificateFacts:
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509 import ExtensionNotFound, SubjectAlternativeName

    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
        hosts = tuple(str(name.value) for name in names)
    except ExtensionNotFound:
        hosts = ()
    end = certificate.not_valid_after_utc
    return CertificateFacts(
        subject=subject_name(certificate.public_bytes(Encoding.DER)),
        hosts=hosts,
        begins_ms=int(certificate.not_valid_before_utc.timestamp() * 1000),
        ends_ms=int(end.timestamp() * 1000),
        end_text=end.strftime("%Y-%m-%d %H:%M UTC"),
    )


class ExpiryWarnings:
    """Says when it is time to warn of a certificate: at each of `WARNING_DAYS`, and every day once it has
    ended.
    """

    __slots__ = ("_warned",)

    def __init__(self) -> None:
        # The days that were left at the last warning, by the name of the place that a certificate is in.
        self._warned: dict[str, int] = {}

    def warning(self, where: str, facts: CertificateFacts, now_ms: int) -> str | None:
        """A line for the log, or None if there is nothing new to say."""
        left = (facts.ends_ms - now_ms) // DAY_MS
        if facts.begins_ms > now_ms:
            return self._once(where, 10_000, f"{where}: the certificate of {facts.subject} is not valid yet")
        if left >= WARNING_DAYS[0]:
            self._warned.pop(where, None)
            return None
        step = left if left < 0 else next(days for days in reversed(WARNING_DAYS) if left < days)
        ends = f"{where}: the certificate of {facts.subject} "
        ends += f"has expired on {facts.end_text}" if left < 0 else f"expires on {facts.end_text}"
        return self._once(where, step, f"{ends}; renew the file, and the node takes it without a restart")

    def _once(self, where: str, step: int, line: str) -> str | None:
        if self._warned.get(where) == step:
            return None
        self._warned[where] = step
        return line
