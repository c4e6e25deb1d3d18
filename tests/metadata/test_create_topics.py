"""CreateTopics as the controller decides it: what is created, and in which words it is refused."""

from __future__ import annotations

import pytest

from ottla.metadata.controller.state import ControllerRequestContext
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from tests.metadata.controller_harness import ControllerHarness, directory_of, topic


def test_a_topic_gets_an_id_partitions_and_leaders() -> None:
    world = ControllerHarness(brokers=3)
    result = world.create("orders", partitions=6, replicas=3)
    assert result.error_code == ErrorCode.NONE
    created = world.image.topics.by_name["orders"]
    assert created.id == result.topic_id
    assert (result.num_partitions, result.replication_factor) == (6, 3)
    assert len(created.partitions) == 6
    for partition in created.partitions.values():
        assert sorted(partition.replicas) == [0, 1, 2]
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert partition.directories == tuple(directory_of(replica) for replica in partition.replicas)
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)


def test_defaults_come_from_the_settings() -> None:
    world = ControllerHarness(brokers=2, num_partitions=4, default_replication_factor=2)
    result = world.create("defaults")
    assert (result.num_partitions, result.replication_factor) == (4, 2)


def test_validate_only_says_what_would_be_and_writes_nothing() -> None:
    world = ControllerHarness()
    before = world.next_offset
    result = world.create("maybe", partitions=2, replicas=1, validate_only=True)
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)
    assert world.next_offset == before
    assert "maybe" not in world.image.topics.by_name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        ("a b", "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("zażółć", "contains one or more characters other than ASCII alphanumerics"),
        ("x" * 250, "is longer than the max allowed length 249"),
        ("line\n", "contains one or more characters other than"),
    ],
)
def test_bad_names_are_refused(name: str, words: str) -> None:
    result = ControllerHarness().create(name)
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert words in (result.error_message or "")


def test_the_longest_legal_name_is_accepted() -> None:
    assert ControllerHarness().create("x" * 249).error_code == ErrorCode.NONE


def test_a_name_that_collides_in_metrics_is_refused_until_the_other_is_gone() -> None:
    world = ControllerHarness()
    world.create("a.b_c")
    result = world.create("a_b.c")
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert result.error_message == (
        "Topic 'a_b.c' collides with existing topic: a.b_c. The names differ only in '.' and '_', which "
        "metrics cannot tell apart."
    )
    assert world.create("abc").error_code == ErrorCode.NONE


def test_an_existing_topic_is_refused() -> None:
    world = ControllerHarness()
    world.create("orders")
    result = world.create("orders")
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert result.error_message == "Topic 'orders' already exists."


def test_one_request_may_mix_success_and_failure() -> None:
    world = ControllerHarness()
    request = CreateTopicsRequest(topics=[topic("good"), topic("bad name"), topic("twice"), topic("twice")])
    response = world.do(world.controller.create_topics(request))
    assert {t.name: t.error_code for t in response.topics} == {
        "good": ErrorCode.NONE,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert set(world.image.topics.by_name) == {"good"}


def test_two_names_of_one_request_that_collide_give_one_topic() -> None:
    world = ControllerHarness()
    request = CreateTopicsRequest(topics=[topic("a.b"), topic("a_b")])
    response = world.do(world.controller.create_topics(request))
    assert [t.error_code for t in response.topics] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_too_few_brokers() -> None:
    result = ControllerHarness(brokers=1).create("wide", partitions=1, replicas=3)
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert result.error_message == (
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached "
        "because only 1 broker(s) are registered or some brokers have all their log directories cordoned."
    )


def test_all_brokers_fenced() -> None:
    world = ControllerHarness(brokers=0)
    world.register(0)
    result = world.create("nowhere", partitions=1, replicas=1)
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    message = result.error_message or ""
    assert message.startswith("Unable to replicate the partition 1 time(s): All brokers are currently fenced")


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -2, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_counts_must_be_positive(partitions: int, replicas: int, code: ErrorCode) -> None:
    assert ControllerHarness().create("odd", partitions=partitions, replicas=replicas).error_code == code


def test_an_excessive_number_of_partitions_is_refused_before_anything_is_made() -> None:
    world = ControllerHarness()
    with pytest.raises(KafkaError) as refused:
        world.do(world.controller.create_topics(CreateTopicsRequest(topics=[topic("huge", 10_001, 1)])))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


def test_a_fenced_replica_is_placed_last_and_not_in_sync() -> None:
    world = ControllerHarness(brokers=2)
    world.heartbeat(1, want_fence=True)
    world.create("half", partitions=4, replicas=2)
    for index in range(4):
        partition = world.partition("half", index)
        assert (partition.replicas, partition.isr, partition.leader) == ((0, 1), (0,), 0)


def test_manual_assignment() -> None:
    world = ControllerHarness(brokers=3)
    result = world.create("manual", assignments=[[2, 0], [1, 2]])
    assert (result.num_partitions, result.replication_factor) == (2, 2)
    assert [world.partition("manual", i).replicas for i in range(2)] == [(2, 0), (1, 2)]


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        ([[]], "includes an empty replica list"),
        ([[0, 9]], "includes broker 9, but no such broker is registered"),
        ([[1, 1]], "includes the broker 1 more than once"),
        ([[0, 1], [2]], "a partition with 1 replica(s), but this is not consistent with previous partitions"),
    ],
)
def test_bad_manual_assignments(assignments: list[list[int]], words: str) -> None:
    result = ControllerHarness(brokers=3).create("manual", assignments=assignments)
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert words in (result.error_message or "")


def test_manual_assignments_must_be_numbered_from_zero_without_gaps() -> None:
    world = ControllerHarness(brokers=2)
    wanted = topic("gap", assignments=[[0], [1]])
    wanted.assignments[1].partition_index = 2
    response = world.do(world.controller.create_topics(CreateTopicsRequest(topics=[wanted])))
    assert response.topics[0].error_message == ("partitions should be a consecutive 0-based integer sequence")


def test_manual_assignments_exclude_counts() -> None:
    world = ControllerHarness(brokers=1)
    assert world.create("m", assignments=[[0]], replicas=1).error_code == ErrorCode.INVALID_REQUEST
    assert world.create("m", assignments=[[0]], partitions=1).error_code == ErrorCode.INVALID_REQUEST


def test_configs_are_stored_and_returned() -> None:
    world = ControllerHarness()
    result = world.create("tuned", configs={"retention.ms": "1000"})
    assert world.image.config(ConfigResource(ConfigResourceType.TOPIC, "tuned")) == {"retention.ms": "1000"}
    returned = {config.name: (config.value, config.config_source) for config in result.configs or []}
    assert returned["retention.ms"] == ("1000", 1)
    assert returned["segment.bytes"] == ("1073741824", 5)


def test_each_topic_of_a_request_is_told_its_own_configs() -> None:
    world = ControllerHarness()
    tuned = {"short": {"retention.ms": "1000"}, "long": {"retention.ms": "2000"}, "plain": {}}
    tuned["as-short"] = tuned["short"]
    request = CreateTopicsRequest(topics=[topic(name, configs=configs) for name, configs in tuned.items()])
    response = world.do(world.controller.create_topics(request))
    told = {
        result.name: {config.name: config.value for config in result.configs or []}["retention.ms"]
        for result in response.topics
    }
    assert told == {"short": "1000", "as-short": "1000", "long": "2000", "plain": "604800000"}


def test_a_bad_config_fails_the_topic() -> None:
    world = ControllerHarness()
    result = world.create("tuned", configs={"retention.ms": "soon"})
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert "tuned" not in world.image.topics.by_name


def test_a_null_config_fails_the_topic() -> None:
    result = ControllerHarness().create("tuned", configs={"retention.ms": None})
    assert result.error_message == "Null value not supported for topic configs: retention.ms"


def test_the_metadata_topic_cannot_be_created() -> None:
    result = ControllerHarness().create("__cluster_metadata")
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert result.error_message == "Creation of internal topic __cluster_metadata is prohibited."


def test_who_may_not_create_is_refused_and_who_may_not_describe_configs_sees_none() -> None:
    def allowed(operation: int, kind: int, name: str) -> bool:
        return kind == AclResourceType.TOPIC and operation == AclOperation.CREATE and name == "mine"

    world = ControllerHarness()
    context = ControllerRequestContext(allowed=allowed)
    assert world.create("theirs", context=context).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    result = world.create("mine", context=context)
    assert result.error_code == ErrorCode.NONE
    assert result.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (result.num_partitions, result.configs) == (-1, [])


def test_a_quota_on_partition_changes_is_charged_per_partition() -> None:
    charged: list[int] = []

    def charge(partitions: int) -> None:
        charged.append(partitions)
        if sum(charged) > 4:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "slow down")

    world = ControllerHarness()
    context = ControllerRequestContext(apply_partition_change_quota=charge)
    assert world.create("a", partitions=3, replicas=1, context=context).error_code == ErrorCode.NONE
    result = world.create("b", partitions=3, replicas=1, context=context)
    assert result.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert set(world.image.topics.by_name) == {"a"}
