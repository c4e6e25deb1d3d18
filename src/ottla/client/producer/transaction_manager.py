"""The state of a transactional producer: its id and epoch, and the one transaction that it may have open.

The states and their transitions:

    UNINITIALIZED -> READY -> IN_TRANSACTION -> (PREPARED_TRANSACTION ->) READY, by commit or abort
    IN_TRANSACTION -> ABORTABLE_ERROR when a part of it failed: only an abort is possible
    any -> FATAL_ERROR when another producer took over the transactional id, or the outcome is unknown

With brokers of transaction.version 2 a partition is added by the first write to it, and each end brings a new
epoch, so that no late write can get into the next transaction. On older brokers partitions have to be added
first, and the epoch stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, Protocol, Self

from ottla.client.coordinator_client import CoordinatorClient
from ottla.client.errors import TransactionAborted
from ottla.client.group_offsets import CommittedOffset, GroupMemberIdentity
from ottla.client.network_client import CoordinatorType, NetworkClient
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.record_accumulator import RecordAccumulator
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import ZERO_UUID

log = logging.getLogger(__name__)

WITHOUT_TOPIC_IDS = 5
LAST_VERSION_1 = {"produce": 11, "add_partitions": 3, "end": 4, "offsets": 4}
_FATAL = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
# The markers of the previous transaction are not in all partitions yet, which takes milliseconds.
_CONCURRENT = (ErrorCode.CONCURRENT_TRANSACTIONS,)


class TransactionManagerState(Enum):
    """The states of the module's docstring; a value is their description in messages."""

    UNINITIALIZED = "not initialized"
    READY = "no transaction open"
    IN_TRANSACTION = "a transaction is open"
    PREPARED_TRANSACTION = "a prepared transaction waits for its end"
    ABORTABLE_ERROR = "the transaction can only be aborted"
    FATAL_ERROR = "the producer has failed, and a new one is needed"


class PreparedTransaction(NamedTuple):
    """The identity of a prepared transaction across a crash; keep it with the commit of the other system."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        producer_id, _, epoch = text.partition(":")
        return cls(int(producer_id), int(epoch))


class GroupMember(NamedTuple):
    """The group and member for which a transaction commits offsets: `Consumer.group_member` returns it."""

    group_id: str
    member: GroupMemberIdentity = GroupMemberIdentity()


class TransactionManager:
    """The `ProducerIdentity` of a producer with a transactional id."""

    is_transactional = True

    def __init__(self, cluster: NetworkClient, config: ProducerConfig, wake: Callable[[], object]) -> None:
        assert config.transactional_id is not None
        self._cluster = cluster
        self._config = config
        self._wake = wake
        self._id = config.transactional_id
        self._coordinator = CoordinatorClient(
            cluster, CoordinatorType.TRANSACTION, self._id, timeout_ms=config.max_block_ms
        )
        self.state = TransactionManagerState.UNINITIALIZED
        self.producer_id = -1
        self.epoch = -1
        self._version_2 = False
        self._cause: KafkaError | None = None
        # Of the open transaction: partitions that are added, those to add, and whether it has offsets.
        self._joined: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        self._has_offsets = False
        self._joining: asyncio.Task[None] | None = None
        self.prepared: PreparedTransaction | None = None

    # `ProducerIdentity`.

    @property
    def is_known(self) -> bool:
        return self.producer_id >= 0

    async def obtain(self) -> None:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the producer has not been started")

    def begin_new_epoch(self) -> None:
        raise AssertionError("a transaction with a hole in its sequence is aborted, not continued")

    def may_send_to(self, partition: TopicPartition) -> bool:
        if self._version_2 or partition in self._joined:
            return True
        self._wanted.add(partition)
        # After an error only an abort may follow: there is nothing to add, and no reason to wake the sender.
        if self._joining is None and self.state is TransactionManagerState.IN_TRANSACTION:
            self._joining = asyncio.get_running_loop().create_task(self._join())
        return False

    def produce_version(self, at_most: int | None) -> int | None:
        if self._version_2:
            return at_most
        return LAST_VERSION_1["produce"] if at_most is None else min(at_most, LAST_VERSION_1["produce"])

    def on_written(self, partition: TopicPartition) -> None:
        self._joined.add(partition)

    def on_failed(self, partition: TopicPartition, error: KafkaError) -> None:
        """A record that is missing makes the whole transaction fail."""
        self._joined.add(partition)  # it may be written or not
        self._transition_to_abortable_error(error)

    async def close(self) -> None:
        """Give up adding partitions: the transaction is left to its timeout."""
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)

    # Begin and end.

    async def init(self, *, keep_prepared: bool = False) -> None:
        """Take over the transactional id: its former producer is fenced, and its open transaction is aborted
        (or kept, if it was prepared and `keep_prepared` is given).
        """
        two_phase = self._config.transaction_two_phase_commit_enable
        answer = await self._coordinator.call(
            InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=2**31 - 1 if two_phase else self._config.transaction_timeout_ms,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                enable_2pc=two_phase,
                keep_prepared_txn=keep_prepared,
            ),
            InitProducerIdResponse,
            lambda answer: [answer.error_code],
            unstable=two_phase,
            also_later=_CONCURRENT,
        )
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            kept = keep_prepared and code is ErrorCode.UNSUPPORTED_VERSION
            why = ": this broker cannot keep prepared transactions" if kept else ""
            raise self._transition_to_fatal_error(code, f"cannot be initialized{why}")
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        versions = (await self._coordinator.connection()).versions
        self._version_2 = versions is not None and versions.features.get("transaction.version", 0) >= 2
        self.state = TransactionManagerState.READY
        if answer.ongoing_txn_producer_id >= 0:
            self.prepared = PreparedTransaction(
                answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch
            )
            self.state = TransactionManagerState.PREPARED_TRANSACTION
            self._has_offsets = True  # there is a transaction to end
        self._wake()

    def begin(self) -> None:
        if self.state is not TransactionManagerState.READY:
            raise self._invalid_state("begin a transaction")
        self._joined.clear()
        self._wanted.clear()
        self._has_offsets = False
        self.prepared = None
        self._cause = None
        self.state = TransactionManagerState.IN_TRANSACTION

    def check_open(self) -> None:
        if self.state is not TransactionManagerState.IN_TRANSACTION:
            raise self._invalid_state("send")

    def prepare(self) -> PreparedTransaction:
        """After a flush: only an end may follow, in this process or in another."""
        if self.state is not TransactionManagerState.IN_TRANSACTION:
            raise self._invalid_state("prepare")
        self.state = TransactionManagerState.PREPARED_TRANSACTION
        self.prepared = PreparedTransaction(self.producer_id, self.epoch)
        return self.prepared

    async def end(self, *, commit: bool, given_up: Collection[TopicPartition] = ()) -> None:
        """Commit or abort, after everything was flushed or given up. `given_up` are the partitions of batches
        with a sequence number that were given up. They have been sent, and may be written, so that there may
        be a transaction to abort; and the next batch there needs a new epoch.
        """
        allowed = {TransactionManagerState.IN_TRANSACTION, TransactionManagerState.PREPARED_TRANSACTION}
        if not commit:
            allowed.add(TransactionManagerState.ABORTABLE_ERROR)
        if self.state not in allowed:
            raise self._invalid_state("commit" if commit else "abort")
        self._joined.update(given_up)
        lost_place = bool(given_up) or self.state is TransactionManagerState.ABORTABLE_ERROR
        if self._joined or self._wanted or self._has_offsets:
            await self._end(commit)
            if lost_place and not self._version_2:
                await self.init()
        self.state = TransactionManagerState.READY

    async def _end(self, commit: bool) -> None:
        what = "commit" if commit else "abort"
        try:
            answer = await self._coordinator.call(
                EndTxnRequest(
                    transactional_id=self._id,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    committed=commit,
                ),
                EndTxnResponse,
                lambda answer: [answer.error_code],
                at_most=None if self._version_2 else LAST_VERSION_1["end"],
                also_later=_CONCURRENT,
            )
        except KafkaError as error:
            self.state, self._cause = TransactionManagerState.FATAL_ERROR, error
            raise KafkaError(
                error.code,
                f"transactional.id {self._id!r}: whether the {what} happened is not known ({error}); "
                "create a new producer with the same id, which completes it",
            ) from error
        except asyncio.CancelledError:
            self.state = (
                TransactionManagerState.ABORTABLE_ERROR if not commit else TransactionManagerState.FATAL_ERROR
            )
            self._cause = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the {what} was cancelled")
            raise
        code = ErrorCode.of(answer.error_code)
        if code is ErrorCode.TRANSACTION_ABORTABLE:
            self._transition_to_abortable_error(
                KafkaError(code, f"transactional.id {self._id!r}: {code.text}")
            )
            raise self._invalid_state(what)
        if code:
            raise self._transition_to_fatal_error(code, f"cannot {what}")
        if answer.producer_id >= 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    # Partitions and offsets.

    async def _join(self) -> None:
        """Add partitions at the coordinator before they are written to (transaction.version 0 and 1)."""
        try:
            while self._wanted - self._joined and self.state is TransactionManagerState.IN_TRANSACTION:
                wanted = self._wanted - self._joined
                topics: dict[str, list[int]] = {}
                for topic, index in sorted(wanted):
                    topics.setdefault(topic, []).append(index)
                answer = await self._coordinator.call(
                    AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=self._id,
                        v3_and_below_producer_id=self.producer_id,
                        v3_and_below_producer_epoch=self.epoch,
                        v3_and_below_topics=[
                            AddPartitionsToTxnTopic(name=name, partitions=indexes)
                            for name, indexes in topics.items()
                        ],
                    ),
                    AddPartitionsToTxnResponse,
                    _join_errors,
                    at_most=LAST_VERSION_1["add_partitions"],
                    also_later=(*_CONCURRENT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                )
                code = ErrorCode.of(next((code for code in _join_errors(answer) if code), 0))
                if code:
                    self._fail(code, "cannot take partitions in")
                    return
                self._joined |= wanted
        except KafkaError as error:
            self._transition_to_abortable_error(error)
        finally:
            self._joining = None
            self._wake()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMember
    ) -> None:
        """Make a group's commit part of the transaction."""
        if self.state is not TransactionManagerState.IN_TRANSACTION:
            raise self._invalid_state("commit offsets in it")
        if not offsets:
            return
        self._has_offsets = True
        if not self._version_2:
            answer = await self._coordinator.call(
                AddOffsetsToTxnRequest(
                    transactional_id=self._id,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    group_id=group.group_id,
                ),
                AddOffsetsToTxnResponse,
                lambda answer: [answer.error_code],
                also_later=_CONCURRENT,
            )
            if answer.error_code:
                raise self._fail(ErrorCode.of(answer.error_code), "cannot take offsets in")
        await self._commit_offsets(offsets, group)

    async def _commit_offsets(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMember
    ) -> None:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, index), committed in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        ids = await self._topic_ids(topics)
        last_version = None if all(ids.values()) else WITHOUT_TOPIC_IDS
        coordinator = CoordinatorClient(
            self._cluster, CoordinatorType.GROUP, group.group_id, timeout_ms=self._config.max_block_ms
        )
        answer = await coordinator.call(
            TxnOffsetCommitRequest(
                transactional_id=self._id,
                group_id=group.group_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                generation_id_or_member_epoch=group.member.epoch,
                member_id=group.member.member_id,
                group_instance_id=group.member.instance_id,
                topics=[
                    TxnOffsetCommitRequestTopic(name=name, topic_id=ids[name] or ZERO_UUID, partitions=each)
                    for name, each in topics.items()
                ],
            ),
            TxnOffsetCommitResponse,
            _offset_errors,
            at_most=last_version if self._version_2 else LAST_VERSION_1["offsets"],
            also_later=(*_CONCURRENT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        )
        code = ErrorCode.of(next((code for code in _offset_errors(answer) if code), 0))
        if code is ErrorCode.UNKNOWN_TOPIC_ID:
            # A topic was created again: these offsets are not its own, those of the next transaction are.
            await self._cluster.refresh(topics=topics)
        if code:
            raise self._fail(code, f"cannot commit offsets of group {group.group_id!r}")

    async def _topic_ids(self, topics: Iterable[str]) -> dict[str, bytes | None]:
        """The ids of topics that a consumer has read, which this producer may not have written to."""
        unknown = [name for name in topics if name not in self._cluster.metadata.topics]
        if unknown:
            await self._cluster.refresh(topics=unknown)
        known = self._cluster.metadata.topics
        return {name: known[name].topic_id if name in known else None for name in topics}

    # Failures.

    def _transition_to_abortable_error(self, error: KafkaError) -> None:
        if error.code in _FATAL:
            self.state, self._cause = TransactionManagerState.FATAL_ERROR, error
        elif self.state is TransactionManagerState.IN_TRANSACTION:
            self.state, self._cause = TransactionManagerState.ABORTABLE_ERROR, error

    def _fail(self, code: ErrorCode, what: str) -> KafkaError:
        """Return the error to raise for an error code of a coordinator."""
        code = _as_fenced(code)
        if code in _FATAL:
            return self._transition_to_fatal_error(code, what)
        error = KafkaError(code, f"transactional.id {self._id!r} {what}: {code.text}; abort the transaction")
        self._transition_to_abortable_error(error)
        return error

    def _transition_to_fatal_error(self, code: ErrorCode, what: str) -> KafkaError:
        code = _as_fenced(code)
        hint = ""
        if code is ErrorCode.PRODUCER_FENCED:
            hint = "; another producer has taken the id over, or the transaction took too long"
        text = self._cluster.explain(code, AclOperation.WRITE, self._id)
        error = KafkaError(code, f"transactional.id {self._id!r} {what}: {text}{hint}")
        self.state, self._cause = TransactionManagerState.FATAL_ERROR, error
        return error

    def _invalid_state(self, what: str) -> KafkaError:
        if self.state is TransactionManagerState.ABORTABLE_ERROR:
            return TransactionAborted(
                f"transactional.id {self._id!r}: cannot {what}, as the transaction has failed: {self._cause}"
            )
        if self.state is TransactionManagerState.FATAL_ERROR and self._cause is not None:
            return self._cause
        return KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"transactional.id {self._id!r}: cannot {what}: {self.state.value}",
        )


def _as_fenced(code: ErrorCode) -> ErrorCode:
    """Map the codes by which coordinators report a replaced producer, depending on the request's version, to
    one. The code of a partition's leader is not trusted that much: an abort asks the coordinator.
    """
    return ErrorCode.PRODUCER_FENCED if code is ErrorCode.INVALID_PRODUCER_EPOCH else code


def _join_errors(answer: AddPartitionsToTxnResponse) -> list[int]:
    return [
        result.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    ]


def _offset_errors(answer: TxnOffsetCommitResponse) -> list[int]:
    return [entry.error_code for topic in answer.topics for entry in topic.partitions]


class OffsetSource(Protocol):
    """The part of a consumer that a transaction needs."""

    def positions(self) -> dict[TopicPartition, CommittedOffset]: ...

    def group_member(self) -> GroupMember: ...

    def seek_to_committed(self) -> None: ...


class Transactions:
    """Begin, commit and abort, for code that the `async with` of `Transaction` does not suit."""

    def __init__(
        self,
        manager: TransactionManager,
        accumulator: RecordAccumulator,
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._manager = manager
        self._accumulator = accumulator
        self._flush = flush

    @property
    def state(self) -> TransactionManagerState:
        """The state of the current transaction."""
        return self._manager.state

    async def init(self, *, keep_prepared: bool = False) -> None:
        """Take over the transactional id; `Producer.start` calls it."""
        await self._manager.init(keep_prepared=keep_prepared)

    def check_open(self) -> None:
        """Raise unless records may be sent now."""
        self._manager.check_open()

    def transaction(self) -> Transaction:
        """Return a transaction, as `Producer.transaction` does."""
        return Transaction(self)

    def begin(self) -> None:
        """Open a transaction; the records that follow belong to it."""
        self._manager.begin()

    async def commit(self) -> None:
        """Deliver everything and commit. After an error only `abort` is possible."""
        await self._flush()
        await self._manager.end(commit=True)

    async def abort(self) -> None:
        """Give up what was not sent yet and abort the rest."""
        dropped = self._accumulator.abort_undrained_batches()
        for batch in dropped:
            batch.fail(TransactionAborted(f"{batch.partition}: the transaction was aborted"))
            self._accumulator.deallocate(batch)
        await self._flush()
        # Batches that were to be retried meanwhile were flushed too, or have failed.
        sent_before = [batch.partition for batch in dropped if batch.base_sequence >= 0]
        await self._manager.end(commit=False, given_up=sent_before)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMember | str
    ) -> None:
        """Commit offsets of a group in the transaction."""
        member = group if isinstance(group, GroupMember) else GroupMember(group)
        await self._manager.send_offsets(offsets, member)

    # Two-phase commit.

    async def prepare(self) -> PreparedTransaction:
        """The first phase: deliver everything, and let the transaction wait for `complete`, also across a
        crash. Needs transaction.two.phase.commit.enable here and on the brokers.
        """
        await self._flush()
        return self._manager.prepare()

    @property
    def prepared(self) -> PreparedTransaction | None:
        """The prepared transaction that waits for its end, if there is one."""
        return self._manager.prepared

    async def complete(self, prepared: PreparedTransaction) -> bool:
        """The second phase, also after `start(keep_prepared=True)`: commit if this transaction is the one
        that waits, abort the waiting one otherwise. Returns whether it was committed.
        """
        commit = self._manager.prepared == prepared
        await self._manager.end(commit=commit)
        return commit


class Transaction:
    """One transaction, made by `producer.transaction()`."""

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
        elif self._transactions.state is not TransactionManagerState.FATAL_ERROR:
            await self._abort()

    async def _abort(self) -> None:
        """Abort; consumers whose offsets were in it return to the committed ones, and read the same records
        again.
        """
        try:
            if self._transactions.state is not TransactionManagerState.FATAL_ERROR:
                await self._transactions.abort()
        finally:
            for consumer in self._consumers:
                consumer.seek_to_committed()

    async def send_offsets(
        self,
        source: OffsetSource | Mapping[TopicPartition, CommittedOffset],
        group: GroupMember | str | None = None,
    ) -> None:
        """Commit the positions of a consumer, or given offsets of a group, as part of the transaction."""
        if isinstance(source, Mapping):
            if group is None:
                raise ValueError("offsets are committed for a group: give its id, or a GroupMember")
            await self._transactions.send_offsets(source, group)
            return
        self._consumers.append(source)
        positions = source.positions()
        member = group or (source.group_member() if positions else "")
        await self._transactions.send_offsets(positions, member)
