"""The small text files, as Kafka writes them."""

from __future__ import annotations

import pytest

from ottla.log.directory import checkpoints
from ottla.log.directory.checkpoints import CorruptCheckpoint, OffsetCheckpoint
from ottla.log.directory.meta_properties import MetaProperties, read_meta_properties
from ottla.log.leader_epoch_cache import LeaderEpochCache, read_epochs
from ottla.protocol.names import TopicPartition
from ottla.runtime.disk import write_file
from ottla.sim.disk import SimDisk

ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 12)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(1)
    disk.make_dirs("/data")
    disk.sync_all()
    return disk


def put(disk: SimDisk, name: str, text: str) -> str:
    write_file(disk, f"/data/{name}", text.encode())
    return f"/data/{name}"


def entries(disk: SimDisk, path: str) -> bytes:
    """A file without the blanks at the ends of its lines."""
    return b"\n".join(line.rstrip(b" \t") for line in disk.contents()[path].split(b"\n"))


def test_offsets_are_written_as_kafka_writes_them(disk: SimDisk) -> None:
    checkpoints.write_offsets(disk, "/data/c", {ORDERS: 42, BILLS: 7})
    assert entries(disk, "/data/c") == b"0\n2\norders 0 42\nbills 12 7\n"
    assert checkpoints.read_offsets(disk, "/data/c") == {ORDERS: 42, BILLS: 7}


def test_a_missing_or_empty_checkpoint_has_no_offsets(disk: SimDisk) -> None:
    assert checkpoints.read_offsets(disk, "/data/none") == {}
    assert checkpoints.read_offsets(disk, put(disk, "empty", "")) == {}
    assert checkpoints.read_offsets(disk, put(disk, "version", "0\n")) == {}


@pytest.mark.parametrize(
    "text",
    [
        "1\n0\n",
        "0\n2\norders 0 42\n",
        "0\n1\norders 0\n",
        "0\n1\norders zero 42\n",
        "0\nx\n",
        "\x00\x00\x00",
        "0\n1\na 0 1\nb 0 1\n",
    ],
)
def test_a_damaged_checkpoint_is_reported(disk: SimDisk, text: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="/data/bad"):
        checkpoints.read_offsets(disk, put(disk, "bad", text))


def test_offsets_that_kafka_has_written_are_read(disk: SimDisk) -> None:
    path = put(disk, "c", "0\n2\norders 0 42\nbills 12 7\n")
    assert checkpoints.read_offsets(disk, path) == {ORDERS: 42, BILLS: 7}


def test_each_flipped_bit_of_a_checkpoint_is_seen(disk: SimDisk) -> None:
    """Also one that turns a digit into another."""
    checkpoints.write_offsets(disk, "/data/c", {ORDERS: 1042, BILLS: 7})
    written = disk.contents()["/data/c"]
    for bit in range(8 * len(written)):
        flipped = bytearray(written)
        flipped[bit // 8] ^= 1 << bit % 8
        write_file(disk, "/data/bad", bytes(flipped))
        with pytest.raises(CorruptCheckpoint):
            checkpoints.read_offsets(disk, "/data/bad")


def test_epochs_are_written_as_kafka_writes_them(disk: SimDisk) -> None:
    cache = LeaderEpochCache([(0, 0), (3, 100)])
    cache.write(disk, "/data", cache.prepare_write())
    assert entries(disk, "/data/leader-epoch-checkpoint") == b"0\n2\n0 0\n3 100\n"
    assert read_epochs(disk, "/data/leader-epoch-checkpoint") == [(0, 0), (3, 100)]


def test_the_topic_id_is_written_as_kafka_writes_it(disk: SimDisk) -> None:
    topic_id = bytes.fromhex("2da7ba6c3dc44c8d8a7f8bd2ad8a3c9d")
    checkpoints.write_topic_id(disk, "/data/p", topic_id)
    assert disk.contents()["/data/p"] == b"version: 0\ntopic_id: Lae6bD3ETI2Kf4vSrYo8nQ"
    assert checkpoints.read_topic_id(disk, "/data/p") == topic_id
    assert checkpoints.read_topic_id(disk, "/data/none") is None


@pytest.mark.parametrize(
    "text", ["", "version: 1\ntopic_id: Lae6bD3ETI2Kf4vSrYo8nQ", "version: 0\ntopic_id: x", "version: 0"]
)
def test_a_damaged_topic_id_is_reported(disk: SimDisk, text: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        checkpoints.read_topic_id(disk, put(disk, "p", text))


def test_meta_properties_of_kafka_are_understood(disk: SimDisk) -> None:
    put(
        disk,
        "meta.properties",
        "#\n#Sat Nov 15 09:00:00 UTC 2025\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
        "directory.id=Lae6bD3ETI2Kf4vSrYo8nQ\nnode.id=7\nversion=1\n",
    )
    properties = read_meta_properties(disk, "/data")
    assert properties is not None
    assert (properties.cluster_id, properties.node_id) == ("MkU3OEVBNTcwNTJENDM2Qk", 7)
    write_file(disk, "/data/meta.properties", MetaProperties("c", 3, bytes(range(16))).encode())
    assert read_meta_properties(disk, "/data") == MetaProperties("c", 3, bytes(range(16)))
    assert read_meta_properties(disk, "/") is None


def test_the_mark_of_a_clean_shutdown_carries_the_broker_epoch(disk: SimDisk) -> None:
    assert checkpoints.read_clean_shutdown(disk, "/data") is None
    checkpoints.write_clean_shutdown(disk, "/data", 37)
    assert disk.contents()["/data/.kafka_cleanshutdown"] == b'{"version":"0","broker_epoch":"37"}'
    assert checkpoints.read_clean_shutdown(disk, "/data") == 37
    put(disk, ".kafka_cleanshutdown", "")
    assert checkpoints.read_clean_shutdown(disk, "/data") == -1


def test_a_staged_checkpoint_is_installed_unless_something_newer_came(disk: SimDisk) -> None:
    checkpoint = OffsetCheckpoint(disk, "/data/c")
    staged = checkpoint.stage({ORDERS: 10}, checkpoint.begin())
    assert staged is not None
    staged.write()
    assert checkpoint.install(staged)
    # A crash may bring the older content back until the name is synced.
    assert checkpoint.may_hold_above(ORDERS, 10)
    staged.sync_name()
    checkpoint.on_synced(staged)
    assert not checkpoint.may_hold_above(ORDERS, 10)
    assert checkpoint.stage({ORDERS: 10}, checkpoint.begin()) is None

    late = checkpoint.stage({ORDERS: 20}, checkpoint.begin())
    assert late is not None
    late.write()
    checkpoint.write({ORDERS: 5})
    assert not checkpoint.install(late)
    assert checkpoints.read_offsets(disk, "/data/c") == {ORDERS: 5}


def test_a_write_is_durable_even_over_one_that_is_not(disk: SimDisk) -> None:
    checkpoint = OffsetCheckpoint(disk, "/data/c")
    checkpoint.write({ORDERS: 50})
    staged = checkpoint.stage({ORDERS: 40}, checkpoint.begin())
    assert staged is not None
    staged.write()
    assert checkpoint.install(staged)
    checkpoint.write({ORDERS: 40})
    for seed in range(20):
        assert checkpoints.read_offsets(disk.after_crash(seed), "/data/c") == {ORDERS: 40}
