"""The metadata of one transactional id, the states that it can be in, and every step it can take.

A `TransactionMetadata` is immutable; a step gives a new one, which becomes the state when its record has been
appended and replayed. So there is no separate description of a transition (Kafka's `TxnTransitMetadata`). Two
pairs of producer id and epoch may live in it at once:

* the pair of the transaction, which data and markers carry: `producer_id` and `producer_epoch`;
* the pair of the client, against which requests are checked. It is the same one, unless a producer has taken
  over a prepared transaction (KIP-939): then it is `next_producer_id` and `next_producer_epoch`.

Transactions of version 2 (KIP-890) raise the epoch with every end, so a late message of one transaction
can never be taken for a message of the next. When epochs run out, the client goes on after the end with
`next_producer_id`, epoch 0.

Invariant: of one producer id, epochs only grow, and the highest one, `max_epoch`, is never given to a
client, so that there is always one left to fence it with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.config import NO_TIMEOUT_MS
from ottla.protocol.names import TopicPartition

NO_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
FIRST_VERSION_OF_EPOCH_BUMPS: Final = 2


class TransactionState(IntEnum):
    """The states, with Kafka's numbers and names.

    `DEAD` and `PREPARE_EPOCH_FENCE` are transient in Kafka's coordinator and never reach its log; a filter
    may name them, but no transaction here is ever in them.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name that clients see."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether the decision has been taken, and not all partitions have their marker."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or being ended."""
        return self in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )


BY_TITLE: Final[Mapping[str, TransactionState]] = {state.title: state for state in TransactionState}

_IDLE: Final = frozenset(state for state in TransactionState if state.is_idle)

VALID_PREVIOUS_STATES: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _IDLE,
    TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # From an idle state: with version 2 an abort ends even what was never begun, so that the epoch moves on.
    TransactionState.PREPARE_ABORT: _IDLE | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    # In a prepared state: where markers are to be written. Otherwise empty, or all that was written to.
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME  # when the transaction began; of the last one, if none is open
    last_update_ms: int = NO_TIME
    # The id before the last step; it identifies a repeated request after a change of the producer id.
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    next_producer_epoch: int = NO_EPOCH  # set while a producer has taken over a prepared transaction
    client_version: int = 0  # the transaction version of the client that took the last step

    @property
    def is_taken_over(self) -> bool:
        """Whether another producer than the one that wrote it will decide this transaction."""
        return self.next_producer_epoch != NO_EPOCH

    @property
    def client(self) -> ProducerIdAndEpoch:
        """The producer whose requests are valid."""
        if self.is_taken_over:
            return ProducerIdAndEpoch(self.next_producer_id, self.next_producer_epoch)
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def writer(self) -> ProducerIdAndEpoch:
        """The producer whose id and epoch data and markers carry."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    def is_timed_out(self, wall_ms: int) -> bool:
        return (
            self.state is TransactionState.ONGOING
            and not self.is_two_phase
            and self.start_ms + self.timeout_ms < wall_ms
        )

    def is_expired(self, wall_ms: int, expiration_ms: int) -> bool:
        return self.state.is_idle and self.last_update_ms <= wall_ms - expiration_ms

    # Steps

    def with_epoch(self, epoch: int, timeout_ms: int, wall_ms: int) -> TransactionMetadata:
        """Let a producer begin, or go on, with this epoch; no transaction is open."""
        return self._step(
            TransactionState.EMPTY,
            wall_ms,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIME,
        )

    def with_producer_id(self, producer_id: int, timeout_ms: int, wall_ms: int) -> TransactionMetadata:
        """Let a producer begin with a new id, as the epochs of the old one are used up."""
        return self._step(
            TransactionState.EMPTY,
            wall_ms,
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIME,
        )

    def with_new_client(self, client: ProducerIdAndEpoch, wall_ms: int) -> TransactionMetadata:
        """Let a producer take over the open transaction, to commit or abort it."""
        return self._step(
            TransactionState.ONGOING,
            wall_ms,
            next_producer_id=client.id,
            next_producer_epoch=client.epoch,
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], client_version: int, wall_ms: int
    ) -> TransactionMetadata:
        """Add partitions; the first ones open the transaction."""
        return self._step(
            TransactionState.ONGOING,
            wall_ms,
            partitions=self.partitions | partitions,
            start_ms=wall_ms if self.state.is_idle else self.start_ms,
            client_version=client_version,
        )

    def prepare(
        self,
        *,
        commit: bool,
        client_version: int,
        epoch: int,
        next_client: ProducerIdAndEpoch | None,
        wall_ms: int,
    ) -> TransactionMetadata:
        """Decide: markers are written with `epoch`, and the client goes on as `next_client`, or with `epoch`
        if there is none.

        A change to a new id is noted the way Kafka notes it: by the id alone, as its epoch is 0.
        """
        next_id, next_epoch = NO_ID, NO_EPOCH
        if next_client is not None:
            next_id, next_epoch = next_client.id, (next_client.epoch if self.is_taken_over else NO_EPOCH)
        return self._step(
            TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            wall_ms,
            producer_epoch=epoch,
            next_producer_id=next_id,
            next_producer_epoch=next_epoch,
            # A transaction that is aborted before it began starts at its end.
            start_ms=wall_ms if self.state.is_idle else self.start_ms,
            client_version=client_version,
            previous_producer_id=self.client.id,
        )

    @property
    def after_completion(self) -> ProducerIdAndEpoch:
        """The identity of the client after a prepared transaction is complete."""
        if self.is_taken_over:
            return self.client
        if self.next_producer_id != NO_ID and self.client_version >= FIRST_VERSION_OF_EPOCH_BUMPS:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return self.writer

    def complete(self, wall_ms: int) -> TransactionMetadata:
        """Complete a prepared transaction: all partitions have their markers."""
        producer = self.after_completion
        return self._step(
            TransactionState.COMPLETE_COMMIT
            if self.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT,
            wall_ms,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            next_producer_id=NO_ID,
            next_producer_epoch=NO_EPOCH,
            partitions=frozenset(),
            previous_producer_id=self.previous_producer_id if self.is_taken_over else self.producer_id,
        )

    def _step(self, state: TransactionState, wall_ms: int, **changes: object) -> TransactionMetadata:
        if self.state not in VALID_PREVIOUS_STATES[state]:
            raise ValueError(
                f"{self.transactional_id}: a transaction cannot go from {self.state.name} to {state.name}"
            )
        changes.setdefault("previous_producer_id", self.producer_id)
        # The wall clock may have been set back; the order of steps has not.
        last_update_ms = max(wall_ms, self.last_update_ms)
        step = replace(self, state=state, last_update_ms=last_update_ms, **changes)  # type: ignore[arg-type]
        assert step.producer_id != self.producer_id or step.producer_epoch >= self.producer_epoch, (
            self,
            step,
        )
        return step
