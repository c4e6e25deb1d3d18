"""Deleting topics and adding partitions."""

from __future__ import annotations

import pytest

from ottla.metadata.controller.state import ControllerRequestContext
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from ottla.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from tests.metadata.controller_harness import ControllerHarness

ANY_CALLER = ControllerRequestContext()


def delete(
    world: ControllerHarness,
    *names: str,
    ids: tuple[bytes, ...] = (),
    states: tuple[DeleteTopicState, ...] = (),
    context: ControllerRequestContext = ANY_CALLER,
) -> list[DeletableTopicResult]:
    topics = [DeleteTopicState(name=None, topic_id=topic_id) for topic_id in ids]
    request = DeleteTopicsRequest(topic_names=list(names), topics=[*topics, *states])
    return world.do(world.controller.delete_topics(request, context)).responses


def grow(
    world: ControllerHarness,
    name: str,
    count: int,
    assignments: list[list[int]] | None = None,
    *,
    validate_only: bool = False,
) -> CreatePartitionsTopicResult:
    given = None
    if assignments is not None:
        given = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments]
    topic = CreatePartitionsTopic(name=name, count=count, assignments=given)
    request = CreatePartitionsRequest(topics=[topic], validate_only=validate_only)
    [result] = world.do(world.controller.create_partitions(request)).results
    return result


class TestDelete:
    def test_by_name_takes_the_configs_along(self) -> None:
        world = ControllerHarness()
        world.create("orders", configs={"retention.ms": "1"})
        [result] = delete(world, "orders")
        assert (result.error_code, result.name) == (ErrorCode.NONE, "orders")
        assert "orders" not in world.image.topics.by_name
        assert ConfigResource(ConfigResourceType.TOPIC, "orders") not in world.image.configs

    def test_by_id(self) -> None:
        world = ControllerHarness()
        topic_id = world.create("orders").topic_id
        [result] = delete(world, ids=(topic_id,))
        assert (result.error_code, result.name, result.topic_id) == (ErrorCode.NONE, "orders", topic_id)

    def test_what_does_not_exist(self) -> None:
        world = ControllerHarness()
        [by_name] = delete(world, "ghost")
        assert by_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        [by_id] = delete(world, ids=(b"x" * 16,))
        assert by_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    def test_ambiguous_requests_delete_nothing(self) -> None:
        world = ControllerHarness()
        topic_id = world.create("orders").topic_id
        results = delete(
            world,
            "orders",
            "orders",
            states=(
                DeleteTopicState(name="orders", topic_id=topic_id),
                DeleteTopicState(name=None, topic_id=bytes(16)),
            ),
        )
        assert sorted(result.error_message or "" for result in results) == [
            "Duplicate topic name.",
            "Neither topic name nor id were specified.",
            "You may not specify both topic name and topic id.",
        ]
        [result] = delete(world, "orders", ids=(topic_id,))
        assert result.error_message == "The provided topic name maps to an ID that was already supplied."
        [result] = delete(world, ids=(topic_id, topic_id))
        assert result.error_message == "Duplicate topic id."
        assert "orders" in world.image.topics.by_name

    def test_who_may_not_describe_a_topic_does_not_learn_that_it_exists(self) -> None:
        world = ControllerHarness()
        topic_id = world.create("secret").topic_id
        forbidden = ControllerRequestContext(allowed=lambda operation, kind, name: False)
        for name in ("secret", "ghost"):
            [result] = delete(world, name, context=forbidden)
            assert (result.error_code, result.topic_id) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, bytes(16))
        [result] = delete(world, ids=(topic_id,), context=forbidden)
        assert (result.error_code, result.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        reader = ControllerRequestContext(
            allowed=lambda operation, kind, name: (
                kind == AclResourceType.TOPIC and operation == AclOperation.DESCRIBE
            )
        )
        [result] = delete(world, ids=(topic_id,), context=reader)
        assert (result.error_code, result.name) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "secret")
        assert "secret" in world.image.topics.by_name

    def test_deletion_can_be_switched_off(self) -> None:
        world = ControllerHarness(delete_topic_enable=False)
        request = DeleteTopicsRequest(topic_names=["orders"])
        with pytest.raises(KafkaError) as error:
            world.do(world.controller.delete_topics(request))
        assert error.value.code is ErrorCode.TOPIC_DELETION_DISABLED
        with pytest.raises(KafkaError) as error:
            world.do(world.controller.delete_topics(request, version=2))
        assert error.value.code is ErrorCode.INVALID_REQUEST


class TestCreatePartitions:
    def test_new_partitions_follow_the_old_ones(self) -> None:
        world = ControllerHarness(brokers=3)
        world.create("orders", partitions=1, replicas=2)
        assert grow(world, "orders", 4).error_code == ErrorCode.NONE
        partitions = world.image.topics.by_name["orders"].partitions
        assert sorted(partitions) == [0, 1, 2, 3]
        assert {len(partition.replicas) for partition in partitions.values()} == {2}

    def test_by_hand(self) -> None:
        world = ControllerHarness(brokers=3)
        world.create("orders", assignments=[[0, 1]])
        assert grow(world, "orders", 2, [[2, 0]]).error_code == ErrorCode.NONE
        assert world.partition("orders", 1).replicas == (2, 0)

    def test_validate_only(self) -> None:
        world = ControllerHarness()
        world.create("orders", partitions=1, replicas=1)
        assert grow(world, "orders", 2, validate_only=True).error_code == ErrorCode.NONE
        assert len(world.image.topics.by_name["orders"].partitions) == 1

    @pytest.mark.parametrize(
        ("count", "assignments", "code", "words"),
        [
            (2, None, ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
            (
                1,
                None,
                ErrorCode.INVALID_PARTITIONS,
                "The topic orders currently has 2 partition(s); 1 would not be an increase.",
            ),
            (
                4,
                [[0]],
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
            ),
            (
                3,
                [[0, 1]],
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "The manual partition assignment includes a partition with 2 replica(s), but this is not "
                "consistent with previous partitions, which have 1 replica(s).",
            ),
            (
                20_000,
                None,
                ErrorCode.POLICY_VIOLATION,
                "Excessively large number of partitions per request. At most 10000 are allowed; split "
                "the request into smaller ones.",
            ),
        ],
    )
    def test_refusals(
        self, count: int, assignments: list[list[int]] | None, code: ErrorCode, words: str
    ) -> None:
        world = ControllerHarness(brokers=2)
        world.create("orders", assignments=[[0], [1]])
        result = grow(world, "orders", count, assignments)
        assert (result.error_code, result.error_message) == (code, words)

    def test_an_unknown_topic(self) -> None:
        assert grow(ControllerHarness(), "ghost", 2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
