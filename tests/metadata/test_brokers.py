"""Brokers: registration, sessions, fencing, controlled shutdown, directories; and what becomes of their
partitions.
"""

from __future__ import annotations

import pytest

from ottla.metadata.features import supported_features
from ottla.metadata.image.entities import DIRECTORY_DAMAGED, NO_LEADER, LeaderRecoveryState
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
)
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest
from ottla.protocol.messages.controller_registration import ControllerRegistrationRequest, Feature
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.metadata_records import PartitionChangeRecord
from tests.metadata.controller_harness import (
    SECOND_NS,
    ControllerHarness,
    directory_of,
    raise_metadata_version,
    registration,
)
from tests.metadata.test_features import SAFE_DOWNGRADE, UPGRADE, update
from tests.metadata.test_partitions import alter_isr


def register(world: ControllerHarness, request: BrokerRegistrationRequest, *, supersede: bool = False) -> int:
    result = world.controller.register_broker(
        request, next_offset=world.next_offset, now_ns=world.now_ns, supersede=supersede
    )
    return world.do(result)


def refusal(world: ControllerHarness, request: BrokerRegistrationRequest) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        register(world, request)
    return error.value.code


class TestRegistration:
    def test_a_broker_starts_fenced_and_is_unfenced_once_it_has_read_its_own_registration(self) -> None:
        world = ControllerHarness(brokers=0)
        offset = world.next_offset
        epoch = world.register(0)
        assert epoch == offset
        assert world.image.cluster.brokers[0].fenced
        behind = world.heartbeat(0, offset=offset - 1)
        assert (behind.is_caught_up, behind.is_fenced) == (False, True)
        caught_up = world.heartbeat(0, offset=offset)
        assert (caught_up.is_caught_up, caught_up.is_fenced) == (True, False)
        assert world.image.cluster.is_active(0)

    def test_the_same_incarnation_keeps_its_epoch(self) -> None:
        world = ControllerHarness()
        epoch = world.image.cluster.brokers[0].epoch
        assert world.register(0) == epoch
        assert not world.image.cluster.brokers[0].fenced

    def test_another_incarnation_waits_for_the_end_of_the_session(self) -> None:
        world = ControllerHarness()
        assert refusal(world, registration(0, incarnation=2)) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        world.now_ns += 10 * SECOND_NS
        before = world.image.cluster.brokers[0].epoch
        assert register(world, registration(0, incarnation=2)) > before
        assert world.image.cluster.brokers[0].fenced

    def test_unless_its_process_is_known_to_be_gone(self) -> None:
        world = ControllerHarness()
        register(world, registration(0, incarnation=2), supersede=True)
        assert world.image.cluster.brokers[0].incarnation_id == bytes([2]) * 16

    def test_requests_of_a_former_incarnation_are_stale(self) -> None:
        world = ControllerHarness()
        stale = world.image.cluster.brokers[0].epoch - 1
        with pytest.raises(KafkaError) as error:
            world.do(
                world.controller.process_broker_heartbeat(
                    BrokerHeartbeatRequest(broker_id=0, broker_epoch=stale), now_ns=world.now_ns
                )
            )
        assert error.value.code is ErrorCode.STALE_BROKER_EPOCH
        with pytest.raises(KafkaError) as error:
            world.controller.allocate_producer_ids(
                AllocateProducerIdsRequest(broker_id=0, broker_epoch=stale)
            )
        assert error.value.code is ErrorCode.STALE_BROKER_EPOCH

    def test_refusals(self) -> None:
        world = ControllerHarness()
        other_cluster = registration(1)
        other_cluster.cluster_id = "elsewhere"
        assert refusal(world, other_cluster) is ErrorCode.INCONSISTENT_CLUSTER_ID
        for directories in ([], [bytes(15) + b"\x01"], [b"d" * 16, b"d" * 16], [directory_of(0)]):
            request = registration(1)
            request.log_dirs = directories
            assert refusal(world, request) is ErrorCode.INVALID_REGISTRATION
        unversioned = registration(1)
        unversioned.features = [f for f in unversioned.features if f.name != "metadata.version"]
        assert refusal(world, unversioned) is ErrorCode.INVALID_REGISTRATION
        old = registration(1)
        for feature in old.features:
            if feature.name == "metadata.version":
                feature.max_supported_version = 29
        assert refusal(world, old) is ErrorCode.UNSUPPORTED_VERSION
        lacking = registration(1)
        lacking.features = [f for f in lacking.features if f.name != "group.version"]
        assert refusal(world, lacking) is ErrorCode.UNSUPPORTED_VERSION

    def test_controllers_register_too(self) -> None:
        world = ControllerHarness()
        request = ControllerRegistrationRequest(controller_id=7, incarnation_id=b"c" * 16)
        world.do(world.controller.register_controller(request))
        assert world.image.cluster.controllers[7].incarnation_id == b"c" * 16

    def test_controllers_are_unregistered_at_the_level_of_kafka_4_4(self) -> None:
        world = ControllerHarness()
        for controller in (0, 7):
            request = ControllerRegistrationRequest(
                controller_id=controller, incarnation_id=b"c" * 16, features=supported_features(Feature)
            )
            world.do(world.controller.register_controller(request))

        def refusal_of(controller: int) -> ErrorCode:
            with pytest.raises(KafkaError) as error:
                world.do(world.controller.unregister_controller(controller))
            return error.value.code

        assert refusal_of(7) is ErrorCode.UNSUPPORTED_VERSION
        raise_metadata_version(world, 33)
        assert refusal_of(0) is ErrorCode.INVALID_REQUEST  # it is the active one
        assert refusal_of(99) is ErrorCode.CONTROLLER_ID_NOT_REGISTERED
        world.do(world.controller.unregister_controller(7))
        assert set(world.image.cluster.controllers) == {0}
        assert refusal_of(7) is ErrorCode.CONTROLLER_ID_NOT_REGISTERED


class TestFencing:
    def test_a_silent_broker_is_fenced_and_its_partitions_get_other_leaders(self) -> None:
        world = ControllerHarness(brokers=2)
        world.create("orders", assignments=[[0, 1]])
        world.now_ns += 8 * SECOND_NS
        world.heartbeat(1)
        assert not world.do(world.controller.maybe_fence_stale_broker(world.now_ns))
        world.now_ns += 2 * SECOND_NS
        assert world.do(world.controller.maybe_fence_stale_broker(world.now_ns))
        assert not world.do(world.controller.maybe_fence_stale_broker(world.now_ns))
        assert world.image.cluster.brokers[0].fenced
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1,), 1)

    def test_the_last_in_sync_replica_stays_eligible_and_leads_again_when_it_is_back(self) -> None:
        world = ControllerHarness(brokers=2)
        world.create("orders", assignments=[[0, 1]])
        world.heartbeat(0, want_fence=True)
        world.heartbeat(1, want_fence=True)
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), (1,))
        world.heartbeat(0)
        assert world.partition("orders").leader == NO_LEADER, "it may lack what the last leader had"
        world.heartbeat(1)
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())
        assert partition.leader_recovery_state is LeaderRecoveryState.RECOVERED

    def test_after_an_unclean_shutdown_a_replica_is_not_eligible_but_the_last_leader_is_the_last_resort(
        self,
    ) -> None:
        world = ControllerHarness()
        world.create("orders", assignments=[[0]])
        register(world, registration(0, incarnation=2), supersede=True)
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), ())
        assert partition.last_known_elr == (0,)
        world.heartbeat(0)
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.last_known_elr) == (0, (0,), ())
        assert partition.leader_recovery_state is LeaderRecoveryState.RECOVERING

    def test_who_led_before_there_were_eligible_replicas_is_the_last_resort_too(self) -> None:
        world = ControllerHarness()
        update(world, ("eligible.leader.replicas.version", 0, SAFE_DOWNGRADE))
        world.create("orders", assignments=[[0]])
        world.heartbeat(0, want_fence=True)
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.last_known_elr) == (NO_LEADER, (0,), ())
        update(world, ("eligible.leader.replicas.version", 1, UPGRADE))
        register(world, registration(0, incarnation=2), supersede=True)
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), ())
        assert partition.last_known_elr == (0,)
        world.heartbeat(0)
        assert world.partition("orders").leader == 0

    def test_after_a_clean_shutdown_it_simply_leads_again(self) -> None:
        world = ControllerHarness()
        world.create("orders", assignments=[[0]])
        epoch = world.image.cluster.brokers[0].epoch
        register(world, registration(0, incarnation=2, previous_epoch=epoch), supersede=True)
        assert world.partition("orders").elr == (0,)
        world.heartbeat(0)
        partition = world.partition("orders")
        assert (partition.leader, partition.leader_recovery_state) == (0, LeaderRecoveryState.RECOVERED)

    def test_unregistering_takes_a_broker_out_of_everything(self) -> None:
        world = ControllerHarness(brokers=2)
        world.create("orders", assignments=[[0, 1]])
        world.do(world.controller.unregister_broker(0))
        assert 0 not in world.image.cluster.brokers
        assert world.partition("orders").isr == (1,)
        with pytest.raises(KafkaError) as error:
            world.do(world.controller.unregister_broker(0))
        assert error.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED

    def test_the_partitions_that_a_fenced_broker_leads_come_first(self) -> None:
        world = ControllerHarness(brokers=3)
        world.create("orders", assignments=[[1, 0], [0, 1], [1, 0], [0, 2]])
        start = world.next_offset
        world.heartbeat(0, want_fence=True)
        changed = [record for record in world.log[start:] if isinstance(record, PartitionChangeRecord)]
        assert [record.partition_id for record in changed] == [1, 3, 0, 2]


class TestControlledShutdown:
    def test_leaders_move_first_and_the_broker_goes_when_the_others_know(self) -> None:
        world = ControllerHarness(brokers=2)
        world.create("orders", assignments=[[0, 1]])
        reply = world.heartbeat(0, want_shut_down=True)
        assert (reply.in_controlled_shutdown, reply.should_shut_down) == (True, False)
        assert world.partition("orders").leader == 1
        assert world.image.cluster.brokers[0].in_controlled_shutdown
        world.heartbeat(1, offset=0)
        assert not world.heartbeat(0, want_shut_down=True).should_shut_down
        world.heartbeat(1)
        reply = world.heartbeat(0, want_shut_down=True)
        assert reply.should_shut_down
        assert world.image.cluster.brokers[0].fenced

    def test_a_broker_that_leads_nothing_goes_at_once(self) -> None:
        world = ControllerHarness(brokers=2)
        assert world.heartbeat(0, want_shut_down=True).should_shut_down

    def test_no_partition_is_placed_on_a_broker_that_leaves(self) -> None:
        world = ControllerHarness(brokers=2)
        world.create("orders", assignments=[[0, 1]])
        world.heartbeat(0, want_shut_down=True)
        world.create("letters", partitions=4, replicas=1)
        assert {world.partition("letters", i).leader for i in range(4)} == {1}


class TestDirectories:
    def test_a_failed_directory_costs_its_replicas_the_leadership(self) -> None:
        world = ControllerHarness(brokers=0)
        for broker in (0, 1):
            request = registration(broker)
            request.log_dirs = [directory_of(broker), directory_of(broker + 100)]
            register(world, request)
            world.heartbeat(broker)
        world.create("orders", assignments=[[0, 1]])
        assert world.partition("orders").directories == (bytes(15) + b"\x01",) * 2, "chosen by the brokers"
        topic = world.image.topics.by_name["orders"]
        request_dirs = AssignReplicasToDirsRequest(
            broker_id=0,
            broker_epoch=world.image.cluster.brokers[0].epoch,
            directories=[
                AssignReplicasToDirsRequestDirectoryData(
                    id=directory_of(0),
                    topics=[
                        AssignReplicasToDirsRequestTopicData(
                            topic_id=topic.id,
                            partitions=[
                                AssignReplicasToDirsRequestPartitionData(partition_index=0),
                                AssignReplicasToDirsRequestPartitionData(partition_index=9),
                            ],
                        )
                    ],
                )
            ],
        )
        response = world.do(world.controller.assign_replicas_to_dirs(request_dirs))
        codes = [each.error_code for each in response.directories[0].topics[0].partitions]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert world.partition("orders").directory(0) == directory_of(0)
        world.heartbeat(0, offline_log_dirs=[directory_of(0)])
        assert world.image.cluster.brokers[0].directories == (directory_of(100),)
        partition = world.partition("orders")
        assert (partition.leader, partition.isr) == (1, (1,))

    def test_a_replica_on_a_new_disk_does_not_lead_those_who_may_have_more(self) -> None:
        world = ControllerHarness(brokers=2)
        world.create("orders", assignments=[[0, 1]])
        leave_one_after_the_other(world, 1, 0)
        assert world.partition("orders").last_known_elr == (0,)
        on_a_new_disk(world, 0)
        register(world, registration(1, incarnation=2), supersede=True)
        for broker in (0, 1):
            world.heartbeat(broker)
        tell_of_directory(world, 0, directory_of(100))
        for broker in (0, 1):
            world.heartbeat(broker)
        assert world.partition("orders").leader == NO_LEADER
        asked = ElectLeadersRequest(election_type=1, topic_partitions=None)
        world.do(world.controller.elect_leaders(asked))
        assert world.partition("orders").leader == 1
        tell_of_directory(world, 0, directory_of(100))
        assert world.partition("orders").directory(0) == directory_of(100)

    def test_a_replica_on_a_new_disk_leads_where_nobody_has_anything(self) -> None:
        world = ControllerHarness()
        world.create("orders", assignments=[[0]])
        on_a_new_disk(world, 0)
        world.heartbeat(0)
        assert world.partition("orders").leader == NO_LEADER
        tell_of_directory(world, 0, directory_of(100))
        assert world.partition("orders").leader == 0

    def test_a_damaged_replica_is_neither_in_sync_nor_eligible_where_another_is(self) -> None:
        world = ControllerHarness(brokers=2)
        world.create("orders", assignments=[[0, 1]], configs={"min.insync.replicas": "2"})
        tell_of_directory(world, 0, DIRECTORY_DAMAGED)
        partition = world.partition("orders")
        assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())
        assert partition.directory(0) == DIRECTORY_DAMAGED
        # A fetch from before the damage does not bring it back.
        assert alter_isr(world, [0, 1]).error_code == ErrorCode.INELIGIBLE_REPLICA
        tell_of_directory(world, 0, directory_of(0))
        assert alter_isr(world, [0, 1]).error_code == ErrorCode.NONE

    def test_the_last_replica_in_sync_leads_again_once_it_is_not_damaged_any_more(self) -> None:
        world = ControllerHarness(brokers=2)
        world.create("orders", assignments=[[0, 1]])
        alter_isr(world, [0])
        tell_of_directory(world, 0, DIRECTORY_DAMAGED)
        for broker in (0, 1):
            world.heartbeat(broker)
        assert world.partition("orders").leader == NO_LEADER
        tell_of_directory(world, 0, directory_of(0))
        partition = world.partition("orders")
        assert (partition.leader, partition.isr) == (0, (0,))


def leave_one_after_the_other(world: ControllerHarness, *brokers: int) -> None:
    for broker in brokers:
        world.do(world.controller.fence_gone_broker(broker, world.image.cluster.brokers[broker].epoch))


def on_a_new_disk(world: ControllerHarness, broker: int) -> None:
    request = registration(broker, incarnation=2)
    request.log_dirs = [directory_of(broker + 100)]
    register(world, request, supersede=True)


def tell_of_directory(world: ControllerHarness, broker: int, directory: bytes) -> None:
    """Tell that the replica of orders-0 lies there."""
    topic = AssignReplicasToDirsRequestTopicData(
        topic_id=world.image.topics.by_name["orders"].id,
        partitions=[AssignReplicasToDirsRequestPartitionData(partition_index=0)],
    )
    request = AssignReplicasToDirsRequest(
        broker_id=broker,
        broker_epoch=world.image.cluster.brokers[broker].epoch,
        directories=[AssignReplicasToDirsRequestDirectoryData(id=directory, topics=[topic])],
    )
    world.do(world.controller.assign_replicas_to_dirs(request))


def test_producer_ids_are_given_out_in_blocks() -> None:
    world = ControllerHarness()
    request = AllocateProducerIdsRequest(broker_id=0, broker_epoch=world.image.cluster.brokers[0].epoch)
    blocks = [world.do(world.controller.allocate_producer_ids(request)) for _ in range(3)]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    assert world.image.next_producer_id == 3000
