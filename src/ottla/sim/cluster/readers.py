"""Those who read: everything again and again, as members of a group of either protocol, and those who copy
what they read in the transaction that commits their offsets.
"""

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
from ottla.sim.cluster.environment import COPIES, Stage, attempt
from ottla.sim.cluster.journal import Commit, Fate, GroupStory, Sent, Transaction, copy_of
from ottla.sim.cluster.writers import producer_settings

__all__ = ["Copier", "Follower", "GroupReader"]

ByteConsumer = Consumer[bytes, bytes]


def consumer_settings() -> dict[str, Any]:
    return {
        "auto_offset_reset": "earliest",
        "request_timeout_ms": 2_000,
        "default_api_timeout_ms": 8_000,
        "metadata_max_age_ms": 5_000,
        "allow_auto_create_topics": False,
    }


class Follower:
    """Reads all partitions of all topics, in no group's name, and now and then begins anew."""

    def __init__(self, stage: Stage, name: str, *, read_committed: bool) -> None:
        self._stage = stage
        self.name = name
        self._read_committed = read_committed

    async def main(self, runtime: Runtime) -> None:
        stage = self._stage
        while not stage.draining:
            await attempt(stage, self.name, lambda: self._session(runtime))
            await asyncio.sleep(runtime.random.random())
        stage.ended.add(self.name)

    async def _session(self, runtime: Runtime) -> None:
        stage = self._stage
        reader: ByteConsumer = Consumer(
            stage.servers,
            runtime=runtime,
            isolation_level="read_committed" if self._read_committed else "read_uncommitted",
            **consumer_settings(),
        )
        async with reader as consumer:
            polls = runtime.random.randrange(5, 60)
            topics = [(t, p) for t in stage.topics for p in range(stage.partitions(t))]
            consumer.assign(topics)
            last: dict[tuple[str, int], int] = {}
            while polls and not stage.draining:
                polls -= 1
                for record in await consumer.poll(timeout_ms=500):
                    key = (record.topic, record.partition)
                    stage.journal.reads += 1
                    stage.checker.read(
                        *key, record.offset, _bytes(record.value), read_committed=self._read_committed
                    )
                    if record.offset <= last.get(key, -1):
                        stage.world.violated(
                            f"{self.name} read {record.topic}-{record.partition} {record.offset} after "
                            f"{last[key]}"
                        )
                    last[key] = record.offset


class _ChangedItsMindError(Exception):
    """A transaction is aborted for no reason but its own."""


class _Assigned:
    """Notes what was confirmed when a partition came, as the member must not begin before that."""

    def __init__(self, story: GroupStory) -> None:
        self._story = story
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
    """A member of a group that commits what it has read, until the group has read everything."""

    def __init__(self, stage: Stage, name: str, story: GroupStory, *, protocol: str) -> None:
        self._stage = stage
        self.name = name
        self.story = story
        self._protocol = protocol

    async def main(self, runtime: Runtime) -> None:
        stage = self._stage
        while not self._is_over():
            await attempt(stage, self.name, lambda: self._session(runtime))
            await asyncio.sleep(runtime.random.random() * 2)
        stage.ended.add(self.name)

    def _is_over(self) -> bool:
        return self._stage.draining and is_drained(self._stage, self.story)

    def consumer(self, runtime: Runtime) -> ByteConsumer:
        modern = self._protocol == "consumer"
        times: dict[str, Any] = {} if modern else {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 500}
        consumer: ByteConsumer = Consumer(
            self._stage.servers,
            runtime=runtime,
            group_id=self.story.name,
            group_protocol=self._protocol,
            partition_assignment_strategy=self.story.strategy,
            enable_auto_commit=False,
            isolation_level="read_committed" if self.story.read_committed else "read_uncommitted",
            max_poll_records=runtime.random.randrange(1, 40),
            **times,
            **consumer_settings(),
        )
        return consumer

    async def _session(self, runtime: Runtime) -> None:
        async with self.consumer(runtime) as consumer:
            assigned = _Assigned(self.story)
            consumer.subscribe(self.story.topics, listener=assigned)
            polls = runtime.random.randrange(5, 100)
            while polls and not self._is_over():
                polls -= 1
                records = await consumer.poll(timeout_ms=500)
                self.note(records, assigned)
                await _work(records, runtime)
                if runtime.random.random() < 0.5 or self._stage.draining:
                    await self._commit(consumer)

    def note(self, records: Sequence[Any], assigned: _Assigned) -> None:
        stage, story = self._stage, self.story
        for record in records:
            key = (record.topic, record.partition)
            stage.journal.reads += 1
            stage.checker.read(*key, record.offset, _bytes(record.value), read_committed=story.read_committed)
            least = assigned.least.pop(key, 0)
            late = any(c.offset <= record.offset and c.fate is not Fate.DONE for c in story.commits[key])
            if record.offset < least and not late:
                stage.world.violated(
                    f"{self.name} of group {story.name} begins at {record.topic}-{record.partition} "
                    f"{record.offset}, and {least} was confirmed"
                )
            story.read[key].add(record.offset)

    async def _commit(self, consumer: ByteConsumer) -> None:
        commits = note_commits(self.story, consumer.positions())
        try:
            if commits:
                await consumer.commit()
        except KafkaError as error:
            for commit in commits:
                commit.fate = Fate.UNKNOWN
            self._stage.tell(self.name, f"cannot commit: {error}")
            return
        for commit in commits:
            commit.fate = Fate.DONE


class Copier(GroupReader):
    """Writes a copy of each record that it is given, in the transaction that commits its offsets."""

    async def _session(self, runtime: Runtime) -> None:
        async with (
            Producer(
                self._stage.servers,
                runtime=runtime,
                transactional_id=f"{self.story.name}-{self.name}",
                transaction_timeout_ms=6_000,
                **producer_settings(runtime),
            ) as producer,
            self.consumer(runtime) as consumer,
        ):
            assigned = _Assigned(self.story)
            consumer.subscribe(self.story.topics, listener=assigned)
            polls = runtime.random.randrange(5, 60)
            while polls and not self._is_over():
                polls -= 1
                records = await consumer.poll(timeout_ms=500)
                self.note(records, assigned)
                await _work(records, runtime)
                if records:
                    await self._copy(producer, consumer, records, runtime)
                elif self._stage.draining:
                    await self._ask_for_commits(consumer)

    async def _ask_for_commits(self, consumer: ByteConsumer) -> None:
        """A transaction of which nobody heard the end may have committed the last of it."""
        for partition, committed in (await consumer.committed()).items():
            if committed is not None:
                key = (partition.topic, partition.partition)
                self.story.commits[key].append(Commit(committed.offset, Fate.DONE))

    async def _copy(
        self, producer: Producer, consumer: ByteConsumer, records: Sequence[Any], runtime: Runtime
    ) -> None:
        stage = self._stage
        name = f"{self.name}.{len(stage.journal.transactions)}"
        transaction = Transaction(name)
        stage.journal.transactions.append(transaction)
        commits: list[Commit] = []
        try:
            async with producer.transaction() as open_transaction:
                await producer.ready(COPIES)
                count = len(await producer.partitions_for(COPIES))
                for number, record in enumerate(records):
                    value = copy_of(self.story, _bytes(record.value), name)
                    partition = record.offset % count
                    sent = Sent(COPIES, partition, value, -1, True, name, number)
                    transaction.records.append(sent)
                    producer.send_nowait(COPIES, value, partition=partition)
                positions = consumer.positions()
                commits = note_commits(self.story, positions)
                await open_transaction.send_offsets(consumer)
                if runtime.random.random() < 0.1:
                    raise _ChangedItsMindError("it changed its mind")
                transaction.fate = Fate.UNKNOWN
            transaction.fate = Fate.DONE
        except (TransactionAborted, _ChangedItsMindError) as error:
            transaction.fate = Fate.FAILED
            stage.tell(self.name, f"aborted: {error}")
        finally:
            for commit in commits:
                commit.fate = Fate.DONE if transaction.fate is Fate.DONE else Fate.UNKNOWN


def note_commits(story: GroupStory, positions: dict[TopicPartition, CommittedOffset]) -> list[Commit]:
    commits = []
    for partition, position in positions.items():
        commit = Commit(position.offset)
        story.commits[partition.topic, partition.partition].append(commit)
        commits.append(commit)
    return commits


def is_drained(stage: Stage, story: GroupStory) -> bool:
    """Whether the group has read and committed all that there is to read."""
    for topic in story.topics:
        for index in range(stage.partitions(topic)):
            line = stage.checker.line(topic, index)
            if line is None:
                continue
            entries = line.visible() if story.read_committed else list(line.entries.values())
            if entries and story.acknowledged((topic, index)) <= entries[-1].offset:
                return False
    return True


async def _work(records: Sequence[Any], runtime: Runtime) -> None:
    """Whoever does something with records takes a while, and much can happen meanwhile."""
    if records:
        await asyncio.sleep(runtime.random.random() * 0.3)


def _bytes(value: Any) -> bytes:
    return bytes(value or b"")
