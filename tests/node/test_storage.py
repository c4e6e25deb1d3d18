"""Taking over data directories: format, lock, recognise, refuse."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.log.directory.meta_properties import read_meta_properties
from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.server.storage import open_storage
from ottla.runtime.runtime import Runtime


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    runtime = Runtime.real(pool_workers=1)
    yield runtime
    runtime.close()


def config(*dirs: Path, **settings: str) -> NodeConfig:
    given = {"log.dirs": ",".join(map(str, dirs))}
    return NodeConfig(given | {name.replace("_", "."): value for name, value in settings.items()})


def test_an_empty_directory_is_formatted_and_keeps_its_identity(runtime: Runtime, tmp_path: Path) -> None:
    first = open_storage(runtime, config(tmp_path / "a"))
    first.release()
    again = open_storage(runtime, config(tmp_path / "a"))
    again.release()
    assert (again.cluster_id, again.node_id, again.directories) == (
        first.cluster_id,
        first.node_id,
        first.directories,
    )
    assert (tmp_path / "a" / "meta.properties").exists()
    assert (tmp_path / "a" / "bootstrap.checkpoint").exists()


def test_a_directory_that_joins_later_becomes_part_of_the_same_node(runtime: Runtime, tmp_path: Path) -> None:
    first = open_storage(runtime, config(tmp_path / "a"))
    first.release()
    both = open_storage(runtime, config(tmp_path / "a", tmp_path / "b"))
    both.release()
    assert both.cluster_id == first.cluster_id
    assert len(set(both.directories.values())) == 2


def test_the_stored_node_id_counts_unless_another_is_asked_for(runtime: Runtime, tmp_path: Path) -> None:
    open_storage(runtime, config(tmp_path, node_id="7")).release()
    storage = open_storage(runtime, config(tmp_path))
    storage.release()
    assert storage.node_id == 7
    with pytest.raises(NodeFailed, match="belongs to node 7, and this node is 8"):
        open_storage(runtime, config(tmp_path, node_id="8"))


def test_a_directory_in_use_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    storage = open_storage(runtime, config(tmp_path))
    with pytest.raises(NodeFailed, match="in use by another node"):
        open_storage(runtime, config(tmp_path))
    storage.release()
    open_storage(runtime, config(tmp_path)).release()


def test_directories_of_two_clusters_are_refused_and_unlocked_again(runtime: Runtime, tmp_path: Path) -> None:
    for name in "ab":
        open_storage(runtime, config(tmp_path / name)).release()
    with pytest.raises(NodeFailed, match="another cluster"):
        open_storage(runtime, config(tmp_path / "a", tmp_path / "b"))
    open_storage(runtime, config(tmp_path / "a")).release()


def test_a_directory_with_other_things_in_it_is_never_formatted(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(NodeFailed, match=r"is not empty .*so it is not the data directory of a node"):
        open_storage(runtime, config(tmp_path))
    assert read_meta_properties(runtime.disk, str(tmp_path)) is None


def test_a_start_that_was_cut_short_while_formatting_is_taken_up_again(
    runtime: Runtime, tmp_path: Path
) -> None:
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"half")
    open_storage(runtime, config(tmp_path)).release()
    assert (tmp_path / "meta.properties").exists()


def test_a_directory_whose_disk_failed_is_left_aside(
    runtime: Runtime, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    first = open_storage(runtime, config(a, b))
    first.release()
    b.rename(tmp_path / "gone")
    b.write_text("what a broken mount may look like")
    without = open_storage(runtime, config(a, b))
    without.release()
    assert without.directories == {str(a): first.directories[str(a)]}
    assert without.failed == {str(b): f"cannot use {b}: it is a file, not a directory"}
    assert f"{b}: it is a file" in caplog.text
    b.unlink()
    (tmp_path / "gone").rename(b)
    again = open_storage(runtime, config(a, b))
    again.release()
    assert (again.directories, again.failed) == (first.directories, {})


def test_a_node_does_not_begin_anew_without_its_metadata(runtime: Runtime, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    open_storage(runtime, config(a, b)).release()
    (a / "meta.properties").unlink()
    (a / "bootstrap.checkpoint").unlink()
    with pytest.raises(NodeFailed, match="the directory of the metadata log, but"):
        open_storage(runtime, config(a, b))
    assert not (a / "meta.properties").exists()


def test_a_metadata_log_is_not_begun_where_it_is_not(runtime: Runtime, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    open_storage(runtime, config(a, b)).release()
    (a / "__cluster_metadata-0").mkdir()
    with pytest.raises(NodeFailed, match=f"set metadata.log.dir to {a}"):
        open_storage(runtime, config(a, b, metadata_log_dir=str(b)))
    with pytest.raises(NodeFailed, match=f"set metadata.log.dir to {a}"):
        open_storage(runtime, config(b, a))


def test_a_path_that_cannot_hold_a_directory_is_one_line(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeFailed, match=r"^cannot use .*not a directory$"):
        open_storage(runtime, config(tmp_path / "file" / "data"))
    with pytest.raises(NodeFailed, match=r"^cannot use .*a file, not a directory$"):
        open_storage(runtime, config(tmp_path / "file"))


def test_the_directories_of_a_broker_on_zookeeper_are_refused_and_not_touched(
    runtime: Runtime, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    log = old / "orders-0" / "00000000000000000000.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"")
    properties = old / "meta.properties"
    properties.write_text("#\nversion=0\nbroker.id=3\ncluster.id=NjX7PqHSRUmpKQSZEDlZuw\n")
    for dirs in ((old,), (new, old), (old, new)):
        with pytest.raises(NodeFailed) as refused:
            open_storage(runtime, config(*dirs, node_id="3"))
        assert str(refused.value).startswith(f"{properties} has version=0: the directory is of broker 3")
        assert "`ottla zookeeper import`" in str(refused.value)
        assert not new.exists()
        assert sorted(path.name for path in old.iterdir()) == ["meta.properties", "orders-0"]


def test_the_directories_of_a_migrated_broker_are_its_own(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / "__cluster_metadata-0" / "00000000000000000000.log").touch()
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=3\ncluster.id=NjX7PqHSRUmpKQSZEDlZuw\n")
    storage = open_storage(runtime, config(tmp_path, node_id="3"))
    storage.release()
    assert (storage.node_id, storage.cluster_id) == (3, "NjX7PqHSRUmpKQSZEDlZuw")


def test_a_directory_of_another_cluster_than_the_configured_one_is_refused(
    runtime: Runtime, tmp_path: Path
) -> None:
    storage = open_storage(runtime, config(tmp_path))
    storage.release()
    own = NodeConfig({"log.dirs": str(tmp_path), "cluster.id": storage.cluster_id})
    open_storage(runtime, own).release()
    other = NodeConfig({"log.dirs": str(tmp_path), "cluster.id": "NjX7PqHSRUmpKQSZEDlZuw"})
    with pytest.raises(NodeFailed, match=f"has cluster.id {storage.cluster_id}, not NjX7.*another cluster"):
        open_storage(runtime, other)


LEGACY = {
    "metadata.store": "zookeeper",
    "zookeeper.connect": "127.0.0.1:1/none",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "cluster.id": "NjX7PqHSRUmpKQSZEDlZuw",
}


def legacy_config(dir: Path) -> NodeConfig:
    return NodeConfig({**LEGACY, "log.dirs": str(dir)})


def test_a_directory_of_the_legacy_mode_is_refused_without_its_setting(
    runtime: Runtime, tmp_path: Path
) -> None:
    """A quorum of its own would know none of the topics, and have their logs put aside."""
    open_storage(runtime, legacy_config(tmp_path)).release()
    (tmp_path / "orders-0").mkdir()
    with pytest.raises(NodeFailed, match=r"topics of this directory are in ZooKeeper.*metadata\.store="):
        open_storage(runtime, config(tmp_path))
    assert (tmp_path / "orders-0").is_dir()
    open_storage(runtime, legacy_config(tmp_path)).release()


def test_a_directory_of_a_quorum_is_refused_in_the_legacy_mode(runtime: Runtime, tmp_path: Path) -> None:
    open_storage(runtime, config(tmp_path)).release()
    (tmp_path / "__cluster_metadata-0").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(NodeFailed, match="is the metadata log of a quorum"):
        open_storage(runtime, legacy_config(tmp_path))
    assert sorted(tmp_path.iterdir()) == before
    open_storage(runtime, config(tmp_path)).release()
