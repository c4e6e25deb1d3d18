"""Leaders, in-sync sets and reassignments, as the controller decides them."""

from __future__ import annotations

import pytest

from ottla.metadata.image.entities import NO_LEADER, ConfigResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponsePartitionData,
    BrokerState,
)
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.metadata.controller_harness import ControllerHarness

PREFERRED, UNCLEAN = 0, 1


def alter_isr(
    world: ControllerHarness,
    isr: list[int],
    *,
    leader: int | None = None,
    leader_epoch: int | None = None,
    partition_epoch: int | None = None,
    broker_epoch: int = -1,
    topic: str = "orders",
) -> AlterPartitionResponsePartitionData:
    known = world.image.topics.by_name[topic]
    partition = known.partitions[0]
    asking = partition.leader if leader is None else leader
    asked = AlterPartitionRequestPartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch if leader_epoch is None else leader_epoch,
        partition_epoch=partition.partition_epoch if partition_epoch is None else partition_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=broker, broker_epoch=broker_epoch) for broker in isr],
    )
    request = AlterPartitionRequest(
        broker_id=asking,
        broker_epoch=world.image.cluster.brokers[asking].epoch,
        topics=[AlterPartitionRequestTopicData(topic_id=known.id, partitions=[asked])],
    )
    return world.do(world.controller.alter_partition(request)).topics[0].partitions[0]


def elect(world: ControllerHarness, kind: int, *partitions: int, topic: str = "orders") -> list[int]:
    request = ElectLeadersRequest(
        election_type=kind, topic_partitions=[TopicPartitions(topic=topic, partitions=list(partitions))]
    )
    [result] = world.do(world.controller.elect_leaders(request)).replica_election_results
    return [each.error_code for each in result.partition_result]


def reassign(
    world: ControllerHarness, replicas: list[int] | None, *, topic: str = "orders", allow_change: bool = True
) -> tuple[int, str | None]:
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allow_change,
        topics=[
            ReassignableTopic(
                name=topic, partitions=[ReassignablePartition(partition_index=0, replicas=replicas)]
            )
        ],
    )
    response = world.do(world.controller.alter_partition_reassignments(request))
    result = response.responses[0].partitions[0]
    return result.error_code, result.error_message


def configure(world: ControllerHarness, name: str, value: str) -> None:
    change = AlterableConfig(name=name, config_operation=0, value=value)
    resource = AlterConfigsResource(
        resource_type=ConfigResourceType.TOPIC, resource_name="orders", configs=[change]
    )
    world.do(world.controller.incremental_alter_configs(IncrementalAlterConfigsRequest(resources=[resource])))


@pytest.fixture
def world() -> ControllerHarness:
    made = ControllerHarness(brokers=4)
    made.create("orders", assignments=[[0, 1, 2]])
    return made


class TestAlterPartition:
    def test_a_leader_changes_its_in_sync_set(self, world: ControllerHarness) -> None:
        answer = alter_isr(world, [0, 1])
        assert (answer.error_code, answer.isr, answer.partition_epoch) == (ErrorCode.NONE, [0, 1], 1)
        partition = world.partition("orders")
        assert (partition.isr, partition.leader_epoch, partition.partition_epoch) == ((0, 1), 0, 1)

    def test_asking_for_what_is_changes_nothing(self, world: ControllerHarness) -> None:
        before = world.next_offset
        assert alter_isr(world, [0, 1, 2]).error_code == ErrorCode.NONE
        assert world.next_offset == before

    def test_refusals(self, world: ControllerHarness) -> None:
        alter_isr(world, [0, 1])
        world.heartbeat(3, want_fence=True)
        world.heartbeat(2, want_fence=True)
        assert alter_isr(world, [0], leader_epoch=1).error_code == ErrorCode.NOT_CONTROLLER
        assert alter_isr(world, [0], partition_epoch=9).error_code == ErrorCode.NOT_CONTROLLER
        assert alter_isr(world, [0], leader_epoch=-1).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert alter_isr(world, [0], leader=1).error_code == ErrorCode.INVALID_REQUEST
        assert alter_isr(world, [0], partition_epoch=0).error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert alter_isr(world, [0, 3]).error_code == ErrorCode.INVALID_REQUEST, "3 is not a replica"
        assert alter_isr(world, [1]).error_code == ErrorCode.INVALID_REQUEST, "the leader itself is missing"
        assert alter_isr(world, [0, 0]).error_code == ErrorCode.INVALID_REQUEST
        assert alter_isr(world, [0, 1, 2]).error_code == ErrorCode.INELIGIBLE_REPLICA, "2 is fenced"
        assert alter_isr(world, [0, 1], broker_epoch=12345).error_code == ErrorCode.INELIGIBLE_REPLICA

    def test_a_stale_broker_is_refused_as_a_whole(self, world: ControllerHarness) -> None:
        with pytest.raises(KafkaError) as error:
            world.do(world.controller.alter_partition(AlterPartitionRequest(broker_id=0, broker_epoch=99)))
        assert error.value.code is ErrorCode.STALE_BROKER_EPOCH

    def test_an_unknown_topic_or_partition(self, world: ControllerHarness) -> None:
        broker_epoch = world.image.cluster.brokers[0].epoch
        asked = AlterPartitionRequestPartitionData(partition_index=5)
        for topic_id, code in (
            (b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
            (world.image.topics.by_name["orders"].id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            request = AlterPartitionRequest(
                broker_id=0,
                broker_epoch=broker_epoch,
                topics=[AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[asked])],
            )
            answer = world.do(world.controller.alter_partition(request))
            assert answer.topics[0].partitions[0].error_code == code

    def test_below_min_insync_replicas_those_who_leave_stay_eligible(self, world: ControllerHarness) -> None:
        configure(world, "min.insync.replicas", "2")
        alter_isr(world, [0])
        assert world.partition("orders").elr == (1, 2)
        alter_isr(world, [0, 2])
        assert world.partition("orders").elr == ()


class TestElections:
    def test_the_preferred_leader_gets_its_partition_back(self, world: ControllerHarness) -> None:
        world.heartbeat(0, want_fence=True)
        world.heartbeat(0)
        assert world.partition("orders").leader == 1
        assert elect(world, PREFERRED, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
        alter_isr(world, [0, 1, 2])
        assert elect(world, PREFERRED, 0) == [ErrorCode.NONE]
        assert world.partition("orders").leader == 0
        assert elect(world, PREFERRED, 0) == [ErrorCode.ELECTION_NOT_NEEDED]

    def test_balancing_does_the_same_for_all(self, world: ControllerHarness) -> None:
        world.heartbeat(0, want_fence=True)
        world.heartbeat(0)
        alter_isr(world, [0, 1, 2])
        assert world.do(world.controller.maybe_balance_partition_leaders()) is False
        assert world.partition("orders").leader == 0

    def test_what_does_not_exist(self, world: ControllerHarness) -> None:
        assert elect(world, PREFERRED, 7) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert elect(world, PREFERRED, 0, topic="ghost") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        with pytest.raises(KafkaError) as error:
            world.do(world.controller.elect_leaders(ElectLeadersRequest(election_type=7)))
        assert error.value.code is ErrorCode.INVALID_REQUEST

    def test_an_unclean_election_needs_a_partition_without_leader(self, world: ControllerHarness) -> None:
        assert elect(world, UNCLEAN, 0) == [ErrorCode.ELECTION_NOT_NEEDED]
        alter_isr(world, [0])
        world.heartbeat(0, want_fence=True)
        assert world.partition("orders").leader == NO_LEADER
        assert elect(world, UNCLEAN, 0) == [ErrorCode.NONE]
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())

    def test_it_happens_by_itself_where_the_topic_allows_it(self, world: ControllerHarness) -> None:
        alter_isr(world, [0])
        world.heartbeat(0, want_fence=True)
        world.do(world.controller.elect_unclean_leaders())
        assert world.partition("orders").leader == NO_LEADER
        configure(world, "unclean.leader.election.enable", "true")
        world.do(world.controller.elect_unclean_leaders())
        assert world.partition("orders").leader == 1

    def test_when_all_are_asked_for_only_changes_and_failures_are_told(
        self, world: ControllerHarness
    ) -> None:
        world.create("letters", assignments=[[1, 0]])
        world.heartbeat(1, want_fence=True)
        request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None)
        results = world.do(world.controller.elect_leaders(request)).replica_election_results
        told = {r.topic: [(p.partition_id, p.error_code) for p in r.partition_result] for r in results}
        assert told == {"orders": [], "letters": [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]}


class TestReassignment:
    def test_new_replicas_come_before_old_ones_go(self, world: ControllerHarness) -> None:
        assert reassign(world, [3, 1]) == (ErrorCode.NONE, None)
        partition = world.partition("orders")
        assert partition.replicas == (3, 1, 0, 2)
        assert (partition.adding_replicas, partition.removing_replicas) == ((3,), (0, 2))
        assert partition.leader == 0
        answer = alter_isr(world, [0, 1, 2, 3])
        assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED, "the asking leader was moved away"
        partition = world.partition("orders")
        assert (partition.replicas, partition.isr, partition.leader) == ((3, 1), (1, 3), 3)
        assert not partition.is_reassigning
        assert partition.leader_epoch == 1

    def test_replicas_that_were_removed_do_not_keep_the_last_one_from_leading(
        self, world: ControllerHarness
    ) -> None:
        """An eligible replica rules out the last known leader, so none may be eligible that is no replica."""
        configure(world, "min.insync.replicas", "2")
        reassign(world, [3])
        alter_isr(world, [0, 1, 2, 3])
        partition = world.partition("orders")
        assert (partition.replicas, partition.isr, partition.elr) == ((3,), (3,), ())
        world.heartbeat(3, want_fence=True)
        assert world.partition("orders").leader == NO_LEADER
        world.now_ns += 10_000_000_000  # its session has ended
        world.start_broker(3, incarnation=2)  # it was killed: its last shutdown was not clean
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.elr) == (3, (3,), ())

    def test_a_mere_change_of_order_is_done_at_once(self, world: ControllerHarness) -> None:
        assert reassign(world, [2, 1, 0]) == (ErrorCode.NONE, None)
        partition = world.partition("orders")
        assert (partition.replicas, partition.is_reassigning, partition.leader) == ((2, 1, 0), False, 0)

    def test_another_target_meanwhile_gives_up_what_the_first_one_added(
        self, world: ControllerHarness
    ) -> None:
        reassign(world, [3, 0])
        reassign(world, [0, 1])
        partition = world.partition("orders")
        assert (partition.adding_replicas, partition.removing_replicas) == ((), ())
        assert partition.replicas == (0, 1)

    def test_another_target_meanwhile_keeps_what_the_first_one_was_removing(
        self, world: ControllerHarness
    ) -> None:
        reassign(world, [3, 0])
        reassign(world, [3, 1])
        partition = world.partition("orders")
        assert (partition.adding_replicas, partition.removing_replicas) == ((3,), (0, 2))
        alter_isr(world, [0, 1, 2, 3])
        assert world.partition("orders").replicas == (3, 1)

    def test_it_can_be_cancelled(self, world: ControllerHarness) -> None:
        reassign(world, [3])
        assert reassign(world, None) == (ErrorCode.NONE, None)
        partition = world.partition("orders")
        assert (partition.replicas, partition.is_reassigning) == ((0, 1, 2), False)
        assert reassign(world, None)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS

    def test_cancelling_never_elects_uncleanly_unless_allowed(self) -> None:
        world = ControllerHarness(brokers=4)
        world.create("orders", assignments=[[0, 1]])
        reassign(world, [2, 3])
        alter_isr(world, [0, 1, 2])
        for broker in (0, 1):
            world.heartbeat(broker, want_fence=True)
        assert world.partition("orders").isr == (2,)
        code, message = reassign(world, None)
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert message == (
            "Unable to revert partition assignment for orders:0 because it would require an unclean leader "
            "election. No former replica is in sync, so records could be lost."
        )

    def test_shrinking_waits_for_all_that_stay(self, world: ControllerHarness) -> None:
        alter_isr(world, [0])
        reassign(world, [1, 2])
        assert world.partition("orders").is_reassigning
        alter_isr(world, [0, 1])
        assert world.partition("orders").is_reassigning
        alter_isr(world, [0, 1, 2])
        assert world.partition("orders").replicas == (1, 2)

    def test_refusals(self, world: ControllerHarness) -> None:
        assert reassign(world, [9])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert reassign(world, [])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert reassign(world, [0], topic="ghost") == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "Unable to find a topic named ghost.",
        )
        assert reassign(world, [0, 1], allow_change=False) == (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "The replication factor is changed from 3 to 2, which the request does not allow.",
        )

    def test_listing(self, world: ControllerHarness) -> None:
        world.create("letters", assignments=[[0]])
        reassign(world, [3, 1, 2])

        def listed(topics: list[ListPartitionReassignmentsTopics] | None) -> list[tuple[str, list[int]]]:
            request = ListPartitionReassignmentsRequest(topics=topics)
            response = world.do(world.controller.list_partition_reassignments(request))
            return [(t.name, [p.partition_index for p in t.partitions]) for t in response.topics]

        assert listed(None) == [("orders", [0])]
        asked = [
            ListPartitionReassignmentsTopics(name="letters", partition_indexes=[0]),
            ListPartitionReassignmentsTopics(name="orders", partition_indexes=[0, 5]),
            ListPartitionReassignmentsTopics(name="ghost", partition_indexes=[0]),
        ]
        assert listed(asked) == [("orders", [0])]
