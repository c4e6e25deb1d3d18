"""Look into the data directories of a stopped broker: whose they are, and whether they fit the metadata.

Only reads. Blocks: for the pool, or for a command.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.log.directory.checkpoints import PARTITION_METADATA, CorruptCheckpoint, read_topic_id
from ottla.log.directory.dir_names import DirKind, parse_dir_name
from ottla.log.directory.meta_properties import (
    META_PROPERTIES,
    MetaProperties,
    StorageError,
    read_meta_properties,
)
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import CLUSTER_METADATA_TOPIC, TopicPartition, uuid_text
from ottla.runtime.disk import Disk
from ottla.zookeeper.migration.findings import Findings, some_of

# Where the magic number is, in batches of every version.
_MAGIC_POSITION: Final = 16
_CURRENT_MAGIC: Final = 2


@dataclass(slots=True)
class DirectoryFacts:
    path: str
    properties: MetaProperties | None = None
    topic_ids: dict[TopicPartition, bytes | None] = field(default_factory=dict)
    """The partitions whose logs are here, with the topic's id if it is written beside them."""
    old_formats: dict[TopicPartition, int] = field(default_factory=dict)
    """Segments whose records are in a format from before Kafka 0.11, by partition."""


def read_directory(disk: Disk, path: str) -> DirectoryFacts:
    """Look into one directory; StorageError or OSError if that is not possible."""
    facts = DirectoryFacts(path, read_meta_properties(disk, path))
    for name in sorted(disk.list_dir(path)):
        directory = posixpath.join(path, name)
        if not disk.is_dir(directory):
            continue
        try:
            partition, kind = parse_dir_name(name)
        except KafkaError:
            continue  # not a partition: `lost+found`, or what an operator has put there
        if kind is not DirKind.CURRENT or partition.topic == CLUSTER_METADATA_TOPIC:
            continue
        metadata = posixpath.join(directory, PARTITION_METADATA)
        try:
            facts.topic_ids[partition] = read_topic_id(disk, metadata)
        except (CorruptCheckpoint, ValueError) as error:
            raise StorageError(f"{metadata} cannot be read: {error}") from None
        old = sum(1 for each in disk.list_dir(directory) if _is_old(disk, directory, each))
        if old:
            facts.old_formats[partition] = old
    return facts


def _is_old(disk: Disk, directory: str, name: str) -> bool:
    if not name.endswith(".log"):
        return False
    file = disk.open(posixpath.join(directory, name), writable=False)
    try:
        magic = file.pread(1, _MAGIC_POSITION)
    finally:
        file.close()
    return bool(magic) and magic[0] < _CURRENT_MAGIC


def check_identity(found: Iterable[DirectoryFacts], broker_id: int, cluster_id: str) -> Findings:
    """Whether the directories are of this broker of this cluster, on ZooKeeper or imported already."""
    findings = Findings()
    for facts in found:
        properties = facts.properties
        path = posixpath.join(facts.path, META_PROPERTIES)
        if properties is None:
            if facts.topic_ids:
                findings.problems.append(
                    f"{facts.path} has partitions but no {META_PROPERTIES}: is it of this broker?"
                )
            continue
        if properties.cluster_id != cluster_id:
            findings.problems.append(
                f"{path} has cluster.id {properties.cluster_id}, and the one in ZooKeeper is {cluster_id}: "
                "these are the data of another cluster"
            )
        if properties.node_id != broker_id:
            findings.problems.append(
                f"{path} belongs to broker {properties.node_id}, not to {broker_id}: give each broker its "
                "own directories"
            )
    return findings


def check_partitions(
    found: Iterable[DirectoryFacts], broker_id: int, image: MetadataImage, deleted: Iterable[str]
) -> Findings:
    """Compare the logs of a broker with the replicas that it should have."""
    findings = Findings()
    places: dict[TopicPartition, str] = {}
    strays: list[str] = []
    topics = image.topics.by_name
    in_deletion = frozenset(deleted)
    for facts in found:
        for partition, topic_id in facts.topic_ids.items():
            if (other := places.setdefault(partition, facts.path)) != facts.path:
                findings.problems.append(
                    f"{partition} is in {other} and in {facts.path}: no broker starts with both; move the "
                    "older one away"
                )
            topic = topics.get(partition.topic)
            registration = None if topic is None else topic.partitions.get(partition.partition)
            if topic is None or registration is None or broker_id not in registration.replicas:
                if partition.topic not in in_deletion:
                    strays.append(str(partition))
                continue
            if topic_id is not None and topic_id != topic.id:
                findings.problems.append(
                    f"{facts.path}/{partition} is of a topic with the id {uuid_text(topic_id)}, and "
                    f"'{topic.name}' in ZooKeeper has {uuid_text(topic.id)}: it is of an older topic of that "
                    "name; move it away"
                )
    if strays:
        findings.warnings.append(
            f"logs on broker {broker_id} that ZooKeeper knows nothing of, and which it will put aside as "
            f"-stray: {some_of(sorted(strays))}"
        )
    missing = [
        f"{topic.name}-{number}"
        for topic, number, registration in image.topics.partitions()
        if broker_id in registration.isr and TopicPartition(topic.name, number) not in places
    ]
    if missing:
        findings.warnings.append(
            f"broker {broker_id} is in sync for partitions of which it has no log: "
            f"{some_of(sorted(missing))}. Are all its directories given? As the only one in sync it would "
            "begin with an empty log"
        )
    _check_formats(found, broker_id, findings)
    return findings


def _check_formats(found: Iterable[DirectoryFacts], broker_id: int, findings: Findings) -> None:
    old: Mapping[str, int] = {
        str(partition): segments for facts in found for partition, segments in facts.old_formats.items()
    }
    if old:
        findings.warnings.append(
            f"{sum(old.values())} segments on broker {broker_id} have records in a format from before "
            f"Kafka 0.11 (message.format.version): {some_of(sorted(old))}. Apache Kafka 4 serves them as "
            "they are; for Ottla, rewrite them with `ottla storage upgrade-format` after the import"
        )
