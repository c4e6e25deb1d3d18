"""The words that a coordinator's machine and its engine speak.

A machine is given a request and the time and says what shall happen, as `Effects`: records to write, answers
to give, work to start. It changes its durable state only when the engine replays those records, which is
after they have been appended; so a write that fails has changed nothing, and the state is always what its
partition holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.protocol.errors import KafkaError
from ottla.protocol.schema import Message

Token: TypeAlias = Any
"""Whom an answer is for. The engine makes tokens; a machine keeps them and gives them back, no more."""


class Now(NamedTuple):
    """The time of an event, by both clocks: records are dated by the wall clock, deadlines are kept by the
    ticks of the monotonic one, so that a wall clock that is set expires nobody.
    """

    wall_ms: int
    tick_ms: int


class Producer(NamedTuple):
    """The producer in whose transaction records are written."""

    id: int
    epoch: int


class CoordinatorRecord(NamedTuple):
    """A record to write; without a value it is a tombstone. `version` is that of the value."""

    key: Message
    value: Message | None
    version: int = 0


class ReplayedRecord(NamedTuple):
    """A record that is in the log, with what a machine may need to know of its batch."""

    key: Message
    value: Message | None
    offset: int
    timestamp_ms: int
    producer: Producer | None = None
    """Set if the record belongs to a transaction, and counts only once that is committed."""


@dataclass(slots=True)
class Effects:
    """What an event does. Without records, the state has not changed in any durable way."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Token, Any]] = field(default_factory=list)
    """Answers: a response, or the error that stands for one. They are given when the records, and all that
    was written before them, are committed; if the append fails, each of them gets that error instead."""
    sends: list[Any] = field(default_factory=list)
    """Work for others, handed out when the records are committed."""
    producer: Producer | None = None
    """The transaction that the records belong to."""
    applied: Callable[[Now], Effects | None] | None = None
    """Called once the records are appended and replayed: for state that is not durable, and for what comes
    next, which is carried out as an event of its own."""
    failed: Callable[[KafkaError, Now], Effects] | None = None
    """Called if they could not be appended; what it gives back must not hold records."""
    atomic: bool = True
    """False where the records may be spread over several batches, as in a clean-up."""

    def reply(self, token: Token, response: Any) -> Effects:
        """Answer `token`, if anybody asked."""
        if token is not None:
            self.replies.append((token, response))
        return self

    def extend(self, other: Effects) -> Effects:
        """Do that as well, in the same batch."""
        if other.producer != self.producer and other.records and self.records:
            raise ValueError(
                f"records of {other.producer} cannot share a batch with those of {self.producer}"
            )
        self.records += other.records
        self.replies += other.replies
        self.sends += other.sends
        self.producer = self.producer or other.producer
        self.applied = _both(self.applied, other.applied)
        self.failed = _both(self.failed, other.failed)
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


class Machine(Protocol):
    """The state of one partition of a coordinator's topic. Nothing here waits or reads a clock."""

    def handle(self, token: Token, request: Any, now: Now) -> Effects:
        """What a request does. A `KafkaError` that is raised is its answer, and nothing has changed."""

    def on_timer(self, now: Now) -> Effects:
        """What is due now. Called again until no deadline is in the past."""

    def next_deadline_ms(self) -> int | None:
        """When `on_timer` is to be called next, by the monotonic clock."""

    def replay(self, record: ReplayedRecord) -> None:
        """Take a record of the log into the state; the only way in which durable state changes."""

    def replay_end_transaction(self, producer: Producer, commit: bool) -> None:
        """The producer's transaction ended in this partition: its records count, or never did."""

    def on_loaded(self, now: Now) -> Effects:
        """The whole partition has been replayed: set deadlines, take up what was under way."""

    def on_unloaded(self) -> None:
        """The partition is led elsewhere now; whoever waits is told by the engine."""
