"""The numbers of share groups on the wire: how records are acknowledged, and how they are acquired."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from ottla.protocol.schema import Struct as MessagePart

DEAD_LETTER_PLACE_TAG: Final = 10_000
_PLACE: Final = Struct(">16siq")


class DeadLetterPlace(NamedTuple):
    """The partition that dead letters of a share partition are written to, from an offset on. It is kept with
    the state of the share partition, as a tagged field of Kafka's own records and requests that only Ottla
    reads.
    """

    topic_id: bytes
    partition: int
    first_offset: int

    @classmethod
    def of(cls, message: MessagePart) -> DeadLetterPlace | None:
        data = (message.unknown_tags or {}).get(DEAD_LETTER_PLACE_TAG)
        return None if data is None or len(data) != _PLACE.size else cls._make(_PLACE.unpack(data))

    def put(self, message: MessagePart) -> None:
        message.unknown_tags = {DEAD_LETTER_PLACE_TAG: _PLACE.pack(*self)}


class AcknowledgeType(IntEnum):
    """The ways in which a member acknowledges a record; 0 where there is no record at the offset."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareAcquireMode(IntEnum):
    """Whether whole batches are acquired, or exactly as many records as a member asked for."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1
