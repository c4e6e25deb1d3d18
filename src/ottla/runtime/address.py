"""The address of a listener, in a module that imports no socket: pure code may name it too."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    """A host and a port; the text of an IPv6 address has brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
