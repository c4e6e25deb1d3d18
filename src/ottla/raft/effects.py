"""What the quorum's state machine asks of whoever runs it.

They are to be carried out in order. What comes after a :class:`Persist` waits until it is durable: a vote
that could be forgotten must not be counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ottla.raft.election_state import ElectionState
from ottla.raft.messages import Reply, Request
from ottla.raft.snapshot import SnapshotId
from ottla.runtime.address import Address


@dataclass(frozen=True, slots=True)
class Persist:
    """Write ``quorum-state``, durably."""

    election: ElectionState


@dataclass(frozen=True, slots=True)
class Send:
    """Ask a peer; give what comes back to ``answered`` or ``failed`` with the same ``exchange``."""

    exchange: int
    node_id: int  # negative for a server that is known by its address only
    address: Address
    request: Request


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request that came with this token."""

    token: object
    reply: Reply


@dataclass(frozen=True, slots=True)
class Flush:
    """Make the log durable, and say so by ``flushed``; the machine goes on meanwhile."""


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Make the downloaded snapshot durable, and say so by ``snapshot_ready``."""

    id: SnapshotId


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything below the offset is committed."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The log begins anew behind this snapshot: what was applied before is void."""

    id: SnapshotId


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """There is another leader, or none that is known (None)."""

    leader_id: int | None
    epoch: int


Effect: TypeAlias = (
    Persist | Send | Answer | Flush | InstallSnapshot | Committed | SnapshotLoaded | LeaderChanged
)
