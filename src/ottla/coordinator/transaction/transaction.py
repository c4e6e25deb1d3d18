"""What the coordinator knows of one transactional id, and every step it can take.

A `Transaction` is immutable; a step gives a new one, which becomes the state when its record has been
appended and replayed. Two pairs of producer id and epoch may live in it at once:

* the pair of the transaction: in data and markers, `producer_id` and `producer_epoch`;
* the pair of the client, with which requests are checked. It is the same one, unless a producer has taken
  over a prepared transaction (KIP-939): then it is `next_producer_id` and `next_producer_epoch`.

Transactions of version 2 (KIP-890) raise the epoch with every end, so a late message of one transaction
can never be taken for a message of the next. When epochs run out, the end hands over to
`next_producer_id`, epoch 0.

Invariant: of one producer id, epochs only grow, and the highest one, `max_epoch`, is never given to a
client, so that there is always one left to fence it with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ottla.coordinator.runtime.effects import Producer
from ottla.coordinator.transaction.config import NO_TIMEOUT_MS
from ottla.coordinator.transaction.state import VALID_PREVIOUS_STATES, TransactionState
from ottla.protocol.names import TopicPartition

NO_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
FIRST_VERSION_OF_EPOCH_BUMPS: Final = 2


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    # In a prepared state: where markers are to be written. Otherwise empty, or all that was written to.
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME  # when the transaction began; of the last one, if none is open
    last_update_ms: int = NO_TIME
    previous_producer_id: int = (
        NO_ID  # the one before the last step; tells a repeated request after a hand-over
    )
    next_producer_id: int = NO_ID
    next_producer_epoch: int = NO_EPOCH  # set while a producer has taken over a prepared transaction
    client_version: int = 0  # the transaction version of the client that took the last step

    @property
    def is_taken_over(self) -> bool:
        """Another producer than the one that wrote it will decide this transaction."""
        return self.next_producer_epoch != NO_EPOCH

    @property
    def client(self) -> Producer:
        """Whose requests are valid."""
        if self.is_taken_over:
            return Producer(self.next_producer_id, self.next_producer_epoch)
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def writer(self) -> Producer:
        """In whose name data and markers are written."""
        return Producer(self.producer_id, self.producer_epoch)

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

    def with_epoch(self, epoch: int, timeout_ms: int, wall_ms: int) -> Transaction:
        """A producer begins, or goes on, with this epoch; nothing is open."""
        return self._step(
            TransactionState.EMPTY,
            wall_ms,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIME,
        )

    def with_producer_id(self, producer_id: int, timeout_ms: int, wall_ms: int) -> Transaction:
        """A producer begins with a new id, as the epochs of the old one are used up."""
        return self._step(
            TransactionState.EMPTY,
            wall_ms,
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIME,
        )

    def taken_over(self, client: Producer, wall_ms: int) -> Transaction:
        """A producer takes over the open transaction, to commit or abort it."""
        return self._step(
            TransactionState.ONGOING,
            wall_ms,
            next_producer_id=client.id,
            next_producer_epoch=client.epoch,
        )

    def with_partitions(
        self, partitions: frozenset[TopicPartition], client_version: int, wall_ms: int
    ) -> Transaction:
        """More partitions take part; the first ones open the transaction."""
        return self._step(
            TransactionState.ONGOING,
            wall_ms,
            partitions=self.partitions | partitions,
            start_ms=wall_ms if self.state.is_idle else self.start_ms,
            client_version=client_version,
        )

    def prepared(
        self,
        *,
        commit: bool,
        client_version: int,
        epoch: int,
        next_client: Producer | None,
        wall_ms: int,
    ) -> Transaction:
        """The decision: markers are written with `epoch`, and the client goes on as `next_client`.

        Without one it goes on with `epoch`. A hand-over to a new id is noted the way Kafka notes it: by the
        id alone, as its epoch is 0.
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
            # An abort of what was never begun has no beginning but its end.
            start_ms=wall_ms if self.state.is_idle else self.start_ms,
            client_version=client_version,
            previous_producer_id=self.client.id,
        )

    @property
    def after_completion(self) -> Producer:
        """As whom the client goes on once a prepared transaction is complete."""
        if self.is_taken_over:
            return self.client
        if self.next_producer_id != NO_ID and self.client_version >= FIRST_VERSION_OF_EPOCH_BUMPS:
            return Producer(self.next_producer_id, 0)
        return self.writer

    def completed(self, wall_ms: int) -> Transaction:
        """All partitions have their markers."""
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

    def _step(self, state: TransactionState, wall_ms: int, **changes: object) -> Transaction:
        if self.state not in VALID_PREVIOUS_STATES[state]:
            raise ValueError(
                f"{self.transactional_id}: there is no way from {self.state.name} to {state.name}"
            )
        changes.setdefault("previous_producer_id", self.producer_id)
        # The wall clock may have been set back; the order of steps has not.
        last_update_ms = max(wall_ms, self.last_update_ms)
        return replace(self, state=state, last_update_ms=last_update_ms, **changes)  # type: ignore[arg-type]
