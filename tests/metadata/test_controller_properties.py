"""A cluster lives through random requests and failures: whatever happens, the image stays valid and
replayable.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.metadata.controller.partition_index import PartitionIndex, PartitionRef
from ottla.metadata.image.delta import MetadataDelta, apply_records
from ottla.metadata.image.difference import records_between
from ottla.metadata.image.entities import NO_LEADER, ConfigResourceType
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.metadata.records import encode_record
from ottla.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.metadata_records import decode_metadata_record
from ottla.runtime.steps import run_at_once
from tests.metadata.controller_harness import SECOND_NS, ControllerHarness

BROKERS = range(4)
NAMES = ["a", "b", "a.b", "a_b"]

brokers = st.sampled_from(list(BROKERS))
names = st.sampled_from(NAMES)
broker_sets = st.lists(brokers, min_size=1, max_size=4, unique=True)


def keys(partitions: Iterable[PartitionRef]) -> set[tuple[str, int]]:
    return {(topic.name, number) for topic, number, _ in partitions}


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ControllerHarness(brokers=4)
        self.incarnation = 1
        self.epochs: dict[tuple[bytes, int], tuple[int, int]] = {}
        self.next_producer_id = 0
        self.earlier = self.world.image

    # Topics

    @rule(name=names, partitions=st.integers(-1, 3), replicas=st.integers(-1, 5))
    def create(self, name: str, partitions: int, replicas: int) -> None:
        self.world.create(
            name, partitions=partitions, replicas=replicas, configs={"min.insync.replicas": "2"}
        )

    @rule(name=names, assignment=broker_sets)
    def create_by_hand(self, name: str, assignment: list[int]) -> None:
        self.world.create(name, assignments=[assignment])

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.world.do(self.world.controller.delete_topics(DeleteTopicsRequest(topic_names=[name])))

    @rule(name=names, count=st.integers(1, 5))
    def grow(self, name: str, count: int) -> None:
        topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
        self.world.do(self.world.controller.create_partitions(CreatePartitionsRequest(topics=[topic])))

    @rule(
        name=st.sampled_from([*NAMES, ""]),
        key=st.sampled_from(["min.insync.replicas", "unclean.leader.election.enable", "cleanup.policy"]),
        operation=st.integers(0, 3),
        value=st.sampled_from(["1", "2", "true", "false", "compact"]),
    )
    def configure(self, name: str, key: str, operation: int, value: str) -> None:
        kind = ConfigResourceType.TOPIC if name else ConfigResourceType.BROKER
        if key == "min.insync.replicas" and not value.isdecimal():
            return
        change = AlterableConfig(name=key, config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        self.world.do(self.world.controller.incremental_alter_configs(request))

    # Brokers

    @rule(broker=brokers, clean=st.booleans())
    def restart_broker(self, broker: int, clean: bool) -> None:
        registered = self.world.image.cluster.brokers.get(broker)
        if registered is not None and not registered.fenced:
            self.world.heartbeat(broker, want_fence=True)
        self.incarnation = self.incarnation % 250 + 1
        previous = registered.epoch if registered is not None and clean else -1
        self.world.now_ns += 10 * SECOND_NS
        self.world.register(broker, incarnation=self.incarnation, previous_epoch=previous)
        self.world.heartbeat(broker)

    @rule(broker=brokers, fence=st.booleans(), leave=st.booleans())
    def heartbeat(self, broker: int, fence: bool, leave: bool) -> None:
        if broker in self.world.image.cluster.brokers:
            self.world.heartbeat(broker, want_fence=fence, want_shut_down=leave)

    @rule(seconds=st.integers(1, 20))
    def time_passes(self, seconds: int) -> None:
        self.world.now_ns += seconds * SECOND_NS
        while self.world.do(self.world.controller.maybe_fence_stale_broker(self.world.now_ns)):
            pass

    @rule(broker=brokers)
    def unregister(self, broker: int) -> None:
        registered = self.world.image.cluster.brokers.get(broker)
        if registered is not None and registered.fenced:
            self.world.do(self.world.controller.unregister_broker(broker))

    @rule(broker=brokers)
    def allocate_producer_ids(self, broker: int) -> None:
        registered = self.world.image.cluster.brokers.get(broker)
        if registered is None:
            return
        request = AllocateProducerIdsRequest(broker_id=broker, broker_epoch=registered.epoch)
        block = self.world.do(self.world.controller.allocate_producer_ids(request))
        assert block.producer_id_start >= self.next_producer_id, "a producer id was given out twice"
        self.next_producer_id = block.producer_id_start + block.producer_id_len

    # Partitions

    @rule(name=names, unclean=st.booleans())
    def elect(self, name: str, unclean: bool) -> None:
        request = ElectLeadersRequest(election_type=int(unclean), topic_partitions=None)
        self.world.do(self.world.controller.elect_leaders(request))

    @rule()
    def chores(self) -> None:
        self.world.do(self.world.controller.maybe_balance_partition_leaders())
        self.world.do(self.world.controller.elect_unclean_leaders())

    @rule(name=names, wanted=st.none() | broker_sets)
    def reassign(self, name: str, wanted: list[int] | None) -> None:
        partition = ReassignablePartition(partition_index=0, replicas=wanted)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=name, partitions=[partition])]
        )
        self.world.do(self.world.controller.alter_partition_reassignments(request))

    @rule(name=names, isr=broker_sets)
    def alter_isr(self, name: str, isr: list[int]) -> None:
        topic = self.world.image.topics.by_name.get(name)
        if topic is None or topic.partitions[0].leader == NO_LEADER:
            return
        partition = topic.partitions[0]
        asked = AlterPartitionRequestPartitionData(
            partition_index=0,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=broker) for broker in isr],
        )
        request = AlterPartitionRequest(
            broker_id=partition.leader,
            broker_epoch=self.world.image.cluster.brokers[partition.leader].epoch,
            topics=[AlterPartitionRequestTopicData(topic_id=topic.id, partitions=[asked])],
        )
        self.world.do(self.world.controller.alter_partition(request))

    @rule()
    def remember(self) -> None:
        self.earlier = self.world.image

    # What always holds

    @invariant()
    def the_difference_from_an_earlier_image_leads_here(self) -> None:
        for before in (MetadataImage.EMPTY, self.earlier):
            delta = MetadataDelta(before)
            for record in records_between(before, self.world.image):
                delta.replay(record)
            assert delta.apply(self.world.image.provenance) == self.world.image

    @invariant()
    def every_partition_is_valid(self) -> None:
        image = self.world.image
        for topic, index, partition in image.topics.partitions():
            where = f"{topic.name}-{index}: {partition}"
            assert len(set(partition.replicas)) == len(partition.replicas) > 0, where
            assert len(partition.directories) == len(partition.replicas), where
            assert set(partition.isr) <= set(partition.replicas), where
            assert not set(partition.isr) & set(partition.elr), where
            assert set(partition.adding_replicas) <= set(partition.replicas), where
            assert set(partition.removing_replicas) <= set(partition.replicas), where
            if partition.leader != NO_LEADER:
                assert partition.leader in partition.isr, where
                assert image.cluster.is_active(partition.leader), where

    @invariant()
    def epochs_only_grow(self) -> None:
        for topic, index, partition in self.world.image.topics.partitions():
            now = (partition.leader_epoch, partition.partition_epoch)
            before = self.epochs.get((topic.id, index), (0, 0))
            assert now[0] >= before[0]
            assert now[1] >= before[1]
            self.epochs[(topic.id, index)] = now

    @invariant()
    def the_index_is_what_a_walk_would_find(self) -> None:
        image, index = self.world.image, self.world.controller._state.index
        walked = PartitionIndex()
        run_at_once(walked.load(image))
        for broker in BROKERS:
            assert keys(index.in_isr(image, broker)) == keys(walked.in_isr(image, broker))
            assert keys(index.in_elr(image, broker)) == keys(walked.in_elr(image, broker))
            assert index.leads_anything(broker) == walked.leads_anything(broker)
        assert keys(index.leaderless(image)) == keys(walked.leaderless(image))
        assert keys(index.imbalanced(image)) == keys(walked.imbalanced(image))

    @invariant()
    def names_and_ids_agree(self) -> None:
        topics = self.world.image.topics
        assert {topic.id: topic for topic in topics.by_name.values()} == topics.by_id
        keys = [name.replace(".", "_") for name in topics.by_name if "." in name or "_" in name]
        assert len(set(keys)) == len(keys), "two topics collide"

    @invariant()
    def a_snapshot_is_the_image(self) -> None:
        image = self.world.image
        encoded = [encode_record(record, image.metadata_version) for record in image.records()]
        assert (
            apply_records(MetadataImage.EMPTY, (decode_metadata_record(value)[0] for value in encoded))
            == image
        )

    def teardown(self) -> None:
        """The log, read from its beginning, gives the same image."""
        replayer = MetadataBatchLoader()
        replayer.replay(self.world.log, self.world.image.provenance)
        assert replayer.publish()[1] == self.world.image


Cluster.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestCluster = pytest.mark.slow(Cluster.TestCase)
