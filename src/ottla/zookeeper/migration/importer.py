"""Write what a cluster from ZooKeeper needs to start with a quorum of controllers: all at once
and offline, where Kafka's `KRaftMigrationDriver` copied it while the cluster ran.

A controller gets the whole metadata as a snapshot, as if it had fetched it from a leader; every directory
gets a `meta.properties` of version 1, and keeps the old one beside it. A log whose topic had no id gets it in
`partition.metadata`: Apache Kafka 4 takes a log without for a stray. Neither ZooKeeper nor the segments of a
log are changed.

The order makes an interruption harmless: the ids of topics come first, and a directory of a broker on
ZooKeeper is refused by every node until its `meta.properties` is new and its mark of the legacy mode gone, or
the metadata log is there, which comes with one rename and complete. A second run does the same again. Once a
node has started in a directory, nothing is written there any more: that is looked at again when the locks of
all directories are held.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ottla.log.directory.checkpoints import LOCK, PARTITION_METADATA, write_topic_id
from ottla.log.directory.dir_names import DirKind, moved_dir_name
from ottla.log.directory.meta_properties import (
    META_PROPERTIES,
    ZOOKEEPER_MARK,
    MetaProperties,
    StorageError,
    mark_of_zookeeper,
    read_meta_properties,
    unmark_of_zookeeper,
)
from ottla.metadata.features import MetadataVersion
from ottla.metadata.log.bootstrap_metadata import BOOTSTRAP_CHECKPOINT, encode_bootstrap
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.protocol.metadata_records import FeatureLevelRecord
from ottla.protocol.names import CLUSTER_METADATA_PARTITION, METADATA_PARTITION_DIR
from ottla.raft.driver.quorum_state_store import FILE_NAME as QUORUM_STATE
from ottla.raft.driver.snapshots import SnapshotStore
from ottla.raft.snapshot import SnapshotId, encode_snapshot
from ottla.runtime.disk import Disk, Lock, read_file, write_file
from ottla.zookeeper.migration.cluster_reader import ZooKeeperCluster
from ottla.zookeeper.migration.data_directories import (
    DirectoryFacts,
    check_identity,
    check_partitions,
    read_directory,
)
from ottla.zookeeper.migration.findings import Findings
from ottla.zookeeper.migration.metadata_records import ImportedMetadata, derived_id

# The `meta.properties` of a broker on ZooKeeper, kept for the way back.
OLD_META_PROPERTIES: Final = "meta.properties.zookeeper"
# The quorum begins after this epoch.
_EPOCH: Final = 1
# What a file system may have at its top.
_LOST_FOUND: Final = "lost+found"
_Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ImportNode:
    """A node of the new cluster whose directories are on this machine; the first has the metadata log."""

    id: int
    paths: tuple[str, ...]
    is_broker: bool = True
    is_controller: bool = False

    @property
    def metadata_dir(self) -> str:
        return self.paths[0]


@dataclass(slots=True)
class ImportPlan:
    """What an import would write; `findings.problems` is empty if it can."""

    cluster_id: str
    version: MetadataVersion
    nodes: list[ImportNode]
    snapshot_id: SnapshotId
    snapshot: bytes = field(repr=False)
    bootstrap: bytes = field(repr=False)
    findings: Findings = field(default_factory=Findings)
    facts: dict[str, DirectoryFacts] = field(default_factory=dict)
    new_topic_ids: dict[str, bytes] = field(default_factory=dict)
    """The ids that logs do not have yet, by the paths of the partitions."""
    pending: list[str] = field(default_factory=list)
    """The files and directories that are not as they will be."""

    @property
    def digest(self) -> str:
        """What has to be the same on each machine: controllers that begin with different metadata diverge."""
        return hashlib.sha256(self.snapshot).hexdigest()[:16]


def check_cluster(cluster: ZooKeeperCluster) -> list[str]:
    """Why a cluster cannot be imported now, as ZooKeeper knows it; empty if it can."""
    if cluster.cluster_id is None:
        return [
            "there is no /cluster/id: no Kafka has its metadata here. Is the chroot in zookeeper.connect?"
        ]
    problems = []
    if cluster.migration is not None:
        problems.append(
            f"a migration to KRaft by Apache Kafka has begun (/migration names controller "
            f"{cluster.migration.kraft_controller_id}): complete it, or roll it back, with Apache Kafka 3.9"
        )
    if cluster.brokers:
        ids = ", ".join(map(str, sorted(cluster.brokers)))
        problems.append(
            f"brokers are running: {ids} (in /brokers/ids). Stop them first; the registration of one that "
            "was killed goes away with its session, after zookeeper.session.timeout.ms"
        )
    elif cluster.controller is not None:
        problems.append(
            f"/controller names {cluster.controller.broker_id}: a controller is running. Stop it first"
        )
    elif cluster.has_changed:
        problems.append(
            "/controller_epoch has changed while the znodes were read: a controller has run. Stop all "
            "brokers, and run the import again"
        )
    return problems


def plan_import(
    disk: Disk,
    cluster: ZooKeeperCluster,
    imported: ImportedMetadata,
    version: MetadataVersion,
    nodes: Sequence[ImportNode],
) -> ImportPlan:
    """Look at all directories, and decide what is to be written. Only reads."""
    assert cluster.cluster_id is not None
    records = imported.records()
    id = SnapshotId(len(records), _EPOCH)
    plan = ImportPlan(
        cluster_id=cluster.cluster_id,
        version=version,
        nodes=list(nodes),
        snapshot_id=id,
        snapshot=_snapshot(records, version, id, cluster.changed_ms),
        bootstrap=encode_bootstrap(
            [record for record in records if isinstance(record, FeatureLevelRecord)], cluster.changed_ms
        ),
    )
    plan.findings.add_all(imported.findings)
    for node in nodes:
        facts = _look(disk, node, plan)
        plan.findings.add_all(check_identity(facts, node.id, cluster.cluster_id))
        if not node.is_broker:
            plan.findings.problems += _check_empty(disk, facts, node)
        if node.is_broker:
            plan.findings.add_all(check_partitions(facts, node.id, imported.image, cluster.deleted_topics))
            _plan_topic_ids(facts, node, imported, plan)
        plan.findings.problems += _check_metadata_dirs(disk, node)
        plan.pending += _pending(disk, node, plan)
    return plan


def _snapshot(
    records: Sequence[MetadataRecord], version: MetadataVersion, id: SnapshotId, now_ms: int
) -> bytes:
    return b"".join(
        encode_snapshot(
            (encode_record(record, version) for record in records),
            epoch=id.epoch,
            timestamp=now_ms,
            last_contained_log_timestamp=now_ms,
        )
    )


def _look(disk: Disk, node: ImportNode, plan: ImportPlan) -> list[DirectoryFacts]:
    found = []
    for path in node.paths:
        if not disk.is_dir(path):
            if disk.exists(path):
                plan.findings.problems.append(f"{path}, given for node {node.id}, is not a directory")
            elif node.is_broker:
                plan.findings.problems.append(
                    f"{path}, a directory of broker {node.id}, does not exist: is its disk mounted? If it "
                    "never had data, or its data are lost, take it out of log.dirs"
                )
            continue
        try:
            plan.facts[path] = read_directory(disk, path)
            found.append(plan.facts[path])
        except StorageError as error:
            plan.findings.problems.append(str(error))
        except OSError as error:
            plan.findings.problems.append(
                f"cannot read {error.filename or path}: {error.strerror}. If its disk has failed, take "
                f"{path} out of log.dirs"
            )
    return found


def _check_empty(disk: Disk, found: Sequence[DirectoryFacts], node: ImportNode) -> list[str]:
    """Why a controller that is no broker cannot have a directory: it is not its own, and not empty."""
    problems = []
    for facts in found:
        if facts.properties is not None:
            continue
        own = (LOCK, META_PROPERTIES, BOOTSTRAP_CHECKPOINT, METADATA_PARTITION_DIR)  # of an import that ended
        others = [
            name
            for name in sorted(disk.list_dir(facts.path))
            if name != _LOST_FOUND and not name.startswith(own)
        ]
        if others:
            problems.append(
                f"{facts.path}, the directory of controller {node.id}, is not empty: it has {others[0]}. "
                "Give the controller a directory of its own"
            )
    return problems


def _plan_topic_ids(
    found: Sequence[DirectoryFacts], node: ImportNode, imported: ImportedMetadata, plan: ImportPlan
) -> None:
    topics = imported.image.topics.by_name
    for facts in found:
        missing = 0
        for partition, id in facts.topic_ids.items():
            topic = topics.get(partition.topic)
            registration = None if topic is None else topic.partitions.get(partition.partition)
            if id is None and topic is not None and registration and node.id in registration.replicas:
                plan.new_topic_ids[posixpath.join(facts.path, str(partition))] = topic.id
                missing += 1
        if missing:
            plan.pending.append(f"{PARTITION_METADATA} of {missing} partitions in {facts.path}")


def _check_metadata_dirs(disk: Disk, node: ImportNode) -> list[str]:
    """Why the metadata log must not be written: a node that has started since has metadata that is newer than
    ZooKeeper's, in whichever directory.
    """
    problems = []
    for path in node.paths:
        directory = posixpath.join(path, METADATA_PARTITION_DIR)
        if not disk.is_dir(directory):
            continue
        traces = [
            name for name in sorted(disk.list_dir(directory)) if name.endswith(".log") or name == QUORUM_STATE
        ]
        if traces:
            problems.append(
                f"{directory} has {traces[0]}: node {node.id} has started since the import, and what is in "
                "ZooKeeper is older than what it knows. To begin again, restore its directories as they were"
            )
        elif path != node.metadata_dir:
            problems.append(
                f"{directory} is of an import when {path} was the first of log.dirs: put it first again, or "
                "remove the metadata there"
            )
    return problems


def _pending(disk: Disk, node: ImportNode, plan: ImportPlan) -> list[str]:
    """What is not yet as it will be."""
    pending = []
    if node.is_controller:
        snapshot = posixpath.join(node.metadata_dir, METADATA_PARTITION_DIR, plan.snapshot_id.file_name)
        if not disk.exists(snapshot) or read_file(disk, snapshot) != plan.snapshot:
            pending.append(snapshot)
        bootstrap = posixpath.join(node.metadata_dir, BOOTSTRAP_CHECKPOINT)
        if not disk.exists(bootstrap) or read_file(disk, bootstrap) != plan.bootstrap:
            pending.append(bootstrap)
    elif disk.is_dir(former := posixpath.join(node.metadata_dir, METADATA_PARTITION_DIR)):
        pending.append(f"{former} (removed)")
    for number, path in enumerate(node.paths):
        facts = plan.facts.get(path)
        wanted = _properties(plan, node, number, None if facts is None else facts.properties)
        if facts is None or facts.properties != wanted:
            pending.append(posixpath.join(path, META_PROPERTIES))
        mark = posixpath.join(path, ZOOKEEPER_MARK)
        if disk.exists(mark):
            pending.append(f"{mark} (removed)")
    return pending


def _properties(
    plan: ImportPlan, node: ImportNode, number: int, current: MetaProperties | None
) -> MetaProperties:
    """The new properties of a directory, which keeps the id that it has."""
    id = None if current is None else current.directory_id
    if id is None:
        id = derived_id("directory", plan.cluster_id, node.id, number)
    return MetaProperties(plan.cluster_id, node.id, id)


@contextmanager
def locked_directories(disk: Disk, paths: Sequence[str], *, create: bool) -> Iterator[list[str]]:
    """Hold the locks of the directories, which running brokers have; StorageError if one is taken.

    Without `create`, only of those that a broker has ever locked: the others are not touched.
    """
    locks: list[Lock] = []
    locked: list[str] = []
    try:
        for path in paths:
            file = posixpath.join(path, LOCK)
            if create:
                disk.make_dirs(path)
            elif not disk.exists(file):
                continue
            try:
                locks.append(disk.lock(file))
                locked.append(path)
            except BlockingIOError:
                raise StorageError(
                    f"Failed to acquire lock on file {LOCK} in {path}: a broker runs there, or another "
                    "import. Stop it first; nothing was written"
                ) from None
        yield locked
    finally:
        for lock in locks:
            lock.release()


def write_import(disk: Disk, plan: ImportPlan, *, progress: _Step = lambda _: None) -> None:
    """Write what is pending, durably. The caller holds the locks of the directories. StorageError, and
    nothing is written, if a node has used one since the plan was made.
    """
    assert not plan.findings.problems, plan.findings.problems
    _check_unchanged(disk, plan)
    for path, topic_id in plan.new_topic_ids.items():
        write_topic_id(disk, posixpath.join(path, PARTITION_METADATA), topic_id)
    for node in plan.nodes:
        if node.is_controller:
            _write_metadata(disk, node, plan, progress)
        else:
            _remove_metadata(disk, node, plan)
        for number, path in enumerate(node.paths):
            current = read_meta_properties(disk, path)
            wanted = _properties(plan, node, number, current)
            if current != wanted:
                file = posixpath.join(path, META_PROPERTIES)
                if current is not None and current.version == 0:
                    write_file(disk, posixpath.join(path, OLD_META_PROPERTIES), read_file(disk, file))
                write_file(disk, file, wanted.encode())
                progress(file)
            unmark_of_zookeeper(disk, path)


def _check_unchanged(disk: Disk, plan: ImportPlan) -> None:
    for node in plan.nodes:
        for problem in _check_metadata_dirs(disk, node):
            raise StorageError(f"{problem}. Nothing was written")
        for path in node.paths:
            facts = plan.facts.get(path)
            if read_meta_properties(disk, path) != (None if facts is None else facts.properties):
                raise StorageError(
                    f"{posixpath.join(path, META_PROPERTIES)} was changed just now, by another program. "
                    "Nothing was written; run the import again"
                )


def _write_metadata(disk: Disk, node: ImportNode, plan: ImportPlan, progress: _Step) -> None:
    """Write the metadata log of a controller: a snapshot, in a directory that appears complete."""
    path = node.metadata_dir
    directory = posixpath.join(path, METADATA_PARTITION_DIR)
    snapshot = posixpath.join(directory, plan.snapshot_id.file_name)
    unfinished = _unfinished(node, plan)
    _remove(disk, unfinished)
    if not disk.exists(snapshot) or read_file(disk, snapshot) != plan.snapshot:
        if disk.is_dir(directory):
            # The state in ZooKeeper has changed since an import: that one must not be started any more.
            _forget_import(disk, node)
            disk.rename(directory, unfinished)
            disk.sync_dir(path)
            _remove(disk, unfinished)
        disk.make_dirs(unfinished)
        SnapshotStore(disk, unfinished).write(plan.snapshot_id, [plan.snapshot])
        disk.rename(unfinished, directory)
        disk.sync_dir(path)
        progress(snapshot)
    bootstrap = posixpath.join(path, BOOTSTRAP_CHECKPOINT)
    if not disk.exists(bootstrap) or read_file(disk, bootstrap) != plan.bootstrap:
        write_file(disk, bootstrap, plan.bootstrap)
        progress(bootstrap)


def _remove_metadata(disk: Disk, node: ImportNode, plan: ImportPlan) -> None:
    """Remove what an import has left that made the node a controller: it would begin with that."""
    directory, unfinished = (
        posixpath.join(node.metadata_dir, METADATA_PARTITION_DIR),
        _unfinished(node, plan),
    )
    _remove(disk, unfinished)
    if disk.is_dir(directory):
        disk.rename(directory, unfinished)
        disk.sync_dir(node.metadata_dir)
        _remove(disk, unfinished)


def _unfinished(node: ImportNode, plan: ImportPlan) -> str:
    """A directory whose name every Kafka takes for the rest of a partition that was deleted."""
    id = derived_id("unfinished", plan.cluster_id, node.id)
    name = moved_dir_name(CLUSTER_METADATA_PARTITION, DirKind.DELETE, id)
    return posixpath.join(node.metadata_dir, name)


def _forget_import(disk: Disk, node: ImportNode) -> None:
    """Make the directory of the metadata log again one that no node starts in: by its old properties, or, of
    a node of the legacy mode, whose properties are the same before and after, by its mark.
    """
    path = node.metadata_dir
    old, new = posixpath.join(path, OLD_META_PROPERTIES), posixpath.join(path, META_PROPERTIES)
    if disk.exists(old):
        write_file(disk, new, read_file(disk, old))
    elif node.is_broker:
        mark_of_zookeeper(disk, path)
    elif disk.exists(new):
        disk.unlink(new)
        disk.sync_dir(path)


def _remove(disk: Disk, directory: str) -> None:
    if not disk.is_dir(directory):
        return
    for name in disk.list_dir(directory):
        disk.unlink(posixpath.join(directory, name))
    disk.remove_dir(directory)
