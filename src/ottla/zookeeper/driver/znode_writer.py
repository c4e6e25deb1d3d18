"""`ZNodeWriter`: the writes to znodes that store a batch of metadata records.

Each change of a partition is one conditional write of its state, so the version of that znode is the
partition's epoch, as in Kafka; whatever else a batch changes is written once, as it is after the batch. The
writes of a batch are split where ZooKeeper's limits require it, in an order in which a controller that finds
only the first ones can finish: a topic whose deletion does not fit in one transaction is first noted in
`/admin/delete_topics`, and a partition without a state is one that was just created. Invariant: a partition's
epoch in the image of what is written equals the version of its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ottla.metadata.controller.producer_ids import PRODUCER_ID_BLOCK_SIZE
from ottla.metadata.features import METADATA_VERSION
from ottla.metadata.image.delta import MetadataDelta, TopicDelta
from ottla.metadata.image.entities import (
    ConfigResource,
    ConfigResourceType,
    PartitionRegistration,
    QuotaEntity,
    TopicImage,
)
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.acl import PatternType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.metadata_records import (
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from ottla.protocol.names import TopicPartition
from ottla.runtime.steps import Steps
from ottla.runtime.zookeeper import CreateZNode, DeleteZNode, SetZNode, ZooKeeperOperation
from ottla.zookeeper import znodes
from ottla.zookeeper.driver.broker_znode import RegisteredBroker, registration_path

# What one transaction may have: ZooKeeper's servers refuse a request of more than a megabyte.
MAX_OPERATIONS: Final = 1_000
MAX_BYTES: Final = 512 * 1024
_OPERATION_BYTES: Final = 64

SCRAM_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
# Quotas that Kafka writes with a fraction; the others are whole numbers.
_REAL_QUOTAS: Final = frozenset(("request_percentage", "controller_mutation_rate"))
_CONFIG_TYPES: Final = {ConfigResourceType.TOPIC: "topics", ConfigResourceType.BROKER: "brokers"}
# The features that `/feature` has a place for; the others need records that have no znode.
STORED_FEATURES: Final = frozenset(("group.version", "transaction.version"))


def check_storable(record: MetadataRecord) -> None:
    """KafkaError if there is no znode for a record."""
    if isinstance(record, ConfigRecord) and record.resource_type not in _CONFIG_TYPES:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "With metadata.store=zookeeper, only topics and brokers have configurations: Kafka has no znodes "
            "for those of groups and of client metrics.",
        )
    if isinstance(record, FeatureLevelRecord) and record.name not in STORED_FEATURES:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"With metadata.store=zookeeper, the level of {record.name} cannot be changed; those that can "
            f"are {', '.join(sorted(STORED_FEATURES))}.",
        )


class ZNodeWriter:
    """`image` has everything that was translated, and `paths` the znodes that are there of those that are
    created when they are first needed: configurations, ACLs, tokens and the directories above them.
    """

    def __init__(self, image: MetadataImage, paths: Iterable[str], controller_epoch: int) -> None:
        self.image = image
        self._paths: Final = set(paths)
        self._epoch: Final = controller_epoch

    def translate(self, records: Sequence[MetadataRecord]) -> Steps[list[ZooKeeperOperation]]:
        """The writes that store the records, which are applied to `image`."""
        delta = MetadataDelta(self.image)
        states: list[ZooKeeperOperation] = []
        producer_ids: ProducerIdsRecord | None = None
        registered: dict[int, None] = {}
        for record in records:
            yield
            if isinstance(record, BeginTransactionRecord | EndTransactionRecord | NoOpRecord):
                continue
            delta.replay(record)
            if isinstance(record, PartitionChangeRecord):
                states.append(self._change_of_state(delta, record))
            elif isinstance(record, ProducerIdsRecord):
                producer_ids = record
            elif isinstance(record, RegisterBrokerRecord | UnregisterBrokerRecord):
                registered[record.broker_id] = None
        image = delta.apply(self.image.provenance)
        operations: list[ZooKeeperOperation] = []
        for id in registered:
            broker = image.cluster.brokers.get(id)
            if broker is None:
                self._delete(registration_path(id), operations)
            else:
                self._put(registration_path(id), RegisteredBroker.of(broker).encode(), operations)
        for topic in delta.topics.values():
            yield from self._write_topic(topic, image, operations)
        operations += states
        for deleted in delta.deleted_topics.values():
            yield from self._delete_topic(deleted, operations)
        self._write_configs(delta, image, operations)
        self._write_acls(delta, image, operations)
        self._write_tokens(delta, image, operations)
        if delta.changed_features:
            levels = {
                name: level
                for name, level in image.features.finalized_versions().items()
                if name != METADATA_VERSION and level
            }
            self._put(znodes.FEATURE, znodes.FeatureZNode(True, levels).encode(), operations)
        if producer_ids is not None:
            last = producer_ids.next_producer_id - 1
            block = znodes.ProducerIdBlockZNode(
                producer_ids.broker_id, last + 1 - PRODUCER_ID_BLOCK_SIZE, last
            )
            self._put(znodes.LATEST_PRODUCER_ID_BLOCK, block.encode(), operations)
        self.image = image
        return operations

    # Topics

    def _change_of_state(self, delta: MetadataDelta, record: PartitionChangeRecord) -> SetZNode:
        topic = delta.topics[bytes(record.topic_id)]
        partition = topic.changes[record.partition_id]
        path = znodes.partition_state_path(TopicPartition(topic.name, record.partition_id))
        return SetZNode(path, self._state(partition), partition.partition_epoch - 1)

    def _state(self, partition: PartitionRegistration) -> bytes:
        return encode_state(partition, self._epoch)

    def _write_topic(
        self, topic: TopicDelta, image: MetadataImage, operations: list[ZooKeeperOperation]
    ) -> Steps[None]:
        before = {} if topic.before is None else topic.before.partitions
        name = topic.name
        described = image.topics.by_name[name]
        if topic.before is None:
            configs = image.config(ConfigResource(ConfigResourceType.TOPIC, name))
            self._put(znodes.config_path("topics", name), znodes.encode_config(configs), operations)
            operations.append(CreateZNode(znodes.topic_path(name), _topic_data(described)))
            operations.append(CreateZNode(znodes.partitions_path(name)))
        elif any(_assignment(before.get(index)) != _assignment(now) for index, now in topic.changes.items()):
            operations.append(SetZNode(znodes.topic_path(name), _topic_data(described)))
        for index, partition in topic.changes.items():
            yield
            if index not in before:
                operations += state_creations(TopicPartition(name, index), partition, self._epoch)

    def _delete_topic(self, topic: TopicImage, operations: list[ZooKeeperOperation]) -> Steps[None]:
        is_large = 2 * len(topic.partitions) + 3 > MAX_OPERATIONS
        note = znodes.delete_topic_path(topic.name)
        if is_large:
            # The transactions before this one may have begun to write other topics: that does no harm.
            self._ensure(note, operations)
        for index in topic.partitions:
            yield
            tp = TopicPartition(topic.name, index)
            operations.append(DeleteZNode(znodes.partition_state_path(tp)))
            operations.append(DeleteZNode(znodes.partition_path(tp)))
        operations.append(DeleteZNode(znodes.partitions_path(topic.name)))
        operations.append(DeleteZNode(znodes.topic_path(topic.name)))
        self._delete(znodes.config_path("topics", topic.name), operations)
        self._delete(note, operations)

    def note_deletion(self, topic: str) -> None:
        """Note that an operator has asked for the deletion of a topic by a znode, which goes with it."""
        self._paths.add(znodes.delete_topic_path(topic))

    def forget_deletion(self, topic: str) -> None:
        self._paths.discard(znodes.delete_topic_path(topic))

    # Configurations, quotas and SCRAM credentials

    def _write_configs(
        self, delta: MetadataDelta, image: MetadataImage, operations: list[ZooKeeperOperation]
    ) -> None:
        entities: dict[str, dict[str, str]] = {}
        created = {topic.name for topic in delta.created_topics()}
        for resource in sorted(delta.changed_configs):
            if resource.type == ConfigResourceType.TOPIC and (
                resource.name in created or resource.name not in image.topics.by_name
            ):
                continue  # it was written with its topic, or is gone with it
            entities[_config_entity(resource)] = dict(image.config(resource))
        for quota in sorted(delta.changed_quotas, key=str):
            entities[quota_entity_path(quota)] = _user_configs(image, quota)
        for user in sorted(delta.changed_scram):
            entity: QuotaEntity = (("user", user.name),)
            entities[quota_entity_path(entity)] = _user_configs(image, entity)
        for path, configs in entities.items():
            self._put(f"{znodes.CONFIG}/{path}", znodes.encode_config(configs), operations)
            operations.append(
                CreateZNode(
                    f"{znodes.CONFIG_CHANGES}/{znodes.CONFIG_CHANGE_PREFIX}",
                    znodes.encode_config_change(path),
                    sequential=True,
                )
            )

    # ACLs and delegation tokens

    def _write_acls(
        self, delta: MetadataDelta, image: MetadataImage, operations: list[ZooKeeperOperation]
    ) -> None:
        changed: dict[tuple[int, int, str], None] = {}
        for id in delta.changed_acls:
            acl = image.acls.get(id) or delta.base.acls.get(id)
            if acl is not None:
                changed[acl.pattern_type, acl.resource_type, acl.resource_name] = None
        if not changed:
            return
        for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
            for name in znodes.RESOURCE_TYPES_BY_NAME:
                self._ensure(f"{znodes.acl_root(pattern_type)}/{name}", operations)
        self._ensure(znodes.ACL_CHANGES, operations)
        self._ensure(znodes.EXTENDED_ACL_CHANGES, operations)
        entries: dict[tuple[int, int, str], list[znodes.AclZNodeEntry]] = {each: [] for each in changed}
        for acl in image.acls.values():
            found = entries.get((acl.pattern_type, acl.resource_type, acl.resource_name))
            if found is not None:
                found.append(
                    znodes.AclZNodeEntry(acl.principal, acl.permission_type, acl.operation, acl.host)
                )
        for resource, of_resource in entries.items():
            path = znodes.acl_path(*resource)
            if of_resource:
                self._put(path, znodes.encode_acls(of_resource), operations)
            else:
                self._delete(path, operations)
            changes = znodes.ACL_CHANGES if path.startswith(f"{znodes.ACL}/") else znodes.EXTENDED_ACL_CHANGES
            operations.append(
                CreateZNode(
                    f"{changes}/{znodes.ACL_CHANGE_PREFIX}",
                    znodes.encode_acl_change(*resource),
                    sequential=True,
                )
            )

    def _write_tokens(
        self, delta: MetadataDelta, image: MetadataImage, operations: list[ZooKeeperOperation]
    ) -> None:
        for id in sorted(delta.changed_tokens):
            token = image.delegation_tokens.get(id)
            path = znodes.delegation_token_path(id)
            if token is None:
                self._delete(path, operations)
                continue
            data = znodes.DelegationTokenZNode(
                token.id,
                token.owner,
                token.requester,
                token.renewers,
                token.issue_timestamp,
                token.expiration_timestamp,
                token.max_timestamp,
            )
            self._put(path, data.encode(), operations)

    # Znodes that are created when they are first needed

    def _put(self, path: str, data: bytes, operations: list[ZooKeeperOperation]) -> None:
        """Write a znode that may not be there yet."""
        if path in self._paths:
            operations.append(SetZNode(path, data))
            return
        self._ensure(path.rpartition("/")[0], operations)
        self._paths.add(path)
        operations.append(CreateZNode(path, data))

    def _ensure(self, path: str, operations: list[ZooKeeperOperation]) -> None:
        """Create a znode without data, and those above it, if it is not there."""
        if path in self._paths or not path:
            return
        self._ensure(path.rpartition("/")[0], operations)
        self._paths.add(path)
        operations.append(CreateZNode(path))

    def _delete(self, path: str, operations: list[ZooKeeperOperation]) -> None:
        if path in self._paths:
            self._paths.discard(path)
            operations.append(DeleteZNode(path))


def encode_state(partition: PartitionRegistration, controller_epoch: int) -> bytes:
    return znodes.TopicPartitionStateZNode(
        partition.leader,
        partition.leader_epoch,
        partition.isr,
        controller_epoch,
        int(partition.leader_recovery_state),
    ).encode()


def state_creations(
    tp: TopicPartition, partition: PartitionRegistration, controller_epoch: int
) -> Iterator[ZooKeeperOperation]:
    yield CreateZNode(znodes.partition_path(tp))
    yield CreateZNode(znodes.partition_state_path(tp), encode_state(partition, controller_epoch))


def _topic_data(topic: TopicImage) -> bytes:
    return znodes.TopicZNode(
        topic.name,
        {
            index: znodes.PartitionAssignment(each.replicas, each.adding_replicas, each.removing_replicas)
            for index, each in topic.partitions.items()
        },
        topic.id,
    ).encode()


def _assignment(partition: PartitionRegistration | None) -> object:
    if partition is None:
        return None
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


def _config_entity(resource: ConfigResource) -> str:
    name = resource.name
    if resource.type == ConfigResourceType.BROKER and not name:
        name = znodes.DEFAULT_ENTITY
    return f"{_CONFIG_TYPES[ConfigResourceType(resource.type)]}/{name}"


def quota_entity_path(entity: QuotaEntity) -> str:
    """The path of a quota's entity below `/config`, such as `users/alice/clients/<default>`."""
    names = {type: znodes.DEFAULT_ENTITY if name is None else znodes.sanitize(name) for type, name in entity}
    if "ip" in names:
        ip = dict(entity)["ip"]
        return f"ips/{znodes.DEFAULT_ENTITY if ip is None else ip}"
    if "user" not in names:
        return f"clients/{names['client-id']}"
    above = f"users/{names['user']}"
    return f"{above}/clients/{names['client-id']}" if "client-id" in names else above


def _user_configs(image: MetadataImage, entity: QuotaEntity) -> dict[str, str]:
    """What the znode of a user, a client or an address has: quotas, and SCRAM credentials of a user."""
    configs = {
        name: str(float(value)) if name in _REAL_QUOTAS else str(int(value))
        for name, value in image.client_quotas.get(entity, {}).items()
    }
    if len(entity) == 1 and entity[0][0] == "user" and entity[0][1] is not None:
        for user, credential in image.scram.items():
            if user.name == entity[0][1]:
                configs[SCRAM_MECHANISMS[user.mechanism]] = znodes.ScramZNodeCredential(
                    credential.salt, credential.stored_key, credential.server_key, credential.iterations
                ).encode()
    return configs


def transactions(operations: Iterable[ZooKeeperOperation]) -> Iterator[list[ZooKeeperOperation]]:
    """Split writes into transactions that ZooKeeper takes, in their order."""
    part: list[ZooKeeperOperation] = []
    size = 0
    for operation in operations:
        data = operation.data if isinstance(operation, CreateZNode | SetZNode) else b""
        needed = len(data) + len(operation.path) + _OPERATION_BYTES
        if part and (len(part) >= MAX_OPERATIONS or size + needed > MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(operation)
        size += needed
    if part:
        yield part
