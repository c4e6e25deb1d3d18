"""The in-sync set of a partition, and the change of it that the controller was asked for.

Invariant: ``maximal`` holds ``confirmed``. The high watermark waits for ``maximal``, so a member that is
being added counts at once, as waiting for it does no harm if the controller refuses, and one that is being
dropped counts until the controller has agreed, as committing without it would.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ottla.protocol.errors import ErrorCode
from ottla.replication.types import IsrProposal

# Refusals that say that this broker is behind: the metadata log will tell what became of the partition.
_WAIT_FOR_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


class InSyncSet:
    __slots__ = ("confirmed", "maximal", "pending")

    def __init__(self) -> None:
        self.confirmed: frozenset[int] = frozenset()  # as the controller last said; empty on a follower
        self.maximal: frozenset[int] = frozenset()
        self.pending: IsrProposal | None = None  # asked of the controller, not answered

    def reset(self, isr: Iterable[int]) -> None:
        """The metadata log says what the set is; whatever was asked for has lapsed."""
        self.confirmed = self.maximal = frozenset(isr)
        self.pending = None

    def propose(self, proposal: IsrProposal) -> None:
        self.pending = proposal
        self.maximal = self.confirmed | frozenset(proposal.isr)

    def refused(self, proposal: IsrProposal, error: ErrorCode) -> bool:
        """The controller refused; True if the proposal is to be sent again."""
        if self.pending is not proposal:
            return False
        if error in (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA):
            self.reset(self.confirmed)
            return False
        return error not in _WAIT_FOR_METADATA
