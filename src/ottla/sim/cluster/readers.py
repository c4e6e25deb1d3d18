"""Consumers: without a group, as members of a group of either protocol, and in consume-transform-produce."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ottla.client.consumer import Consumer
from ottla.client.errors import TransactionAborted
from ottla.client.group_offsets import CommittedOffset
from ottla.client.producer import Producer
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.environment import COPIES, ClusterEnvironment, attempt
from ottla.sim.cluster.journal import (
    ClientTransaction,
    GroupHistory,
    OffsetCommit,
    OperationState,
    SentRecord,
    copy_of,
)
from ottla.sim.cluster.writers import producer_settings

ByteConsumer = Consumer[bytes, bytes]


def consumer_settings() -> dict[str, Any]:
    return {
        "auto_offset_reset": "earliest",
        "request_timeout_ms": 2_000,
        "default_api_timeout_ms": 8_000,
        "metadata_max_age_ms": 5_000,
        "allow_auto_create_topics": False,
        # Brokers serve nothing damaged; consumers need not find that out.
        "check_crcs": False,
    }


class StandaloneReader:
    """Reads all partitions of all topics without a group, from the beginning in each session."""

    def __init__(self, environment: ClusterEnvironment, name: str, *, read_committed: bool) -> None:
        self._environment = environment
        self.name = name
        self._read_committed = read_committed

    async def main(self, runtime: Runtime) -> None:
        environment = self._environment
        while not environment.draining:
            await attempt(environment, self.name, lambda: self._session(runtime))
            await asyncio.sleep(runtime.random.random())
        environment.ended.add(self.name)

    async def _session(self, runtime: Runtime) -> None:
        environment = self._environment
        reader: ByteConsumer = Consumer(
            environment.servers,
            runtime=runtime,
            isolation_level="read_committed" if self._read_committed else "read_uncommitted",
            **consumer_settings(),
        )
        async with reader as consumer:
            polls = runtime.random.randrange(5, 60)
            topics = [(t, p) for t in environment.topics for p in range(environment.partitions(t))]
            consumer.assign(topics)
            last: dict[tuple[str, int], int] = {}
            while polls and not environment.draining:
                polls -= 1
                for record in await consumer.poll(timeout_ms=500):
                    key = (record.topic, record.partition)
                    environment.journal.reads += 1
                    environment.checker.on_read(
                        *key, record.offset, _bytes(record.value), read_committed=self._read_committed
                    )
                    if record.offset <= last.get(key, -1):
                        environment.world.report_violation(
                            f"{self.name} read {record.topic}-{record.partition} {record.offset} after "
                            f"{last[key]}"
                        )
                    last[key] = record.offset


class _AbortOnPurposeError(Exception):
    """Raised to abort a transaction on purpose."""


class _Assigned:
    """Notes the confirmed offset of each assigned partition: the member must not begin before it."""

    def __init__(self, group: GroupHistory) -> None:
        self._story = group
        self.least: dict[tuple[str, int], int] = {}

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            key = (partition.topic, partition.partition)
            self.least[key] = self._story.acknowledged(key)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.least.pop((partition.topic, partition.partition), None)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.on_partitions_revoked(partitions)


class GroupReader:
    """A member of a group that reads and commits, until the group has read everything."""

    def __init__(
        self, environment: ClusterEnvironment, name: str, group: GroupHistory, *, protocol: str
    ) -> None:
        self._environment = environment
        self.name = name
        self.group = group
        self._protocol = protocol

    async def main(self, runtime: Runtime) -> None:
        environment = self._environment
        while not self._is_over():
            await attempt(environment, self.name, lambda: self._session(runtime))
            await asyncio.sleep(runtime.random.random() * 2)
        environment.ended.add(self.name)

    def _is_over(self) -> bool:
        return self._environment.draining and is_drained(self._environment, self.group)

    def consumer(self, runtime: Runtime) -> ByteConsumer:
        is_consumer_protocol = self._protocol == "consumer"
        times: dict[str, Any] = (
            {} if is_consumer_protocol else {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 500}
        )
        consumer: ByteConsumer = Consumer(
            self._environment.servers,
            runtime=runtime,
            group_id=self.group.name,
            group_protocol=self._protocol,
            partition_assignment_strategy=self.group.strategy,
            enable_auto_commit=False,
            isolation_level="read_committed" if self.group.read_committed else "read_uncommitted",
            max_poll_records=runtime.random.randrange(1, 40),
            **times,
            **consumer_settings(),
        )
        return consumer

    async def _session(self, runtime: Runtime) -> None:
        async with self.consumer(runtime) as consumer:
            assigned = _Assigned(self.group)
            consumer.subscribe(self.group.topics, listener=assigned)
            polls = runtime.random.randrange(5, 100)
            while polls and not self._is_over():
                polls -= 1
                records = await consumer.poll(timeout_ms=500)
                self.note(records, assigned)
                await _work(records, runtime)
                if runtime.random.random() < 0.5 or self._environment.draining:
                    await self._commit(consumer)

    def note(self, records: Sequence[Any], assigned: _Assigned) -> None:
        environment, group = self._environment, self.group
        for record in records:
            key = (record.topic, record.partition)
            environment.journal.reads += 1
            environment.checker.on_read(
                *key, record.offset, _bytes(record.value), read_committed=group.read_committed
            )
            least = assigned.least.pop(key, 0)
            late = any(
                c.offset <= record.offset and c.state is not OperationState.DONE for c in group.commits[key]
            )
            if record.offset < least and not late:
                environment.world.report_violation(
                    f"{self.name} of group {group.name} begins at {record.topic}-{record.partition} "
                    f"{record.offset}, and {least} was confirmed"
                )
            group.read[key].add(record.offset)

    async def _commit(self, consumer: ByteConsumer) -> None:
        commits = note_commits(self.group, consumer.positions())
        try:
            if commits:
                await consumer.commit()
        except KafkaError as error:
            for commit in commits:
                commit.state = OperationState.UNKNOWN
            self._environment.trace(self.name, f"cannot commit: {error}")
            return
        for commit in commits:
            commit.state = OperationState.DONE


class Copier(GroupReader):
    """Writes a copy of each record that it reads, in the transaction that commits its offsets."""

    async def _session(self, runtime: Runtime) -> None:
        async with (
            Producer(
                self._environment.servers,
                runtime=runtime,
                transactional_id=f"{self.group.name}-{self.name}",
                transaction_timeout_ms=6_000,
                **producer_settings(runtime),
            ) as producer,
            self.consumer(runtime) as consumer,
        ):
            assigned = _Assigned(self.group)
            consumer.subscribe(self.group.topics, listener=assigned)
            polls = runtime.random.randrange(5, 60)
            while polls and not self._is_over():
                polls -= 1
                records = await consumer.poll(timeout_ms=500)
                self.note(records, assigned)
                await _work(records, runtime)
                if records:
                    await self._copy(producer, consumer, records, runtime)
                elif self._environment.draining:
                    await self._note_committed(consumer)

    async def _note_committed(self, consumer: ByteConsumer) -> None:
        """Read the committed offsets: a transaction with an unknown outcome may have committed them."""
        for partition, committed in (await consumer.committed()).items():
            if committed is not None:
                key = (partition.topic, partition.partition)
                self.group.commits[key].append(OffsetCommit(committed.offset, OperationState.DONE))

    async def _copy(
        self, producer: Producer, consumer: ByteConsumer, records: Sequence[Any], runtime: Runtime
    ) -> None:
        environment = self._environment
        name = f"{self.name}.{len(environment.journal.transactions)}"
        transaction = ClientTransaction(name)
        environment.journal.transactions.append(transaction)
        commits: list[OffsetCommit] = []
        try:
            async with producer.transaction() as open_transaction:
                await producer.ready(COPIES)
                count = len(await producer.partitions_for(COPIES))
                for number, record in enumerate(records):
                    value = copy_of(self.group, _bytes(record.value), name)
                    partition = record.offset % count
                    sent = SentRecord(COPIES, partition, value, -1, True, name, number)
                    transaction.records.append(sent)
                    producer.send_nowait(COPIES, value, partition=partition)
                positions = consumer.positions()
                commits = note_commits(self.group, positions)
                await open_transaction.send_offsets(consumer)
                if runtime.random.random() < 0.1:
                    raise _AbortOnPurposeError("on purpose")
                transaction.state = OperationState.UNKNOWN
            transaction.state = OperationState.DONE
        except (TransactionAborted, _AbortOnPurposeError) as error:
            transaction.state = OperationState.FAILED
            environment.trace(self.name, f"aborted: {error}")
        finally:
            for commit in commits:
                commit.state = (
                    OperationState.DONE
                    if transaction.state is OperationState.DONE
                    else OperationState.UNKNOWN
                )


def note_commits(group: GroupHistory, positions: dict[TopicPartition, CommittedOffset]) -> list[OffsetCommit]:
    commits = []
    for partition, position in positions.items():
        commit = OffsetCommit(position.offset)
        group.commits[partition.topic, partition.partition].append(commit)
        commits.append(commit)
    return commits


def is_drained(environment: ClusterEnvironment, group: GroupHistory) -> bool:
    """Whether the group has read and committed everything."""
    for topic in group.topics:
        for index in range(environment.partitions(topic)):
            history = environment.checker.history(topic, index)
            if history is None:
                continue
            entries = history.visible() if group.read_committed else list(history.entries.values())
            if entries and group.acknowledged((topic, index)) <= entries[-1].offset:
                return False
    return True


async def _work(records: Sequence[Any], runtime: Runtime) -> None:
    """Take some time for the records, so that faults happen meanwhile."""
    if records:
        await asyncio.sleep(runtime.random.random() * 0.3)


def _bytes(value: Any) -> bytes:
    return bytes(value or b"")
