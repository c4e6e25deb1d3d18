"""What a broker counts for each topic: records, bytes, changes of in-sync sets; sums keep what is deleted."""

from ottla.protocol.errors import ErrorCode
from ottla.replication.topic_statistics import BrokerTopicStatistics
from tests.replication.partition_harness import PartitionHarness, registration


def test_appends_of_the_leader_are_counted_in_records_and_bytes() -> None:
    harness = PartitionHarness()
    harness.produce(3)
    harness.produce(2)
    counts = harness.partition.statistics
    assert (counts.messages_in, counts.produces) == (5, 2)
    assert counts.bytes_in == harness.log.size
    assert counts.replication_bytes_in == 0


def test_changes_of_the_isr_count_once_the_controller_has_made_them() -> None:
    harness = PartitionHarness(replicas=(0, 1, 2))
    counts = harness.partition.statistics
    harness.produce(1)
    harness.follow(1, 1)
    harness.clock.advance_ms(31_000)
    harness.partition.maybe_shrink_isr(harness.now_ms)
    assert counts.isr_shrinks == 0
    harness.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert counts.failed_isr_updates == 1
    harness.confirm()
    assert (counts.isr_shrinks, counts.isr_expands) == (1, 0)
    harness.follow(2, 1)
    harness.confirm()
    assert (counts.isr_shrinks, counts.isr_expands) == (1, 1)


def test_a_change_that_the_metadata_log_brings_first_counts_too_and_once() -> None:
    harness = PartitionHarness(replicas=(0, 1))
    counts = harness.partition.statistics
    partition = harness.partition
    partition.make_leader(registration(replicas=(0, 1), isr=(0,), partition_epoch=5), harness.now_ms)
    partition.make_leader(registration(replicas=(0, 1), isr=(0,), partition_epoch=6), harness.now_ms)
    assert (counts.isr_shrinks, counts.isr_expands) == (1, 0)


def test_the_counts_of_a_deleted_topic_stay_in_the_sum() -> None:
    every = BrokerTopicStatistics()
    every.of("orders").messages_in += 7
    assert every.of("orders").messages_in == 7
    every.retire("orders")
    every.retire("orders")
    assert every.retired.messages_in == 7
    assert every.of("orders").messages_in == 0
