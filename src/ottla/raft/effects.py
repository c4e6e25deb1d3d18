"""The effects of the state machine, which its driver carries out in order.

An effect after a `Persist` waits until the `Persist` is durable: a vote that could be forgotten must not be
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ottla.raft.messages import Reply, Request
from ottla.raft.snapshot import SnapshotId
from ottla.raft.states import ElectionState
from ottla.runtime.address import Address


@dataclass(frozen=True, slots=True)
class Persist:
    """Write `quorum-state`, durably."""

    election: ElectionState


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to a peer; pass the outcome to `handle_response` or `handle_failure` with the same
    `correlation_id`.
    """

    correlation_id: int
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
    """Sync the log, then call `on_log_flushed`; the machine goes on meanwhile."""


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Make the downloaded snapshot durable, then call `on_snapshot_ready`; the machine goes on meanwhile."""

    id: SnapshotId


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything below the offset is committed."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The log starts over after this snapshot: the listener discards the state it has applied before."""

    id: SnapshotId


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """There is another epoch or leader; `leader_id` is None while the leader is unknown."""

    leader_id: int | None
    epoch: int


Effect: TypeAlias = (
    Persist | Send | Answer | Flush | InstallSnapshot | Committed | SnapshotLoaded | LeaderChanged
)
