"""The journal of the clients: what they sent, which responses they received, and what they read.

Clients append to it as they run. The checker uses it at once where that is possible, and the verdict at the
end of the run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

PartitionKey = tuple[str, int]


class OperationState(Enum):
    """The client's knowledge of an operation: whether it is done or failed; UNKNOWN after a timeout."""

    OPEN = "open"
    UNKNOWN = "unknown"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class SentRecord:
    """A record that a producer sent: the one with this `number` in its `session`, one per producer object."""

    topic: str
    partition: int
    value: bytes
    acks: int
    idempotent: bool
    session: str
    number: int
    state: OperationState = OperationState.OPEN
    offset: int = -1
    # The leader epoch at the acknowledgement; with acks=1 the record may be lost with that leader.
    leader_epoch: int = -1


@dataclass(slots=True)
class ClientTransaction:
    """A transaction: DONE is committed, FAILED is aborted, UNKNOWN may be either, but as a whole."""

    name: str
    records: list[SentRecord] = field(default_factory=list)
    state: OperationState = OperationState.OPEN


@dataclass(slots=True)
class OffsetCommit:
    offset: int
    state: OperationState = OperationState.OPEN


@dataclass(slots=True)
class GroupHistory:
    """The records and offsets that the members of a group have read and committed."""

    name: str
    topics: tuple[str, ...]
    read_committed: bool = False
    strategy: tuple[str, ...] = ("range", "cooperative-sticky")
    # The topic to which its members write what they read, in the transactions that commit its offsets.
    copies_to: str | None = None
    read: dict[PartitionKey, set[int]] = field(default_factory=lambda: defaultdict(set))
    commits: dict[PartitionKey, list[OffsetCommit]] = field(default_factory=lambda: defaultdict(list))

    def acknowledged(self, partition: PartitionKey) -> int:
        """The highest offset whose commit was confirmed."""
        return max((c.offset for c in self.commits[partition] if c.state is OperationState.DONE), default=0)

    def may_be(self, partition: PartitionKey, offset: int) -> bool:
        """Whether `offset` can be the committed offset of the group.

        It must not be below a confirmed one, unless it is that of a commit without a response, which may have
        been executed late.
        """
        known = self.commits[partition]
        late = any(c.offset == offset and c.state is not OperationState.DONE for c in known)
        return late or offset >= self.acknowledged(partition)


@dataclass(slots=True)
class Journal:
    sent: list[SentRecord] = field(default_factory=list)
    transactions: list[ClientTransaction] = field(default_factory=list)
    groups: dict[str, GroupHistory] = field(default_factory=dict)
    reads: int = 0

    @property
    def acknowledged(self) -> int:
        return sum(record.state is OperationState.DONE for record in self.sent)


def copy_of(group: GroupHistory, value: bytes, transaction: str) -> bytes:
    """The value that a member of the group writes for a record that it has read."""
    return b"%s of %s in %s" % (group.name.encode(), value, transaction.encode())


def original_of(group: GroupHistory, copy: bytes) -> bytes | None:
    """The record that a member of this group has copied; None if another group's member did."""
    prefix = group.name.encode() + b" of "
    return copy.removeprefix(prefix).rpartition(b" in ")[0] if copy.startswith(prefix) else None
