"""Turn the state of ZooKeeper into the records of a metadata snapshot. Pure, the same for each controller.

Every id that ZooKeeper does not have is derived from what it has, so that the controllers of a cluster, which
may be imported on different machines, begin with the same bytes, and a second run writes what the first one
did. The cluster is stopped, so no partition has a leader: brokers that come back are elected from the in-sync
set, in the next leader epoch. The directories of replicas are left to their brokers, which report them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    GROUP_VERSION,
    METADATA_VERSION,
    TRANSACTION_VERSION,
    MetadataVersion,
    bootstrap_levels,
)
from ottla.metadata.image.entities import (
    CLUSTER_DEFAULT,
    DIRECTORY_MIGRATING,
    NO_LEADER,
    AccessControlEntry,
    ConfigResource,
    ConfigResourceType,
    DelegationToken,
    LeaderRecoveryState,
    PartitionRegistration,
    QuotaEntity,
    ScramCredential,
    ScramUser,
    TopicImage,
)
from ottla.metadata.image.image import FeaturesImage, MetadataImage, TopicsImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.names import invalid_topic_name
from ottla.zookeeper.migration.cluster_reader import ReadTopic, ZooKeeperCluster
from ottla.zookeeper.migration.findings import Findings, some_of
from ottla.zookeeper.migration.password_encoder import is_encoded
from ottla.zookeeper.znodes import ScramZNodeCredential, ZNodeFormatError

# Settings that Apache Kafka 4.0 dropped: a topic that has one could not be altered any more.
REMOVED_TOPIC_CONFIGS: Final = frozenset(
    ("message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms")
)
REMOVED_BROKER_CONFIGS: Final = frozenset(
    (
        *("log.message.format.version", "log.message.downconversion.enable"),
        *("log.message.timestamp.difference.max.ms", "inter.broker.protocol.version"),
    )
)
_SCRAM_MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_QUOTA_KEYS: Final = frozenset(
    (
        *("producer_byte_rate", "consumer_byte_rate", "request_percentage"),
        *("controller_mutation_rate", "connection_creation_rate"),
    )
)

DecodePassword = Callable[[str], str]


@dataclass(slots=True)
class ImportedMetadata:
    image: MetadataImage
    findings: Findings
    topic_ids: dict[str, bytes] = field(default_factory=dict)

    def records(self) -> list[MetadataRecord]:
        return self.image.records()


def import_metadata(
    cluster: ZooKeeperCluster, version: MetadataVersion, decode_password: DecodePassword | None = None
) -> ImportedMetadata:
    """The metadata that the cluster has as one on a quorum. What cannot come over is among the findings."""
    assert cluster.cluster_id is not None
    return _Import(cluster, version, decode_password).run()


def derived_id(*parts: object) -> bytes:
    """An id that is the same whenever it is asked for, and of version 4 in its form."""
    digest = bytearray(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x40
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


class _Import:
    def __init__(
        self, cluster: ZooKeeperCluster, version: MetadataVersion, decode_password: DecodePassword | None
    ) -> None:
        self._cluster: Final = cluster
        self._version: Final = version
        self._decode_password: Final = decode_password
        self._findings: Final = Findings()
        self._topic_ids: Final[dict[str, bytes]] = {}
        self._given_ids: Final[list[str]] = []
        self._stateless: Final[list[str]] = []  # partitions whose creation was interrupted
        self._without_isr: Final[list[str]] = []

    def run(self) -> ImportedMetadata:
        self._findings.problems += [f"{line}: correct or delete this znode" for line in self._cluster.damaged]
        topics = self._topics()
        image = MetadataImage(
            features=self._features(),
            topics=TopicsImage(
                {topic.id: topic for topic in topics}, {topic.name: topic for topic in topics}
            ),
            configs=self._configs(),
            client_quotas=self._quotas(),
            next_producer_id=self._next_producer_id(),
            acls=self._acls(),
            scram=self._scram(),
            delegation_tokens=self._tokens(),
        )
        return ImportedMetadata(image, self._findings, self._topic_ids)

    def _features(self) -> FeaturesImage:
        levels = bootstrap_levels(self._version)
        del levels[METADATA_VERSION]
        if levels.pop(ELIGIBLE_LEADER_REPLICAS_VERSION, 0):
            # Whether a broker stopped cleanly is known only of brokers that have registered before: the
            # first start would take all of them out of the in-sync sets.
            self._findings.notes.append(
                f"{ELIGIBLE_LEADER_REPLICAS_VERSION} begins at 0, as after an upgrade; raise it once all "
                "brokers have started"
            )
        features = {} if self._cluster.features is None else self._cluster.features.features
        unknown = []
        for name, level in sorted(features.items()):
            if name in (GROUP_VERSION, TRANSACTION_VERSION):
                # Of Ottla's legacy mode; records that were written at a level are not read at a lower one.
                levels[name] = max(level, levels.get(name, 0))
            else:
                unknown.append(name)
        if unknown:
            self._findings.left_behind.append(
                f"the finalized features {some_of(unknown)}: the metadata.version decides instead"
            )
        return FeaturesImage(self._version, levels)

    # Topics

    def _topics(self) -> list[TopicImage]:
        found = []
        deleted = set(self._cluster.deleted_topics)
        for name, topic in sorted(self._cluster.topics.items()):
            if name in deleted:
                continue
            if (reason := invalid_topic_name(name)) is not None:
                self._findings.problems.append(f"{reason}: no cluster on a quorum takes it")
                continue
            found.append(self._topic(name, topic))
        gone = sorted(deleted & set(self._cluster.topics))
        if gone:
            self._findings.left_behind.append(
                f"topics in deletion: {some_of(gone)}; brokers put their logs aside as -stray"
            )
        if self._stateless:
            self._findings.warnings.append(
                f"{some_of(self._stateless)}: no state, as their creation was interrupted; all their "
                "replicas begin in sync"
            )
        if self._without_isr:
            self._findings.warnings.append(
                f"{some_of(self._without_isr)}: no in-sync replica; offline until an unclean election"
            )
        if self._given_ids:
            self._findings.notes.append(f"topics that had no id and get one: {some_of(self._given_ids)}")
        for partition, replicas in sorted(self._cluster.requested_reassignments.items()):
            self._findings.left_behind.append(
                f"the requested reassignment of {partition} to {list(replicas)}, which has not begun"
            )
        return found

    def _topic(self, name: str, topic: ReadTopic) -> TopicImage:
        id = topic.znode.topic_id
        if id is None:
            id = derived_id("topic", self._cluster.cluster_id, name, topic.created_zxid)
            self._given_ids.append(name)
        self._topic_ids[name] = id
        numbers = list(topic.znode.assignment)
        if numbers != list(range(len(numbers))):
            self._findings.problems.append(f"Topic '{name}' has partitions {numbers}, with gaps between them")
        partitions = {number: self._partition(name, topic, number) for number in numbers}
        return TopicImage(name, id, partitions)

    def _partition(self, name: str, topic: ReadTopic, number: int) -> PartitionRegistration:
        assignment = topic.znode.assignment[number]
        state = topic.states.get(number)
        label = f"{name}-{number}"
        replicas = assignment.replicas
        if not replicas or len(set(replicas)) != len(replicas):
            self._findings.problems.append(f"{label} has the replicas {list(replicas)}")
        if state is None:
            self._stateless.append(label)
            isr, leader_epoch, recovery = replicas, 0, LeaderRecoveryState.RECOVERED
        else:
            isr = tuple(id for id in state.isr if id in replicas)
            if isr != state.isr:
                others = [id for id in state.isr if id not in replicas]
                self._findings.warnings.append(f"{label} has {others} in sync, which are no replicas of it")
            if not isr:
                self._without_isr.append(label)
            leader_epoch = state.leader_epoch
            recovery = LeaderRecoveryState(1 if state.leader_recovery_state else 0)
        return PartitionRegistration(
            replicas=replicas,
            directories=(DIRECTORY_MIGRATING,) * len(replicas),
            isr=isr,
            leader=NO_LEADER,
            leader_epoch=leader_epoch,
            partition_epoch=topic.partition_epochs.get(number, 0),
            removing_replicas=assignment.removing,
            adding_replicas=assignment.adding,
            leader_recovery_state=recovery,
        )

    # Configurations

    def _configs(self) -> dict[ConfigResource, dict[str, str]]:
        configs: dict[ConfigResource, dict[str, str]] = {}
        removed: dict[str, list[str]] = {}
        for topic, values in sorted(self._cluster.topic_configs.items()):
            if topic not in self._topic_ids:
                if topic not in self._cluster.deleted_topics and values:
                    self._findings.left_behind.append(f"the configuration of '{topic}', which is no topic")
                continue
            for name in sorted(REMOVED_TOPIC_CONFIGS & set(values)):
                removed.setdefault(name, []).append(topic)
            kept = self._plain(f"topic {topic}", values, REMOVED_TOPIC_CONFIGS)
            if kept:
                configs[ConfigResource(ConfigResourceType.TOPIC, topic)] = kept
        for name, topics in removed.items():
            self._findings.left_behind.append(f"{name} of {some_of(topics)}: Apache Kafka dropped it in 4.0")
        for broker, values in sorted(self._cluster.broker_configs.items(), key=_by_name):
            for name in sorted(REMOVED_BROKER_CONFIGS & set(values)):
                self._findings.left_behind.append(
                    f"{name} of {_broker(broker)}: Apache Kafka dropped it in 4.0"
                )
            kept = self._plain(_broker(broker), values, REMOVED_BROKER_CONFIGS)
            if kept:
                resource = (
                    CLUSTER_DEFAULT if broker is None else ConfigResource(ConfigResourceType.BROKER, broker)
                )
                configs[resource] = kept
        return configs

    def _plain(self, owner: str, values: Mapping[str, str], removed: frozenset[str]) -> dict[str, str]:
        """The values as a quorum keeps them: passwords are not encrypted there."""
        plain = {}
        for name, value in sorted(values.items()):
            if name in removed:
                continue
            if is_encoded(value):
                if self._decode_password is None:
                    self._findings.problems.append(
                        f"{name} of {owner} is encrypted: give the server.properties with its "
                        "password.encoder.secret"
                    )
                    continue
                try:
                    value = self._decode_password(value)
                except ValueError as error:
                    self._findings.problems.append(f"{name} of {owner} cannot be decrypted: {error}")
                    continue
                self._findings.notes.append(
                    f"{name} of {owner} is not encrypted in the metadata log: protect its directory"
                )
            plain[name] = value
        return plain

    # Users, clients and addresses

    def _quotas(self) -> dict[QuotaEntity, dict[str, float]]:
        quotas: dict[QuotaEntity, dict[str, float]] = {}
        for entity, values in self._quota_entities():
            for name, text in sorted(values.items()):
                if name in _SCRAM_MECHANISMS:
                    continue
                try:
                    value = float(text)
                except ValueError:
                    value = -1.0
                if name not in _QUOTA_KEYS or not value > 0:
                    self._findings.problems.append(
                        f"{_entity(entity)} has {name}={text}, which is no quota: remove it, or set one"
                    )
                    continue
                quotas.setdefault(entity, {})[name] = value
        return quotas

    def _quota_entities(self) -> Iterator[tuple[QuotaEntity, dict[str, str]]]:
        cluster = self._cluster
        for type, configs in (
            ("user", cluster.user_configs),
            ("client-id", cluster.client_configs),
            ("ip", cluster.ip_configs),
        ):
            for name, values in sorted(configs.items(), key=_by_name):
                yield ((type, name),), values
        for (user, client), values in sorted(
            cluster.user_client_configs.items(), key=lambda item: (item[0][0] or "", item[0][1] or "")
        ):
            yield (("client-id", client), ("user", user)), values

    def _scram(self) -> dict[ScramUser, ScramCredential]:
        users: dict[ScramUser, ScramCredential] = {}
        for name, values in sorted(self._cluster.user_configs.items(), key=_by_name):
            for mechanism, number in _SCRAM_MECHANISMS.items():
                if mechanism not in values or name is None:
                    continue
                try:
                    found = ScramZNodeCredential.decode(f"user {name}", values[mechanism])
                except ZNodeFormatError as error:
                    self._findings.problems.append(str(error))
                    continue
                users[ScramUser(number, name)] = ScramCredential(
                    found.salt, found.stored_key, found.server_key, found.iterations
                )
        if users and not self._version.scram:
            self._findings.problems.append(
                f"{len(users)} SCRAM credentials need metadata.version 3.5-IV2 or later, not {self._version}"
            )
        return users

    # The rest

    def _acls(self) -> dict[bytes, AccessControlEntry]:
        acls = {}
        for (pattern, resource, name), entries in sorted(self._cluster.acls.items()):
            for entry in entries:
                acl = AccessControlEntry(
                    resource,
                    name,
                    pattern,
                    entry.principal,
                    entry.host,
                    entry.operation,
                    entry.permission_type,
                )
                acls[derived_id("acl", self._cluster.cluster_id, pattern, resource, name, *entry)] = acl
        return acls

    def _tokens(self) -> dict[str, DelegationToken]:
        tokens = {
            token.token_id: DelegationToken(
                id=token.token_id,
                owner=token.owner,
                requester=token.requester,
                renewers=token.renewers,
                issue_timestamp=token.issue_timestamp_ms,
                max_timestamp=token.max_timestamp_ms,
                expiration_timestamp=token.expiry_timestamp_ms,
            )
            for token in sorted(self._cluster.tokens, key=lambda each: each.token_id)
        }
        if tokens and not self._version.delegation_tokens:
            self._findings.problems.append(
                f"{len(tokens)} delegation tokens need metadata.version 3.6-IV2 or later, not {self._version}"
            )
        return tokens

    def _next_producer_id(self) -> int:
        block = self._cluster.producer_ids
        return -1 if block is None else block.last + 1


def _by_name(item: tuple[str | None, object]) -> str:
    return item[0] or ""


def _broker(name: str | None) -> str:
    return "all brokers" if name is None else f"broker {name}"


def _entity(entity: QuotaEntity) -> str:
    return " and ".join(f"{type} {'(default)' if name is None else name!r}" for type, name in entity)
