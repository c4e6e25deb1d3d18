"""Format directories, read them back, and refuse directories that do not belong together."""

from __future__ import annotations

import pytest

from ottla.log.directory.meta_properties import (
    MetaProperties,
    StorageError,
    assign_directory_id,
    load_directories,
    read_meta_properties,
)
from ottla.metadata.log.bootstrap_metadata import bootstrap_records, format_directory, read_bootstrap
from ottla.raft.snapshot import decode_snapshot
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address
from ottla.runtime.disk import write_file
from ottla.runtime.random import SeededRandom
from ottla.sim.disk import SimDisk

RANDOM = SeededRandom(1)


def formatted(disk: SimDisk, dir: str, *, cluster: str = "one", node: int = 1) -> MetaProperties:
    return format_directory(disk, RANDOM, disk.clock, dir, cluster_id=cluster, node_id=node)


def write_properties(disk: SimDisk, dir: str, text: str) -> None:
    disk.make_dirs(dir)
    write_file(disk, f"{dir}/meta.properties", text.encode())


def test_formatting_and_reading_back() -> None:
    disk = SimDisk()
    written = formatted(disk, "/a/b/c")
    assert read_meta_properties(disk, "/a/b/c") == written
    assert read_bootstrap(disk, "/a/b/c") == bootstrap_records()
    disk.crash()
    assert read_meta_properties(disk, "/a/b/c") == written, "it survives a power cut"


def test_what_kafka_writes_is_understood() -> None:
    disk = SimDisk()
    text = (
        "#\n#Sun Nov 15 08:51:17 UTC 2026\ncluster.id=a\\=b\\:c\n"
        "directory.id=J8aAPcfLQt2bqs1JT_rMgQ\nnode.id=7\nversion=1\n"
    )
    write_properties(disk, "/a", text)
    found = read_meta_properties(disk, "/a")
    assert found is not None
    assert (found.cluster_id, found.node_id) == ("a=b:c", 7)
    assert MetaProperties.decode(found.encode(), "x") == found


def test_an_old_file_without_directory_id_gets_one() -> None:
    disk = SimDisk()
    write_properties(disk, "/a", "version=0\ncluster.id=one\nbroker.id=3\n")
    found = read_meta_properties(disk, "/a")
    assert found is not None
    assert (found.node_id, found.directory_id) == (3, None)
    upgraded = assign_directory_id(disk, RANDOM, "/a", found)
    assert upgraded.directory_id is not None
    assert read_meta_properties(disk, "/a") == upgraded
    assert assign_directory_id(disk, RANDOM, "/a", upgraded) is upgraded


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version=9\ncluster.id=one\nnode.id=1\n", "has version 9"),
        ("version=1\nnode.id=1\n", "lacks a valid cluster.id or node.id"),
        ("version=1\ncluster.id=one\nnode.id=x\n", "lacks a valid cluster.id or node.id"),
        ("version=1\ncluster.id=one\nnode.id=1\ndirectory.id=short\n", "not an id"),
        ("version=1\ncluster.id=one\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n", "is reserved"),
    ],
)
def test_files_that_make_no_sense(text: str, words: str) -> None:
    disk = SimDisk()
    write_properties(disk, "/a", text)
    with pytest.raises(StorageError, match=words):
        read_meta_properties(disk, "/a")


def test_directories_that_belong_together() -> None:
    disk = SimDisk()
    first = formatted(disk, "/a")
    disk.make_dirs("/empty")
    assert load_directories(disk, ["/a", "/empty"], node_id=1) == {"/a": first, "/empty": None}


def test_directories_that_do_not() -> None:
    disk = SimDisk()
    first = formatted(disk, "/a")
    formatted(disk, "/other-cluster", cluster="two")
    formatted(disk, "/other-node", node=2)
    with pytest.raises(StorageError, match=r"has cluster.id two, not one"):
        load_directories(disk, ["/a", "/other-cluster"])
    with pytest.raises(StorageError, match=r"belongs to node 2, and this node is 1"):
        load_directories(disk, ["/a", "/other-node"])
    with pytest.raises(StorageError, match=r"belongs to node 1, and this node is 9"):
        load_directories(disk, ["/a"], node_id=9)
    disk.make_dirs("/copy")
    write_file(disk, "/copy/meta.properties", first.encode())
    with pytest.raises(StorageError, match="one is a copy of the other"):
        load_directories(disk, ["/a", "/copy"])


def test_a_damaged_bootstrap_checkpoint_is_named() -> None:
    disk = SimDisk()
    formatted(disk, "/a")
    write_file(disk, "/a/bootstrap.checkpoint", b"rubbish")
    with pytest.raises(StorageError, match=r"/a/bootstrap.checkpoint cannot be read"):
        read_bootstrap(disk, "/a")


def test_dynamic_voters_get_a_snapshot_of_their_own() -> None:
    disk = SimDisk()
    voters = VoterSet.of(Voter(ReplicaKey(1, b"d" * 16), {"CONTROLLER": Address("localhost", 9093)}))
    format_directory(
        disk,
        RANDOM,
        disk.clock,
        "/a",
        cluster_id="one",
        node_id=1,
        directory_id=b"d" * 16,
        dynamic_voters=voters,
    )
    content = decode_snapshot(
        disk.contents()["/a/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"]
    )
    assert (content.kraft_version, content.voters, content.values) == (1, voters, [])
