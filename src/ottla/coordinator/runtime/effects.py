"""The interface between a coordinator's state machine and the runtime that drives it.

A `CoordinatorShard` is given an operation and the time, and returns `Effects`: records to write, replies to
give, work to start. It changes its durable state only when the runtime replays those records, which is after
they have been appended. So a write that fails has changed nothing, and the state is always that of the
shard's partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.protocol.errors import KafkaError
from ottla.protocol.schema import Message

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class EventTime(NamedTuple):
    """The time of an event, by both clocks. Records carry the wall clock's time. Deadlines are ticks of the
    monotonic clock, so that setting the wall clock expires nothing.
    """

    wall_ms: int
    tick_ms: int


class ProducerIdAndEpoch(NamedTuple):
    """A producer: in requests, or as the writer of a transaction's records."""

    id: int
    epoch: int


class CoordinatorOperation(Generic[R]):
    """A request or event for a shard; `R` is the type of the reply."""

    __slots__ = ()


class ReplyTo(Protocol[R_contra]):
    """The receiver of the reply to an operation: the runtime's `Ticket`. A shard may keep it and reply in a
    later event.
    """

    def resolve(self, value: R_contra | KafkaError, /) -> None: ...


class CoordinatorRecord(NamedTuple):
    """A record to write; without a value it is a tombstone. `version` is that of the value."""

    key: Message
    value: Message | None
    version: int = 0


class ReplayedRecord(NamedTuple):
    """A record of the log, with what a shard may need to know of its batch."""

    key: Message
    value: Message | None
    offset: int
    timestamp_ms: int
    producer: ProducerIdAndEpoch | None = None
    """Set if the record belongs to a transaction, and counts only after that is committed."""


@dataclass(slots=True)
class Effects:
    """The result of an event (Kafka's `CoordinatorResult`). Without records, no durable state has changed."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[ReplyTo[Any], Any]] = field(default_factory=list)
    """Replies: a response, or the error that stands for one. The runtime gives them when the records, and
    all records written before them, are committed; if the append fails, each gets that error instead."""
    sends: list[Any] = field(default_factory=list)
    """Work outside of the shard, handed out when the records are committed."""
    producer: ProducerIdAndEpoch | None = None
    """The transaction that the records belong to."""
    on_applied: Callable[[EventTime], Effects | None] | None = None
    """Called after the records are appended and replayed: for state that is not durable, and for follow-up
    effects, which are carried out as an event of their own."""
    on_failed: Callable[[KafkaError, EventTime], Effects] | None = None
    """Called if the records could not be appended; its effects must not hold records."""
    atomic: bool = True
    """False where the records may be spread over several batches, as in a clean-up."""

    def reply(self, to: ReplyTo[R] | None, response: R | KafkaError) -> Effects:
        """Reply to an operation; None stands for an event that expects no reply."""
        if to is not None:
            self.replies.append((to, response))
        return self

    def extend(self, other: Effects) -> Effects:
        """Add other effects, to the same batch."""
        if other.producer != self.producer and other.records and self.records:
            raise ValueError(
                f"records of {other.producer} cannot share a batch with those of {self.producer}"
            )
        self.records += other.records
        self.replies += other.replies
        self.sends += other.sends
        self.producer = self.producer or other.producer
        self.on_applied = _both(self.on_applied, other.on_applied)
        self.on_failed = _both(self.on_failed, other.on_failed)
        return self


def _both(
    first: Callable[..., Effects | None] | None, second: Callable[..., Effects | None] | None
) -> Callable[..., Any] | None:
    if first is None or second is None:
        return first or second

    def run(*args: Any) -> Effects:
        effects = first(*args) or Effects()
        return effects.extend(second(*args) or Effects())

    return run


class CoordinatorShard(Protocol):
    """The state of one partition of a coordinator's topic. It never waits and reads no clock."""

    def handle(
        self, to: ReplyTo[Any] | None, operation: CoordinatorOperation[Any], now: EventTime
    ) -> Effects:
        """Handle an operation. A `KafkaError` that it raises is the reply, and nothing has changed."""

    def on_timer(self, now: EventTime) -> Effects:
        """Do what is due now. The runtime calls it again until no deadline is in the past."""

    def next_deadline_ms(self) -> int | None:
        """When `on_timer` is to be called next, by the monotonic clock."""

    def replay(self, record: ReplayedRecord) -> None:
        """Apply a record of the log to the state; the only way in which durable state changes."""

    def replay_end_transaction(self, producer: ProducerIdAndEpoch, commit: bool) -> None:
        """The producer's transaction ended in this partition: its records count, or are dropped."""

    def on_loaded(self, now: EventTime) -> Effects:
        """The whole partition has been replayed: set deadlines, resume what was under way."""

    def on_unloaded(self) -> None:
        """Another broker leads the partition; the runtime answers the requests that wait."""
