"""Names of files and directories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.directory.dir_names import (
    MAX_DIR_NAME_BYTES,
    DirKind,
    dir_name,
    moved_dir_name,
    parse_dir_name,
)
from ottla.log.segment.file_names import (
    SEGMENT_KINDS,
    SNAPSHOT,
    SegmentFile,
    parse_segment_file,
    segment_file_name,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition

TOPICS = st.text(alphabet="abcXYZ019._-", min_size=1, max_size=249)
PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1))


@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from([*SEGMENT_KINDS, SNAPSHOT]),
    st.sampled_from(["", ".cleaned", ".swap", ".deleted"]),
)
def test_a_segment_file_is_known_by_its_name(offset: int, kind: str, suffix: str) -> None:
    assert parse_segment_file(segment_file_name(offset, kind, suffix)) == SegmentFile(offset, kind, suffix)


def test_offsets_have_twenty_digits() -> None:
    assert segment_file_name(42, ".timeindex", ".swap") == "00000000000000000042.timeindex.swap"


@pytest.mark.parametrize(
    "name",
    [
        "leader-epoch-checkpoint",
        "42.log",
        "00000000000000000042.log.tmp",
        "00000000000000000042.checkpoint",
        "٠0000000000000000042.log",
        "",
    ],
)
def test_other_files_are_not_taken_for_segments(name: str) -> None:
    assert parse_segment_file(name) is None


@given(PARTITIONS)
def test_a_partition_is_known_by_its_directory(partition: TopicPartition) -> None:
    assert parse_dir_name(dir_name(partition)) == (partition, DirKind.CURRENT)


@given(
    PARTITIONS,
    st.sampled_from([DirKind.DELETE, DirKind.FUTURE, DirKind.STRAY, DirKind.DAMAGED]),
    st.binary(min_size=16, max_size=16),
)
def test_a_moved_directory_fits_the_file_system_and_keeps_its_partition(
    partition: TopicPartition, kind: DirKind, unique_id: bytes
) -> None:
    name = moved_dir_name(partition, kind, unique_id)
    assert len(name) <= MAX_DIR_NAME_BYTES
    parsed, parsed_kind = parse_dir_name(name)
    assert parsed_kind is kind
    assert parsed.partition == partition.partition
    assert partition.topic.startswith(parsed.topic)


@pytest.mark.parametrize(
    "name", ["lost+found", "orders", "orders-", "-1", "orders-x", "orders-0-delete", "orders-4294967296"]
)
def test_a_directory_that_is_no_partition_is_refused_by_name(name: str) -> None:
    with pytest.raises(KafkaError, match="not named topic-partition") as refused:
        parse_dir_name(name)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert repr(name) in refused.value.message
