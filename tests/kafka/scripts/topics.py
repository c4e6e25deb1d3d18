"""CreateTopics, DeleteTopics, CreatePartitions: the life of topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.kafka.scripts.kit import TIMEOUT_MS, UNKNOWN_ID, await_leaders, make_topic, script
from tests.support.differential import Session

INVALID_NAMES = ("", ".", "..", "with space", "a/b", "ü", "x" * 250, "comma,", "tab\t")


def _topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    *,
    replicas: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in (replicas or {}).items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in (configs or {}).items()],
    )


def _create(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=TIMEOUT_MS, validate_only=validate_only)


@script
def create_topics(session: Session) -> None:
    for version in session.versions(CreateTopicsRequest):
        name = f"create-{version}"
        session.ask("validate only", _create(_topic(name, 3), validate_only=True), version)
        session.ask("create", _create(_topic(name, 3)), version)
        session.ask("create again", _create(_topic(name, 3)), version)
        session.ask("validate what exists", _create(_topic(name), validate_only=True), version)
        session.ask("two at once", _create(_topic(f"{name}-a", 2), _topic(f"{name}-b", 1)), version)
        session.ask("one good, one bad", _create(_topic(f"{name}-c"), _topic(f"{name}-d", 1, 5)), version)
        session.ask("twice in one request", _create(_topic(f"{name}-e"), _topic(f"{name}-e", 2)), version)
        session.ask("no topics", _create(), version)
        configs = {"retention.ms": "1000", "cleanup.policy": "compact,delete"}
        session.ask("with settings", _create(_topic(f"{name}-f", configs=configs)), version)
        session.ask("with replicas", _create(_topic(f"{name}-g", -1, -1, replicas={0: [1], 1: [1]})), version)
        session.ask("default numbers", _create(_topic(f"{name}-h", -1, -1)), version)
        await_leaders(session, name, 3)


@script
def create_topics_with_invalid_names(session: Session) -> None:
    for version in (2, 7):
        for name in INVALID_NAMES:
            session.ask(f"name {name[:20]!r}", _create(_topic(name)), version)
    session.ask("with dots", _create(_topic("name.with.dots")))
    session.ask("collides with dots", _create(_topic("name_with_dots")))
    session.ask("the metadata log", _create(_topic("__cluster_metadata")))
    session.ask("longest name", _create(_topic("y" * 249)))


@script
def create_topics_with_invalid_numbers(session: Session) -> None:
    for partitions, factor in ((0, 1), (-2, 1), (1, 0), (1, -2), (1, 2), (-1, 2), (0, 0), (1, 32767)):
        session.ask(
            f"{partitions} partitions, {factor} replicas", _create(_topic("create-n", partitions, factor))
        )
    session.ask("too many partitions", _create(_topic("create-many", 10_001), validate_only=True))
    cases: dict[str, tuple[int, int, dict[int, list[int]]]] = {
        "numbers beside replicas": (2, 1, {0: [1], 1: [1]}),
        "partitions beside replicas": (2, -1, {0: [1], 1: [1]}),
        "factor beside replicas": (-1, 1, {0: [1]}),
        "not from zero": (-1, -1, {1: [1]}),
        "a gap": (-1, -1, {0: [1], 2: [1]}),
        "negative partition": (-1, -1, {-1: [1]}),
        "unknown broker": (-1, -1, {0: [9]}),
        "negative broker": (-1, -1, {0: [-1]}),
        "one broker twice": (-1, -1, {0: [1, 1]}),
        "no broker": (-1, -1, {0: []}),
        "different factors": (-1, -1, {0: [1], 1: [1, 9]}),
    }
    for label, (partitions, factor, replicas) in cases.items():
        session.ask(label, _create(_topic("create-r", partitions, factor, replicas=replicas)))


@script
def create_topics_with_invalid_settings(session: Session) -> None:
    cases: dict[str, dict[str, str | None]] = {
        "unknown name": {"no.such.setting": "1"},
        "null value": {"retention.ms": None},
        "not a number": {"retention.ms": "soon"},
        "empty number": {"retention.ms": ""},
        "spaces around": {"retention.ms": " 1000 "},
        "below the range": {"segment.bytes": "1"},
        "over the range": {"min.cleanable.dirty.ratio": "1.5"},
        "wrong choice": {"cleanup.policy": "keep"},
        "no choice": {"cleanup.policy": ""},
        "wrong codec": {"compression.type": "rar"},
        "wrong level": {"compression.type": "gzip", "compression.gzip.level": "99"},
        "not a boolean": {"preallocate": "yes"},
        "boolean in capitals": {"preallocate": "TRUE"},
        "removed setting": {"message.format.version": "2.0"},
        "remote storage": {"remote.storage.enable": "true"},
        "local retention": {"local.retention.ms": "10", "retention.ms": "5"},
        "throttled replicas": {"leader.replication.throttled.replicas": "0:1,2:3"},
        "wrong throttled replicas": {"leader.replication.throttled.replicas": "zero"},
        "broker's setting": {"log.retention.ms": "1"},
        "compaction lags": {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    }
    for version in (2, 7):
        for label, configs in cases.items():
            name = f"create-s-{version}-{label.replace(' ', '-').replace(chr(39), '')}"
            session.ask(label, _create(_topic(name, configs=configs)), version)


@script
def delete_topics(session: Session) -> None:
    for version in session.versions(DeleteTopicsRequest):
        if version < 6:
            make_topic(session, "delete-me")
            for label, names in {
                "known": ["delete-me"],
                "unknown": ["delete-none"],
                "twice": ["delete-none", "delete-none"],
                "invalid": ["a/b", "", "x" * 300],
                "none": [],
            }.items():
                session.ask(label, DeleteTopicsRequest(topic_names=names, timeout_ms=TIMEOUT_MS), version)
            _await_gone(session, "delete-me")
            continue
        first, second = make_topic(session, "delete-me"), make_topic(session, "delete-by-id")
        states = {
            "known name": [DeleteTopicState(name="delete-me")],
            "unknown name": [DeleteTopicState(name="delete-none")],
            "unknown id": [DeleteTopicState(topic_id=UNKNOWN_ID)],
            "neither": [DeleteTopicState()],
            "name and id": [DeleteTopicState(name="delete-by-id", topic_id=second)],
            "name and another id": [DeleteTopicState(name="delete-by-id", topic_id=first)],
            "by name and by id": [DeleteTopicState(name="delete-by-id"), DeleteTopicState(topic_id=second)],
            "twice by name": [DeleteTopicState(name="delete-by-id"), DeleteTopicState(name="delete-by-id")],
            "twice by id": [DeleteTopicState(topic_id=second), DeleteTopicState(topic_id=second)],
            "known id": [DeleteTopicState(topic_id=second)],
            "id that is gone": [DeleteTopicState(topic_id=second)],
            "the metadata log": [DeleteTopicState(name="__cluster_metadata")],
        }
        for label, topics in states.items():
            session.ask(label, DeleteTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS), version)
        _await_gone(session, "delete-me")
        _await_gone(session, "delete-by-id")


def _await_gone(session: Session, name: str) -> None:
    session.until(
        MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False),
        MetadataResponse,
        lambda answer: answer.topics[0].error_code != 0,
    )


@script
def create_partitions(session: Session) -> None:
    for version in session.versions(CreatePartitionsRequest):
        topic = f"grow-{version}"
        make_topic(session, topic, partitions=2)

        def ask(
            label: str,
            name: str,
            count: int,
            brokers: Sequence[Sequence[int]] | None = None,
            *,
            validate_only: bool = False,
            version: int = version,
        ) -> None:
            assignments = (
                None
                if brokers is None
                else [CreatePartitionsAssignment(broker_ids=list(each)) for each in brokers]
            )
            grown = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
            request = CreatePartitionsRequest(
                topics=[grown], timeout_ms=TIMEOUT_MS, validate_only=validate_only
            )
            session.ask(label, request, version)

        ask("validate only", topic, 3, validate_only=True)
        ask("one more", topic, 3)
        ask("as many", topic, 3)
        ask("fewer", topic, 1)
        ask("none", topic, 0)
        ask("negative", topic, -1)
        ask("unknown topic", "grow-none", 3)
        ask("invalid topic", "a/b", 3)
        ask("on broker 1", topic, 5, [[1], [1]])
        ask("on an unknown broker", topic, 6, [[9]])
        ask("too few brokers", topic, 7, [[1]])
        ask("too many brokers", topic, 6, [[1], [1]])
        ask("one broker twice", topic, 6, [[1, 1]])
        ask("no broker", topic, 6, [[]])
        ask("another factor", topic, 6, [[1, 9]])
        ask("no assignments", topic, 6, [])
        twice = [CreatePartitionsTopic(name=topic, count=count, assignments=None) for count in (8, 9)]
        session.ask("one topic twice", CreatePartitionsRequest(topics=twice, timeout_ms=TIMEOUT_MS), version)
        session.ask("no topics", CreatePartitionsRequest(topics=[], timeout_ms=TIMEOUT_MS), version)
