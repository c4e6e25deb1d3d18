"""Images and deltas: sharing, faithful snapshots, records that contradict, transactions."""

from __future__ import annotations

import pytest

from ottla.metadata.image.delta import MetadataDelta, ReplayError, apply_records
from ottla.metadata.image.entities import ScramUser
from ottla.metadata.image.image import MetadataImage, Provenance, quota_record
from ottla.metadata.log.batch_loader import MetadataBatchLoader
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.protocol.metadata_records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
    decode_metadata_record,
)
from ottla.protocol.names import TopicPartition
from ottla.runtime.steps import run_at_once
from tests.metadata.controller_harness import ControllerHarness

ID = b"a-topic-id-of-16"
START: list[MetadataRecord] = [FeatureLevelRecord(name="metadata.version", feature_level=30)]


def partition(index: int = 0, replicas: tuple[int, ...] = (0,)) -> PartitionRecord:
    return PartitionRecord(
        topic_id=ID,
        partition_id=index,
        replicas=list(replicas),
        isr=list(replicas),
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[b"d" * 16] * len(replicas),
    )


def test_untouched_parts_are_shared() -> None:
    world = ControllerHarness()
    world.create("orders")
    before = world.image
    after = apply_records(
        before, [ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1")]
    )
    assert after.topics is before.topics
    assert after.cluster is before.cluster
    assert before.configs is not after.configs
    assert "retention.ms" not in before.config(next(iter(after.configs)))


def test_everything_the_log_can_hold_survives_a_snapshot() -> None:
    world = ControllerHarness(brokers=2)
    world.create("orders", assignments=[[0, 1]], configs={"retention.ms": "1"})
    image = apply_records(
        world.image,
        [
            quota_record((("client-id", "app"), ("user", None)), "producer_byte_rate", 1024.5),
            ProducerIdsRecord(broker_id=0, broker_epoch=1, next_producer_id=5000),
            AccessControlEntryRecord(
                id=b"i" * 16,
                resource_type=2,
                resource_name="orders",
                pattern_type=3,
                principal="User:a",
                host="*",
                operation=3,
                permission_type=3,
            ),
            UserScramCredentialRecord(
                name="a", mechanism=2, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
            ),
            DelegationTokenRecord(owner="User:a", requester="User:b", renewers=["User:c"], token_id="t"),
        ],
    )
    values = [encode_record(record, image.metadata_version) for record in image.records()]
    again = apply_records(MetadataImage.EMPTY, (decode_metadata_record(value)[0] for value in values))
    assert again == image
    assert again.scram[ScramUser(2, "a")].iterations == 4096
    assert again.client_quotas[(("client-id", "app"), ("user", None))] == {"producer_byte_rate": 1024.5}
    emptied = apply_records(
        again,
        [
            quota_record((("client-id", "app"), ("user", None)), "producer_byte_rate", None),
            RemoveAccessControlEntryRecord(id=b"i" * 16),
            RemoveUserScramCredentialRecord(name="a", mechanism=2),
            RemoveDelegationTokenRecord(token_id="t"),
        ],
    )
    assert not emptied.client_quotas
    assert not emptied.acls
    assert not emptied.scram
    assert not emptied.delegation_tokens


@pytest.mark.parametrize(
    "records",
    [
        [TopicRecord(name="a", topic_id=ID), TopicRecord(name="a", topic_id=b"x" * 16)],
        [TopicRecord(name="a", topic_id=ID), TopicRecord(name="b", topic_id=ID)],
        [partition()],
        [TopicRecord(name="a", topic_id=ID), PartitionChangeRecord(topic_id=ID, partition_id=0, leader=1)],
        [RemoveTopicRecord(topic_id=ID)],
        [UnregisterBrokerRecord(broker_id=1, broker_epoch=1)],
        [UnregisterControllerRecord(controller_id=1)],
        [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1)],
        [ProducerIdsRecord(next_producer_id=5), ProducerIdsRecord(next_producer_id=5)],
        [RemoveAccessControlEntryRecord(id=ID)],
        [FeatureLevelRecord(name="metadata.version", feature_level=99)],
        [TopicRecord(name="a", topic_id=ID), PartitionRecord(topic_id=ID, replicas=[0, 1], directories=[ID])],
        [BeginTransactionRecord()],
    ],
)
def test_records_that_contradict_the_image_are_refused(records: list[MetadataRecord]) -> None:
    with pytest.raises(ReplayError):
        apply_records(MetadataImage.EMPTY, [*START, *records])


def test_a_change_record_raises_the_epochs_it_should() -> None:
    image = apply_records(
        MetadataImage.EMPTY, [*START, TopicRecord(name="a", topic_id=ID), partition(replicas=(0, 1))]
    )
    shrunk = apply_records(image, [PartitionChangeRecord(topic_id=ID, partition_id=0, isr=[0])])
    found = shrunk.topics.partition(ID, 0)
    assert found is not None
    assert (found.isr, found.leader_epoch, found.partition_epoch) == ((0,), 0, 1)
    elected = apply_records(shrunk, [PartitionChangeRecord(topic_id=ID, partition_id=0, leader=0)])
    found = elected.topics.partition(ID, 0)
    assert found is not None
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (0, 1, 2)


def test_a_delta_tells_each_broker_its_part() -> None:
    base = apply_records(
        MetadataImage.EMPTY, [*START, TopicRecord(name="a", topic_id=ID), partition(replicas=(0, 1))]
    )
    delta = MetadataDelta(base)
    delta.replay(
        PartitionChangeRecord(
            topic_id=ID, partition_id=0, replicas=[1, 2], isr=[1], leader=1, directories=[b"d" * 16] * 2
        )
    )
    delta.replay(partition(1, (2, 1)))
    zero, one, two = TopicPartition("a", 0), TopicPartition("a", 1), 2
    assert set(run_at_once(delta.local_changes(0)).deletes) == {zero}
    changes = run_at_once(delta.local_changes(1))
    assert set(changes.elected_leaders) == {zero}
    assert set(changes.followers) == {one}
    changes = run_at_once(delta.local_changes(two))
    assert set(changes.followers) == {zero}
    assert set(changes.leaders) == {one}
    assert set(changes.directories) == {zero, one}
    assert not run_at_once(delta.local_changes(9))


def test_a_topic_removed_in_the_batch_that_made_it_leaves_no_trace() -> None:
    delta = MetadataDelta(MetadataImage.EMPTY)
    for record in (*START, TopicRecord(name="a", topic_id=ID), partition(), RemoveTopicRecord(topic_id=ID)):
        delta.replay(record)
    image = delta.apply(Provenance())
    assert not image.topics.by_id
    assert not delta.created_topics()
    assert not delta.deleted_topics


class TestTransactions:
    def test_nothing_shows_before_the_end(self) -> None:
        replayer = MetadataBatchLoader()
        replayer.replay([*START, BeginTransactionRecord(), TopicRecord(name="a", topic_id=ID)], Provenance(2))
        assert replayer.transaction_open
        assert not replayer.publish()[1].topics.by_name
        replayer.replay([partition(), EndTransactionRecord()], Provenance(4))
        _, image = replayer.publish()
        assert set(image.topics.by_name) == {"a"}
        assert image.provenance.last_contained_offset == 4

    def test_an_abort_takes_everything_back(self) -> None:
        replayer = MetadataBatchLoader()
        replayer.replay([*START, BeginTransactionRecord(), TopicRecord(name="a", topic_id=ID)], Provenance(2))
        replayer.replay([AbortTransactionRecord(), NoOpRecord()], Provenance(4))
        assert not replayer.transaction_open
        assert not replayer.publish()[1].topics.by_name

    @pytest.mark.parametrize(
        "records",
        [
            [BeginTransactionRecord(), BeginTransactionRecord()],
            [EndTransactionRecord()],
            [AbortTransactionRecord()],
        ],
    )
    def test_unbalanced_markers(self, records: list[MetadataRecord]) -> None:
        with pytest.raises(ReplayError):
            MetadataBatchLoader().replay(records, Provenance())
