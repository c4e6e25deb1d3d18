"""The numbers of share groups on the wire: how records are acknowledged, and how they are acquired."""

from __future__ import annotations

from enum import IntEnum


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
