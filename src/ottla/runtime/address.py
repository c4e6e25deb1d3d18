"""The address of a listener, in a module that imports no socket: pure code may name it too."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    """A host and a port; the text of an IPv6 address has brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def plain_host(text: str) -> str:
    """Write an address in the one form that connections report: shortest, without the interface that some of
    IPv6 have, and one of IPv4 as such. What is no address stays as it is.
    """
    if ":" not in text:
        return text
    import ipaddress

    try:
        address = ipaddress.IPv6Address(text.partition("%")[0])
    except ValueError:
        return text
    return str(address.ipv4_mapped or address)
