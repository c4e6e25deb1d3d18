"""Random walks: long scripts of requests about a few topics, made from a seed.

A walk knows nothing but its seed and the ids it is given, so that it is the same against every broker. It
produces (with and without sequences, repeats and gaps), fetches (with and without a session), looks up
offsets, deletes records, grows, deletes and creates topics again, and changes settings, in random versions.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ottla.protocol.messages import describe_producers as producers
from ottla.protocol.messages import incremental_alter_configs as configs
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.schema import Request
from ottla.records.batch import Codec
from ottla.records.builder import build_batch
from tests.kafka.scripts.kit import (
    SCRIPTS,
    TIMEOUT_MS,
    TIMESTAMP,
    await_leaders,
    keep_topics,
    make_topic,
    new_producer,
)
from tests.support.differential import Script, Session
from tests.support.effort import THOROUGH

SEEDS = range(12 if THOROUGH else 4)
STEPS = 120
NAMES = ("a", "b", "c")


@dataclass(slots=True)
class Walk:
    """One broker's part in a walk. What `chance` decides must not depend on an answer."""

    session: Session
    seed: int
    chance: random.Random
    producer_id: int
    ids: dict[str, bytes] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    fetch_session: tuple[int, int] = (0, 0)

    def run(self) -> None:
        for name in NAMES:
            self._make(f"walk-{self.seed}-{name}")
        weights: dict[Callable[[], None], int] = {
            self.produce: 30,
            self.produce_in_sequence: 15,
            self.fetch: 25,
            self.fetch_in_session: 15,
            self.list_offsets: 15,
            self.leader_epochs: 4,
            self.delete_records: 6,
            self.metadata: 6,
            self.grow: 2,
            self.make_anew: 2,
            self.settings: 4,
            self.producers: 3,
        }
        for _ in range(STEPS):
            self.chance.choices(list(weights), list(weights.values()))[0]()

    def _make(self, topic: str) -> None:
        count = self.chance.randrange(1, 4)
        self.ids[topic] = make_topic(self.session, topic, partitions=count)
        self.partitions[topic] = count

    def _topic(self) -> str:
        return self.chance.choice(list(self.partitions))

    def _partition(self, topic: str) -> int:
        """Mostly one that exists."""
        return self.chance.randrange(self.partitions[topic] + (self.chance.randrange(20) == 0))

    def _version(self, kind: type[Request], least: int = 0) -> int:
        versions = self.session.versions(kind)
        return self.chance.randrange(max(versions.start, least), versions.stop)

    def _offset(self) -> int:
        return self.chance.choice((0, 1, 2, self.chance.randrange(60), self.chance.randrange(10), -1))

    def _ask(self, label: str, request: Request, version: int | None = None, **options: Any) -> Any:
        number = len(self.session.entries)
        return self.session.ask(f"{number} {label}", request, version, **options)

    def _batch(self, **fields: Any) -> bytes:
        base = TIMESTAMP + self.chance.randrange(100_000)
        records = [
            (
                base + self.chance.randrange(-50, 50),
                None if self.chance.randrange(4) == 0 else b"k%d" % self.chance.randrange(5),
                None if self.chance.randrange(6) == 0 else b"v" * self.chance.randrange(200),
                [("h", b"x")] if self.chance.randrange(5) == 0 else [],
            )
            for _ in range(self.chance.randrange(1, 6))
        ]
        return build_batch(records, codec=self.chance.choice(list(Codec)), **fields)

    def _produce(self, label: str, topic: str, batches: dict[int, bytes]) -> None:
        data = [PartitionProduceData(index=index, records=batch) for index, batch in batches.items()]
        request = ProduceRequest(
            acks=self.chance.choice((1, -1)),
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=topic, topic_id=self.ids[topic], partition_data=data)],
        )
        # zstd came with version 7.
        self._ask(label, request, self._version(ProduceRequest, 7))

    def produce(self) -> None:
        topic = self._topic()
        partitions = {self._partition(topic) for _ in range(self.chance.randrange(1, 3))}
        self._produce("produce", topic, {index: self._batch() for index in sorted(partitions)})

    def produce_in_sequence(self) -> None:
        topic = self._topic()
        partition = self.chance.randrange(self.partitions[topic])
        key = (topic, partition)
        following = self.sequences.get(key, 0)
        # The next one, or sometimes one that was there or one too far.
        step = self.chance.choice((0, 0, 0, 0, 0, -2, 3))
        sequence = max(following + step, 0)
        count = self.chance.randrange(1, 3)
        batch = build_batch(
            [(TIMESTAMP, b"k", b"v")] * count,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        if step == 0:
            self.sequences[key] = following + count
        self._produce(f"sequence {step:+d}", topic, {partition: batch})

    def _wanted(self, topic: str) -> FetchTopic:
        partitions = {self._partition(topic) for _ in range(self.chance.randrange(1, 4))}
        return FetchTopic(
            topic=topic,
            topic_id=self.ids[topic],
            partitions=[
                FetchPartition(
                    partition=index,
                    fetch_offset=self._offset(),
                    partition_max_bytes=self.chance.choice((1, 300, 1000, 100_000)),
                )
                for index in sorted(partitions)
            ],
        )

    def fetch(self) -> None:
        topics = self.chance.sample(list(self.partitions), self.chance.randrange(1, len(self.partitions) + 1))
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=self.chance.choice((1, 500, 3000, 2**31 - 1)),
            isolation_level=self.chance.randrange(2),
            topics=[self._wanted(topic) for topic in topics],
        )
        self._ask("fetch", request, self._version(FetchRequest))

    def fetch_in_session(self) -> None:
        session_id, epoch = self.fetch_session
        if self.chance.randrange(15) == 0:
            epoch = self.chance.choice((0, epoch + 1, -1))
        forgotten = []
        if epoch > 0 and self.chance.randrange(4) == 0:
            topic = self._topic()
            forgotten = [
                ForgottenTopic(topic=topic, topic_id=self.ids[topic], partitions=[self._partition(topic)])
            ]
        full = epoch <= 0
        topics = [self._wanted(topic) for topic in self.partitions if full or self.chance.randrange(3) == 0]
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        answer = self._ask(f"session epoch {epoch}", request, self._version(FetchRequest, 13))
        assert isinstance(answer, FetchResponse)
        going_on = answer.error_code == 0 and answer.session_id != 0
        self.fetch_session = (answer.session_id, max(epoch, 0) + 1) if going_on else (0, 0)

    def list_offsets(self) -> None:
        version = self._version(ListOffsetsRequest)
        topic = self._topic()
        wanted = [
            ListOffsetsPartition(
                partition_index=index,
                timestamp=self.chance.choice(
                    # Not -3: the record of the greatest timestamp may lie below the log start with Kafka.
                    (-1, -2, -4, TIMESTAMP, TIMESTAMP + self.chance.randrange(100_000), 0)
                ),
            )
            for index in sorted({self._partition(topic) for _ in range(2)})
        ]
        fields: dict[str, Any] = {"isolation_level": self.chance.randrange(2)} if version >= 2 else {}
        topics = [ListOffsetsTopic(name=topic, partitions=wanted)]
        self._ask("offsets", ListOffsetsRequest(replica_id=-1, topics=topics, **fields), version)

    def leader_epochs(self) -> None:
        topic = self._topic()
        wanted = OffsetForLeaderPartition(
            partition=self._partition(topic), leader_epoch=self.chance.choice((0, 0, 1, -1))
        )
        request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])])
        self._ask("epoch", request, self._version(OffsetForLeaderEpochRequest))

    def delete_records(self) -> None:
        topic = self._topic()
        partition = DeleteRecordsPartition(
            partition_index=self._partition(topic), offset=self.chance.choice((0, 1, 3, 7, 12, 20, -1))
        )
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=TIMEOUT_MS
        )
        self._ask("delete records", request, self._version(DeleteRecordsRequest))

    def metadata(self) -> None:
        version = self._version(MetadataRequest, 4)
        names = self.chance.sample(list(self.partitions), self.chance.randrange(len(self.partitions) + 1))
        topics = [MetadataRequestTopic(name=name) for name in names] if names else None
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        self._ask("metadata", request, version, edit=keep_topics(f"walk-{self.seed}-"))

    def grow(self) -> None:
        topic = self._topic()
        count = self.partitions[topic] + self.chance.randrange(2)
        grown = CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[grown], timeout_ms=TIMEOUT_MS)
        self._ask("grow", request, self._version(CreatePartitionsRequest))
        self.partitions[topic] = count
        await_leaders(self.session, topic, count)

    def make_anew(self) -> None:
        topic = self._topic()
        state = DeleteTopicState(topic_id=self.ids.pop(topic))
        self._ask("delete", DeleteTopicsRequest(topics=[state], timeout_ms=TIMEOUT_MS), 6)
        del self.partitions[topic]
        self.sequences = {key: value for key, value in self.sequences.items() if key[0] != topic}
        named = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        self.session.until(named, MetadataResponse, lambda answer: answer.topics[0].error_code != 0)
        # A session that holds a topic of this name may learn of the new one sooner or later.
        self.fetch_session = (0, 0)
        self._make(topic)

    def settings(self) -> None:
        topic = self._topic()
        name, value = self.chance.choice(
            (
                ("retention.ms", "5000000"),
                ("retention.ms", "soon"),
                ("segment.ms", "700000"),
                ("no.such", "1"),
            )
        )
        change = configs.AlterableConfig(name=name, config_operation=self.chance.randrange(2), value=value)
        resource = configs.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])
        request = configs.IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=self.chance.randrange(2) == 0
        )
        self._ask(f"set {name}", request, self._version(configs.IncrementalAlterConfigsRequest))
        described = DescribeConfigsResource(
            resource_type=2, resource_name=topic, configuration_keys=["retention.bytes", "no.such"]
        )
        describing = DescribeConfigsRequest(resources=[described], include_synonyms=True)
        self._ask("describe", describing, self._version(DescribeConfigsRequest))

    def producers(self) -> None:
        topic = self._topic()
        wanted = producers.TopicRequest(name=topic, partition_indexes=[self._partition(topic)])
        self._ask("producers", producers.DescribeProducersRequest(topics=[wanted]))


def _walk(seed: int) -> Script:
    def walk(session: Session) -> None:
        Walk(session, seed, random.Random(seed), new_producer(session)).run()

    return walk


for _seed in SEEDS:
    SCRIPTS[f"random_walk_{_seed}"] = _walk(_seed)
