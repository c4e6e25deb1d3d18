"""A model around the coordinator: producers, partitions, and a network that delays, repeats and loses
messages.

The coordinator is the shard in its `TransactionHarness`; partitions are lists of what was appended, ruled by
the real `ProducerStateManager`. Everything happens by steps that a seed picks: a message arrives, or arrives
twice, or late, or its answer is lost; the coordinator dies and is loaded again from its log, at any moment
between a decision and its last marker; markers arrive one by one, some from a coordinator that has been
replaced; time passes and transactions time out; a producer is replaced while it works.

Each transaction of a producer is an `Attempt`. In the end every attempt must be visible to readers of
committed data as a whole or not at all, as the responses to its producer said.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.requests import (
    AddPartitions,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    VerifyPartitions,
    WriteMarkers,
)
from ottla.log.producers.state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.log.producers.state_manager import ProducerStateManager
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.validation import AppendOrigin
from tests.support.producer_batches import data, end

from .transaction_harness import TXN, TransactionHarness

PARTITIONS = [TopicPartition("t", index) for index in range(3)]
_TRY_AGAIN = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_REPLACED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
CONFIG = TransactionConfig(max_epoch=4, two_phase_commit_enabled=True)


@dataclass
class Partition:
    """`log` holds (producer id, attempt and number of the record) or (producer id, the decision)."""

    name: TopicPartition
    log: list[tuple[int, tuple[int, int] | bool]] = field(default_factory=list)
    producers: ProducerStateManager = field(init=False)

    def __post_init__(self) -> None:
        self.producers = ProducerStateManager(str(self.name))

    def append(
        self, producer: ProducerIdAndEpoch, sequence: int, entry: tuple[int, int], guard: VerificationGuard
    ) -> None:
        batch = data(*producer, sequence, len(self.log), transactional=True, timestamp=1)
        append = self.producers.analyze([batch], AppendOrigin.CLIENT, guard=guard)
        if append.duplicate is None:
            self.producers.apply(append)
            self.log.append((producer.id, entry))

    def end(self, marker: WriteMarkers) -> None:
        batch = end(
            *marker.writer,
            len(self.log),
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=1,
        )
        append = self.producers.analyze(
            [batch], AppendOrigin.COORDINATOR, transaction_version=marker.client_version
        )
        self.producers.apply(append)
        self.producers.on_high_watermark_updated(len(self.log) + 1)
        self.log.append((marker.writer.id, marker.commit))

    def committed(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """What a reader of committed data sees, and what is still undecided."""
        seen: list[tuple[int, int]] = []
        undecided: dict[int, list[tuple[int, int]]] = {}
        for producer_id, entry in self.log:
            if isinstance(entry, bool):
                decided = undecided.pop(producer_id, [])
                seen += decided if entry else []
            else:
                undecided.setdefault(producer_id, []).append(entry)
        return seen, [entry for entries in undecided.values() for entry in entries]


@dataclass
class Attempt:
    number: int
    writer: ProducerIdAndEpoch
    sent: dict[tuple[TopicPartition, int], bool] = field(default_factory=dict)  # whether it was confirmed
    told: bool | None = None  # committed or aborted, if the producer knows
    is_added: bool = False  # version 1: the coordinator knows of it
    is_over: bool = False


@dataclass
class Send:
    """A record on its way to a partition; `guard` once the coordinator has confirmed it."""

    attempt: Attempt
    partition: Partition
    sequence: int
    asked: bool = False
    guard: VerificationGuard = SENTINEL_GUARD


@dataclass
class Order:
    """Markers on their way."""

    marker: WriteMarkers
    left: set[TopicPartition]


class Client:
    """One producer: begins, writes, ends, again and again, until it learns that it was replaced."""

    def __init__(self, model: TransactionModel) -> None:
        self.model = model
        self.identity: ProducerIdAndEpoch | None = None
        self.attempt: Attempt | None = None
        self.sequences: dict[tuple[ProducerIdAndEpoch, TopicPartition], int] = {}
        self.decision: bool | None = None
        self.lost_an_answer = False
        self.dead = False

    def step(self) -> None:
        if self.dead:
            return
        if self.identity is None:
            self._init()
        elif self.attempt is None:
            self.attempt = self.model.new_attempt(self.identity)
        elif self.decision is None:
            self._write_or_decide()
        else:
            self._end()

    def _init(self) -> None:
        try:
            answer = self.model.lab.submit(InitProducerId(TXN, 30_000))
        except KafkaError as error:
            if error.code not in _TRY_AGAIN:
                raise AssertionError(f"a new producer was refused: {error}") from error
            return
        if not self.model.loses():
            self.identity = answer.producer

    def _write_or_decide(self) -> None:
        model, attempt = self.model, self.attempt
        assert attempt is not None
        assert self.identity is not None
        if len(attempt.sent) < 4 and model.random.random() < 0.7:
            partition = model.random.choice(model.partitions)
            key = self.identity, partition.name
            sequence = self.sequences.get(key, 0)
            self.sequences[key] = sequence + 1
            attempt.sent[partition.name, sequence] = False
            send = Send(attempt, partition, sequence)
            if model.version == 1:
                self._add_and_send(send)
            else:
                model.network.append(send)
        elif all(attempt.sent.values()) and attempt.sent and model.random.random() < 0.7:
            self.decision = True
        elif model.random.random() < 0.15:
            self.decision = False

    def _add_and_send(self, send: Send) -> None:
        """Version 1: the client adds the partition by itself, and nothing is ever late."""
        assert self.identity is not None
        try:
            self.model.lab.submit(AddPartitions(TXN, self.identity, frozenset({send.partition.name}), 0))
        except KafkaError as error:
            if error.code is ErrorCode.PRODUCER_FENCED or error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                self.dead = self is not self.model.clients[-1]
                self.decision = False
            return
        send.attempt.is_added = True
        for _ in range(2):
            self.model.arrive(send)

    def _end(self) -> None:
        model, attempt, me = self.model, self.attempt, self.identity
        assert attempt is not None
        assert me is not None
        assert self.decision is not None
        if model.version == 1 and not attempt.is_added:
            self._over(me, told=None)
            return
        request = EndTransaction(TXN, me, self.decision, 2 if model.version == 2 else 0)
        if model.version == 2 and model.random.random() < 0.3:
            model.late_ends.append(request)  # a copy that arrives whenever it likes
        try:
            after = model.lab.submit(request)
        except KafkaError as error:
            if error.code in _TRY_AGAIN:
                return
            if error.code not in _REPLACED:
                raise AssertionError(f"an end was refused: {error}") from error
            self.dead = self is not model.clients[-1]
            self._over(None, told=None)
            return
        if model.loses():
            self.lost_an_answer = True
        else:
            self._over(after, told=self.decision)

    def _over(self, identity: ProducerIdAndEpoch | None, *, told: bool | None) -> None:
        assert self.attempt is not None
        self.attempt.told = told
        self.attempt.is_over = True
        self.attempt = None
        self.decision = None
        self.identity = identity


class TransactionModel:
    def __init__(self, seed: int, version: int) -> None:
        self.random = random.Random(seed)
        self.version = version
        self.lab = TransactionHarness(CONFIG, version=version)
        self.partitions = [Partition(name) for name in PARTITIONS]
        self.attempts: list[Attempt] = []
        self.clients = [Client(self)]
        self.network: list[Send] = []
        self.late_ends: list[EndTransaction] = []
        self.orders: list[Order] = []
        self.stale_orders: list[Order] = []

    def loses(self) -> bool:
        return self.random.random() < 0.15

    def new_attempt(self, writer: ProducerIdAndEpoch) -> Attempt:
        attempt = Attempt(len(self.attempts), writer)
        self.attempts.append(attempt)
        return attempt

    # Steps

    def step(self) -> None:
        steps = (
            (30, self._let_a_client_work),
            (35, self._deliver),
            (20, self._write_a_marker),
            (3, self._deliver_a_late_end),
            (3, self._deliver_a_stale_marker),
            (2, self._crash),
            (2, lambda: self.lab.advance(self.random.randrange(1, 15_000))),
            (1, self._replace_the_producer),
            (2, self._fail_for_a_while),
        )
        self.random.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()
        self._collect_orders()
        if self.lab.fail_writes and self.random.random() < 0.2:
            self.lab.fail_writes = False
        if len(self.network) > 8:
            self.network.pop(0)  # the network loses it

    def _let_a_client_work(self) -> None:
        zombies = [client for client in self.clients[:-1] if not client.dead]
        if zombies and self.random.random() < 0.2:
            self.random.choice(zombies).step()
        else:
            self.clients[-1].step()

    def _deliver(self) -> None:
        if self.network:
            send = self.network[self.random.randrange(len(self.network))]
            self.arrive(send)
            confirmed = send.attempt.sent[send.partition.name, send.sequence]
            if (confirmed or send.attempt.is_over) and self.random.random() < 0.6:
                self.network.remove(send)

    def arrive(self, send: Send) -> None:
        """The message comes to the partition's leader: it asks first, and appends in a step of its own."""
        producer, partition = send.attempt.writer, send.partition
        try:
            if not send.asked:
                send.guard = partition.producers.maybe_start_verification(
                    producer.id,
                    send.sequence,
                    producer.epoch,
                    supports_epoch_bump=self.version == 2,
                    now_ms=0,
                )
                if send.guard is not SENTINEL_GUARD:
                    self._ask(producer, partition.name)
                send.asked = True
                return
            send.asked = False
            partition.append(producer, send.sequence, (send.attempt.number, send.sequence), send.guard)
        except KafkaError:
            return
        if not self.loses():
            send.attempt.sent[partition.name, send.sequence] = True

    def _ask(self, producer: ProducerIdAndEpoch, partition: TopicPartition) -> None:
        if self.version == 2:
            self.lab.submit(AddPartitions(TXN, producer, frozenset({partition}), 2))
            return
        code = self.lab.submit(VerifyPartitions(TXN, producer, frozenset({partition})))[partition]
        if code is not ErrorCode.NONE:
            raise KafkaError(code)

    def _collect_orders(self) -> None:
        self.orders += [Order(marker, set(marker.partitions)) for marker in self.lab.markers]
        self.lab.markers.clear()

    def _write_a_marker(self) -> None:
        if not self.orders:
            return
        order = self.random.choice(self.orders)
        if order.left:
            self._mark(order)
        if not order.left:
            self.orders.remove(order)
            self.lab.submit(MarkersWritten(TXN, order.marker.writer))

    def _mark(self, order: Order) -> None:
        name = self.random.choice(sorted(order.left))
        partition = next(each for each in self.partitions if each.name == name)
        try:
            partition.end(order.marker)
        except KafkaError as error:
            if order in self.orders:
                raise AssertionError(f"the marker of the present coordinator was refused: {error}") from error
        order.left.discard(name)

    def _deliver_a_late_end(self) -> None:
        if self.late_ends:
            self.lab.code(self.random.choice(self.late_ends))

    def _deliver_a_stale_marker(self) -> None:
        if self.stale_orders:
            order = self.random.choice(self.stale_orders)
            if order.left:
                self._mark(order)

    def _crash(self) -> None:
        before = dict(self.lab.shard.transactions)
        self.stale_orders += self.orders
        self.orders.clear()
        self.lab.reload()
        assert self.lab.shard.transactions == before, "the log does not hold the state"

    def _replace_the_producer(self) -> None:
        self.clients.append(Client(self))
        if len(self.clients) > 3:
            self.clients.pop(0)

    def _fail_for_a_while(self) -> None:
        self.lab.fail_writes = True

    # The end

    def settle(self) -> None:
        """Let everything on its way arrive, and whatever is open time out."""
        self.lab.fail_writes = False
        self.network.clear()
        for _ in range(200):
            self._collect_orders()
            if not self.orders:
                self.lab.leap(60_000)
                self._collect_orders()
                if not self.orders:
                    return
            self._write_a_marker()
        raise AssertionError("the markers never came to an end")

    def check(self) -> None:
        visible: dict[int, set[tuple[TopicPartition, int]]] = {}
        written: dict[int, set[tuple[TopicPartition, int]]] = {}
        for partition in self.partitions:
            seen, undecided = partition.committed()
            assert not undecided, f"{partition.name}: a transaction hangs: {undecided}"
            assert partition.producers.first_unstable_offset() is None
            assert len(seen) == len(set(seen)), f"{partition.name}: a record is there twice"
            for number, sequence in seen:
                visible.setdefault(number, set()).add((partition.name, sequence))
            for _, entry in partition.log:
                if not isinstance(entry, bool):
                    written.setdefault(entry[0], set()).add((partition.name, entry[1]))
        for attempt in self.attempts:
            seen_of = visible.get(attempt.number, set())
            if seen_of:
                assert seen_of == written[attempt.number], f"attempt {attempt.number} is torn"
                assert attempt.told is not False, f"attempt {attempt.number} was aborted, and is visible"
            if attempt.told:
                lost = {where for where, confirmed in attempt.sent.items() if confirmed} - seen_of
                assert not lost, f"attempt {attempt.number} was committed and lost {lost}"
