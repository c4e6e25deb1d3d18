"""The address of a listener, in a module that imports no socket: pure code may name it too."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network


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


def is_address_range(text: str) -> bool:
    """Whether a text is meant as a range of addresses, as `10.0.0.0/8` is (CIDR notation)."""
    return "/" in text


def address_range(text: str) -> IPv4Network | IPv6Network:
    """The addresses of a range; ValueError says what is wrong with it. Bits of the address beyond the prefix
    do not count.
    """
    import ipaddress

    address, _, prefix = text.partition("/")
    if not (prefix.isascii() and prefix.isdecimal()):
        raise ValueError(f"{prefix!r} is not the length of a prefix")
    if "%" in address:
        raise ValueError("an interface cannot be a part of a range")
    return ipaddress.ip_network((address, int(prefix)), strict=False)


@lru_cache(maxsize=10_000)
def is_in_range(host: str, text: str) -> bool:
    """Whether an address, in the form that connections report, is in a range; no address is in a text that is
    none.
    """
    import ipaddress

    try:
        return ipaddress.ip_address(host) in address_range(text)
    except ValueError:
        return False
