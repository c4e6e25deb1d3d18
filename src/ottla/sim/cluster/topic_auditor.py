"""Reads topics from their beginnings through the brokers, and compares them with the history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from ottla.client.consumer import Consumer
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.environment import ClusterEnvironment, key_of
from ottla.sim.cluster.readers import ByteConsumer, consumer_settings

Records = list[tuple[int, bytes | None]]


class TopicAuditor:
    """A client that reads everything once with each isolation level."""

    def __init__(self, environment: ClusterEnvironment, topics: Sequence[str]) -> None:
        self._environment = environment
        self._topics = topics
        # What was read, by isolation level and partition.
        self._read: dict[tuple[str, TopicPartition], Records] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._level = ""
        self.is_done = False

    def _partitions(self) -> list[TopicPartition]:
        counts = {topic: self._environment.partitions(topic) for topic in self._topics}
        return [TopicPartition(topic, index) for topic in self._topics for index in range(counts[topic])]

    def _end(self, tp: TopicPartition) -> int:
        history = self._environment.checker.history(tp.topic, tp.partition)
        return 0 if history is None else history.end

    async def main(self, runtime: Runtime) -> None:
        for level in ("read_uncommitted", "read_committed"):
            self._level = level
            while True:
                try:
                    await self._read_all(runtime, level)
                    break
                except (KafkaError, OSError) as error:
                    self._environment.trace("auditor", f"tries again: {error}")
                    await asyncio.sleep(0.5)
        self.is_done = True

    async def _read_all(self, runtime: Runtime, level: str) -> None:
        partitions = self._partitions()
        for tp in partitions:
            self._read[level, tp] = []
        self._positions = dict.fromkeys(partitions, 0)
        reader: ByteConsumer = Consumer(
            self._environment.servers, runtime=runtime, isolation_level=level, **consumer_settings()
        )
        async with reader as consumer:
            consumer.assign(partitions)
            while self._left():
                for record in await consumer.poll(timeout_ms=500):
                    value = None if record.value is None else bytes(record.value)
                    tp = TopicPartition(record.topic, record.partition)
                    self._read[level, tp].append((record.offset, value))
                self._positions.update({tp: position.offset for tp, position in consumer.positions().items()})

    def _left(self) -> list[TopicPartition]:
        return [tp for tp, position in self._positions.items() if position < self._end(tp)]

    def reason_not_done(self) -> str | None:
        if self.is_done:
            return None
        left = [f"{tp} from {self._positions[tp]} to {self._end(tp)}" for tp in self._left()]
        return f"{self._level} cannot read {', '.join(left) or 'anything'}"

    def differences(self, starts: Mapping[TopicPartition, int]) -> Iterator[str]:
        """What differs from the committed history, from the log start of each partition on. Retention moves
        starts meanwhile: what was read below one has to be right, but need not be all there was.
        """
        for (level, tp), read in self._read.items():
            history = self._environment.checker.history(tp.topic, tp.partition)
            if history is None:
                continue
            entries = history.visible() if level == "read_committed" else list(history.entries.values())
            start = starts.get(tp, 0)
            early = {offset for offset, _ in read if offset < start}
            wanted = [
                (each.offset, each.value) for each in entries if each.offset >= start or each.offset in early
            ]
            if read != wanted:
                yield f"{tp} read from its start {start} on, {level}: {_difference(read, wanted)}"

    @property
    def gone(self) -> int:
        """How many committed records were not read."""
        histories = {tp: self._environment.checker.history(tp.topic, tp.partition) for _, tp in self._read}
        entries = sum(len(history.entries) for history in histories.values() if history is not None)
        return entries - sum(
            len(read) for (level, _), read in self._read.items() if level == "read_uncommitted"
        )

    def missing_keys(self) -> Iterator[str]:
        """What differs from the committed history, where the topics are compacted: each record that was read
        was committed, and the last one of each key is there.
        """
        for (level, tp), read in self._read.items():
            history = self._environment.checker.history(tp.topic, tp.partition)
            if history is None:
                continue
            committed = {each.offset: each.value for each in history.entries.values()}
            wrong = [(offset, value) for offset, value in read if committed.get(offset) != value]
            if wrong:
                yield f"{wrong[0]} was read from {tp}, where {committed.get(wrong[0][0])!r} was committed"
            if [offset for offset, _ in read] != sorted({offset for offset, _ in read}):
                yield f"{tp} was not read in order, {level}"
            last = {key_of(each.value): each for each in history.visible()}
            offsets = {offset for offset, _ in read}
            for entry in last.values():
                if entry.offset not in offsets:
                    yield f"the last record of its key in {tp} is missing, {level}: {entry!r}"


def _difference(read: Records, wanted: Records) -> str:
    for found, expected in zip(read, wanted, strict=False):
        if found != expected:
            return f"{found} was read, where {expected} was committed"
    extra, missing = read[len(wanted) :], wanted[len(read) :]
    return f"{extra[0]} was read in addition" if extra else f"{missing[0]} is missing at the end"
