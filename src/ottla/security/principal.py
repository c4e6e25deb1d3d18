"""Who sent a request: Kafka's `KafkaPrincipal`, and its bytes in a request that a broker forwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ottla.protocol.prefixed import decode_prefixed, encode_prefixed
from ottla.protocol.principal import DefaultPrincipalData
from ottla.protocol.schema import Buffer

USER_TYPE: Final = "User"


@dataclass(frozen=True, slots=True)
class KafkaPrincipal:
    """A client as its listener has authenticated it. Two are equal if type and name are."""

    type: str
    name: str
    # Whether the client logged in with a delegation token: such a client may not make further tokens.
    token_authenticated: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> KafkaPrincipal:
        """Read `Type:name`, as ACLs and `super.users` write it. ValueError if it has no colon."""
        kind, colon, name = text.partition(":")
        if not colon:
            raise ValueError(f"expected a string in format principalType:principalName but got {text}")
        return cls(kind, name)

    def encode(self) -> bytes:
        """The principal as an Envelope carries it (Kafka's `DefaultKafkaPrincipalBuilder`)."""
        data = DefaultPrincipalData(
            type=self.type, name=self.name, token_authenticated=self.token_authenticated
        )
        return encode_prefixed(data, 0)

    @classmethod
    def decode(cls, encoded: Buffer) -> KafkaPrincipal:
        """Read the principal of an Envelope. MalformedMessage or UnsupportedVersion if that cannot be."""
        data, _ = decode_prefixed(DefaultPrincipalData, encoded)
        return cls(data.type, data.name, data.token_authenticated)


# The principal of clients of listeners without authentication.
ANONYMOUS: Final = KafkaPrincipal(USER_TYPE, "ANONYMOUS")
