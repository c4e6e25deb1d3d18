"""Producers: with every `acks`, idempotent or not, and in transactions over several partitions."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.client.errors import TransactionAborted
from ottla.client.producer import PreparedTransaction, Producer
from ottla.protocol.errors import KafkaError
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.environment import EVENTS, LATEST, ORDERS, ClusterEnvironment, attempt, key_of, keyed
from ottla.sim.cluster.journal import ClientTransaction, OperationState, SentRecord


def producer_settings(runtime: Runtime) -> dict[str, Any]:
    """Settings of producers, with shorter timeouts than Kafka's: a run is short."""
    return {
        "request_timeout_ms": 2_000,
        "delivery_timeout_ms": 8_000,
        "max_block_ms": 8_000,
        "linger_ms": runtime.random.randrange(0, 20),
        "metadata_max_age_ms": 10_000,
    }


class Writer:
    """Sends waves of records to one topic; a producer that gives up is replaced by another one."""

    def __init__(
        self,
        environment: ClusterEnvironment,
        name: str,
        *,
        acks: int,
        idempotent: bool,
        topic: str | None = None,
    ) -> None:
        self._environment = environment
        self.name = name
        self._acks = acks
        self._idempotent = idempotent
        self._topics = (topic,) if topic is not None else (ORDERS, EVENTS) if idempotent else (EVENTS,)
        self._sessions = 0

    async def main(self, runtime: Runtime) -> None:
        environment = self._environment
        while not environment.stopping:
            self._sessions += 1
            await attempt(environment, self.name, lambda: self._session(runtime))
            await asyncio.sleep(runtime.random.random())
        environment.ended.add(self.name)

    async def _session(self, runtime: Runtime) -> None:
        session = f"{self.name}.{self._sessions}"
        async with Producer(
            self._environment.servers,
            runtime=runtime,
            acks=self._acks,
            enable_idempotence=self._idempotent,
            **producer_settings(runtime),
        ) as producer:
            number = 0
            waves = runtime.random.randrange(10, 200)
            while not self._environment.stopping and waves:
                waves -= 1
                size = runtime.random.randrange(1, 5)
                await self._wave(producer, session, range(number, number + size), runtime)
                number += size
                await asyncio.sleep(runtime.random.random() * 0.3)

    async def _wave(self, producer: Producer, session: str, numbers: range, runtime: Runtime) -> None:
        topic = self._topics[-1 if runtime.random.random() < 0.2 else 0]
        await producer.ready(topic)
        count = len(await producer.partitions_for(topic))
        wave = []
        for number in numbers:
            value = f"{session}.{number}".encode()
            key = None
            if topic == LATEST:
                value = keyed(value.decode(), runtime.random)
                key = key_of(value)
            partition = runtime.random.randrange(0, count) if key is None else key[-1] % count
            sent = SentRecord(topic, partition, value, self._acks, self._idempotent, session, number)
            self._environment.on_sent(sent)
            wave.append((sent, producer.send_nowait(topic, value, key=key, partition=partition)))
        for sent, delivery in wave:
            try:
                metadata = await delivery
            except KafkaError as error:
                sent.state = OperationState.FAILED
                self._environment.trace(self.name, f"{sent.value.decode()} failed: {error}")
                continue
            self._environment.on_delivered(sent, metadata.offset)


class TransactionalWriter:
    """Writes transactions over all topics that may be written to; some are aborted.

    Two writers may share a transactional id and fence each other.
    """

    def __init__(self, environment: ClusterEnvironment, name: str, *, transactional_id: str) -> None:
        self._environment = environment
        self.name = name
        self._id = transactional_id
        self._sessions = 0

    async def main(self, runtime: Runtime) -> None:
        environment = self._environment
        while not environment.stopping:
            self._sessions += 1
            await attempt(environment, self.name, lambda: self._session(runtime))
            await asyncio.sleep(runtime.random.random() * 3)
        environment.ended.add(self.name)

    async def _session(self, runtime: Runtime) -> None:
        session = f"{self.name}.{self._sessions}"
        async with Producer(
            self._environment.servers,
            runtime=runtime,
            transactional_id=self._id,
            transaction_timeout_ms=runtime.random.randrange(2_000, 10_000),
            **producer_settings(runtime),
        ) as producer:
            number = 0
            while not self._environment.stopping and number < 100:
                number += 1
                await self._transaction(producer, f"{session}.{number}", runtime)
                await asyncio.sleep(runtime.random.random() * 0.5)

    async def _transaction(self, producer: Producer, name: str, runtime: Runtime) -> None:
        transaction = ClientTransaction(name)
        self._environment.journal.transactions.append(transaction)
        producer.transactions.begin()
        try:
            await self._fill(producer, transaction, runtime)
            if runtime.random.random() < 0.25:
                await producer.transactions.abort()
                transaction.state = OperationState.FAILED
                return
            transaction.state = OperationState.UNKNOWN
            await producer.transactions.commit()
            transaction.state = OperationState.DONE
        except TransactionAborted:
            transaction.state = OperationState.OPEN
            await producer.transactions.abort()
            transaction.state = OperationState.FAILED

    async def _fill(self, producer: Producer, transaction: ClientTransaction, runtime: Runtime) -> None:
        await fill_transaction(self._environment, producer, transaction, runtime)


class TwoPhaseWriter:
    """Prepares transactions, decides elsewhere whether they commit, and ends them so, in this process or in
    the next one.

    Its decisions outlive it, as in a database. A transaction that was prepared and decided is what the
    decision says, whatever happens; one without a decision is aborted.
    """

    def __init__(self, environment: ClusterEnvironment, name: str) -> None:
        self._environment = environment
        self.name = name
        self._sessions = 0
        # The prepared transaction that is to be committed, and whether one may be open.
        self._decision: PreparedTransaction | None = None
        self._may_be_open = False

    async def main(self, runtime: Runtime) -> None:
        environment = self._environment
        while not environment.stopping or self._may_be_open:
            self._sessions += 1
            await attempt(environment, self.name, lambda: self._session(runtime))
            await asyncio.sleep(runtime.random.random())
        environment.ended.add(self.name)

    async def _session(self, runtime: Runtime) -> None:
        session = f"{self.name}.{self._sessions}"
        producer = Producer(
            self._environment.servers,
            runtime=runtime,
            transactional_id=self.name,
            transaction_two_phase_commit_enable=True,
            **producer_settings(runtime),
        )
        await producer.start(keep_prepared=True)
        try:
            if producer.transactions.prepared is not None:
                self._environment.world.coverage["two-phase: ended by the next producer"] += 1
                await self._end(producer)
            self._may_be_open = False
            number = 0
            while not self._environment.stopping and number < 20:
                number += 1
                await self._transaction(producer, f"{session}.{number}", runtime)
                await asyncio.sleep(runtime.random.random() * 0.5)
        finally:
            await producer.close(timeout_ms=1_000)

    async def _transaction(self, producer: Producer, name: str, runtime: Runtime) -> None:
        transaction = ClientTransaction(name, state=OperationState.FAILED)
        self._environment.journal.transactions.append(transaction)
        self._decision, self._may_be_open = None, True
        producer.transactions.begin()
        try:
            await fill_transaction(self._environment, producer, transaction, runtime)
            prepared = await producer.transactions.prepare()
        except TransactionAborted:
            await producer.transactions.abort()
            self._may_be_open = False
            return
        self._environment.trace(self.name, f"has prepared {name}")
        await asyncio.sleep(runtime.random.random())
        if runtime.random.random() < 0.7:
            self._decision, transaction.state = prepared, OperationState.DONE
            self._environment.trace(self.name, f"decides to commit {name}")
        await asyncio.sleep(runtime.random.random())
        await self._end(producer)
        self._may_be_open = False

    async def _end(self, producer: Producer) -> None:
        """End the prepared transaction as it was decided."""
        decision = self._decision or PreparedTransaction(-1, -1)
        committed = await producer.transactions.complete(decision)
        self._environment.world.coverage[f"two-phase: {'committed' if committed else 'aborted'}"] += 1


async def fill_transaction(
    environment: ClusterEnvironment, producer: Producer, transaction: ClientTransaction, runtime: Runtime
) -> None:
    """Send a few records in an open transaction, and wait for some of them."""
    random = runtime.random
    wave = []
    for number in range(random.randrange(1, 6)):
        topic = ORDERS if random.random() < 0.6 else EVENTS
        key, value = None, f"{transaction.name}.{number}".encode()
        if LATEST in environment.topics and random.random() < 0.4:
            topic, value = LATEST, keyed(value.decode(), random)
            key = key_of(value)
        await producer.ready(topic)
        count = len(await producer.partitions_for(topic))
        partition = random.randrange(0, count) if key is None else key[-1] % count
        sent = SentRecord(topic, partition, value, -1, True, transaction.name, number)
        transaction.records.append(sent)
        environment.on_sent(sent)
        wave.append((sent, producer.send_nowait(topic, value, key=key, partition=partition)))
        if random.random() < 0.3:
            await asyncio.sleep(random.random() * 0.3)
    for sent, delivery in wave:
        if random.random() < 0.5:
            environment.on_delivered(sent, (await delivery).offset)
