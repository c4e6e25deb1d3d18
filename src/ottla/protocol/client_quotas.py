"""The names that client quotas are written with: types of entities, quotas, and ways to match an entity."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

# The largest value of each quota that is a whole number; the others are any number above 0.
LARGEST_WHOLE: Final = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    CONNECTION_CREATION_RATE: 2**31 - 1,
}
QUOTAS_OF_CLIENTS: Final = frozenset(
    (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
)
QUOTAS_OF_IPS: Final = frozenset((CONNECTION_CREATION_RATE,))


class MatchType(IntEnum):
    """How a part of a filter matches entities of its type."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2
