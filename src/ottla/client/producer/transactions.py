"""Transactions as their user sees them: a block that commits or aborts, or its steps one by one.

    async with producer.transaction() as transaction:
        producer.send_nowait("out", value)
        await transaction.send_offsets(consumer)

All records of the block become visible together, with the consumer's offsets, or none of them does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, Self

from ottla.client.errors import TransactionAborted
from ottla.client.group_offsets import CommittedOffset
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.transaction import (
    GroupMember,
    PreparedTransaction,
    TransactionManager,
    TransactionState,
)
from ottla.protocol.names import TopicPartition

__all__ = ["OffsetSource", "Transaction", "Transactions"]


class OffsetSource(Protocol):
    """What a transaction needs of a consumer."""

    def positions(self) -> dict[TopicPartition, CommittedOffset]: ...

    def group_member(self) -> GroupMember: ...

    def seek_to_committed(self) -> None: ...


class Transactions:
    """Begin, commit and abort, for those whom the `async with` of `Transaction` does not suit."""

    def __init__(
        self, manager: TransactionManager, accumulator: Accumulator, flush: Callable[[], Awaitable[None]]
    ) -> None:
        self._manager = manager
        self._accumulator = accumulator
        self._flush = flush

    @property
    def state(self) -> TransactionState:
        """How far the present transaction has come."""
        return self._manager.state

    async def init(self, *, keep_prepared: bool = False) -> None:
        """Takes the transactional id over from whoever had it; `Producer.start` does."""
        await self._manager.init(keep_prepared=keep_prepared)

    def check_open(self) -> None:
        """Raises unless records may be sent now."""
        self._manager.check_open()

    def transaction(self) -> Transaction:
        """As `Producer.transaction`."""
        return Transaction(self)

    def begin(self) -> None:
        """Opens a transaction; the records that follow belong to it."""
        self._manager.begin()

    async def commit(self) -> None:
        """Delivers everything and commits. After an error only `abort` is left."""
        await self._flush()
        await self._manager.end(commit=True)

    async def abort(self) -> None:
        """Gives up what was not sent yet and aborts the rest."""
        dropped = self._accumulator.drop_waiting()
        for batch in dropped:
            batch.fail(TransactionAborted(f"{batch.partition}: the transaction was aborted"))
            self._accumulator.settled(batch)
        await self._flush()
        # What came back for another try meanwhile was flushed, too, or has failed.
        await self._manager.end(commit=False, lost_place=any(batch.base_sequence >= 0 for batch in dropped))

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMember | str
    ) -> None:
        """Commits a group's offsets in the transaction."""
        member = group if isinstance(group, GroupMember) else GroupMember(group)
        await self._manager.send_offsets(offsets, member)

    # Two phases.

    async def prepare(self) -> PreparedTransaction:
        """The first phase: everything is delivered, and the transaction waits for `complete`, also across a
        crash. Needs transaction.two.phase.commit.enable here and at the brokers.
        """
        await self._flush()
        return self._manager.prepare()

    @property
    def prepared(self) -> PreparedTransaction | None:
        """The transaction that waits for its end, if there is one."""
        return self._manager.prepared

    async def complete(self, prepared: PreparedTransaction) -> bool:
        """The second phase, after `start(keep_prepared=True)` too: commits if it is this transaction that
        waits, aborts what waits otherwise. Whether it was committed.
        """
        commit = self._manager.prepared == prepared
        await self._manager.end(commit=commit)
        return commit


class Transaction:
    """One transaction, by `producer.transaction()`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._consumers: list[OffsetSource] = []

    async def __aenter__(self) -> Self:
        self._transactions.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                await self._transactions.commit()
            except TransactionAborted:
                await self._abort()
                raise
        elif self._transactions.state is not TransactionState.DEAD:
            await self._abort()

    async def _abort(self) -> None:
        """Consumers whose offsets were in it go back to what is committed, and read the same again."""
        try:
            if self._transactions.state is not TransactionState.DEAD:
                await self._transactions.abort()
        finally:
            for consumer in self._consumers:
                consumer.seek_to_committed()

    async def send_offsets(
        self,
        source: OffsetSource | Mapping[TopicPartition, CommittedOffset],
        group: GroupMember | str | None = None,
    ) -> None:
        """Commits a consumer's positions, or given offsets of a group, as part of the transaction."""
        if isinstance(source, Mapping):
            if group is None:
                raise ValueError("whose offsets are they? give the group")
            await self._transactions.send_offsets(source, group)
            return
        self._consumers.append(source)
        positions = source.positions()
        member = group or (source.group_member() if positions else "")
        await self._transactions.send_offsets(positions, member)
