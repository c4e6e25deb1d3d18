"""Read the whole metadata of a cluster from its znodes, as records: what a new controller starts from.

The version of a partition's state is its partition epoch. A topic without an id gets one, and a partition
without a state gets its first one, as its creator may have been stopped in between; the writes for that are
part of the result.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ottla.metadata.features import METADATA_VERSION, METADATA_VERSIONS, MetadataVersion
from ottla.metadata.image.entities import (
    CLUSTER_DEFAULT,
    AccessControlEntry,
    ConfigResource,
    ConfigResourceType,
    LeaderRecoveryState,
    PartitionRegistration,
    QuotaEntity,
    config_record,
)
from ottla.metadata.image.image import quota_record
from ottla.metadata.records import MetadataRecord
from ottla.protocol.acl import PatternType
from ottla.protocol.metadata_records import (
    DelegationTokenRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from ottla.protocol.names import TopicPartition
from ottla.runtime.turns import Turns
from ottla.runtime.zookeeper import (
    CreateZNode,
    SetZNode,
    ZNode,
    ZooKeeperError,
    ZooKeeperErrorCode,
    ZooKeeperOperation,
    ZooKeeperSession,
)
from ottla.zookeeper import znodes
from ottla.zookeeper.driver.broker_znode import REGISTRATIONS, RegisteredBroker, registration_path
from ottla.zookeeper.driver.znode_writer import (
    SCRAM_MECHANISMS,
    STORED_FEATURES,
    encode_state,
)

# The last one whose records say no more than the znodes of Kafka 3.9: no directories of replicas.
STORED_METADATA_VERSION: Final[MetadataVersion] = METADATA_VERSIONS[14]
# How many requests to ZooKeeper are under way at the same time.
_IN_FLIGHT: Final = 256
_SCRAM_NUMBERS: Final = {name: number for number, name in SCRAM_MECHANISMS.items()}

T = TypeVar("T")


@dataclass(slots=True)
class ReadMetadata:
    """`writes` complete what is half written; `paths` are what a `ZNodeWriter` has to know."""

    records: list[MetadataRecord] = field(default_factory=list)
    writes: list[ZooKeeperOperation] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    brokers: dict[int, RegisteredBroker] = field(default_factory=dict)


class ZNodeReader:
    def __init__(
        self,
        session: ZooKeeperSession,
        controller_epoch: int,
        new_uuid: Callable[[], bytes],
        turns: Turns,
    ) -> None:
        self._session: Final = session
        self._turns: Final = turns
        self._epoch: Final = controller_epoch
        self._new_uuid: Final = new_uuid
        self._read = ReadMetadata()

    async def read(self) -> ReadMetadata:
        """Read everything. No other controller may write meanwhile."""
        found = self._read = ReadMetadata()
        feature = await self._get(znodes.FEATURE)
        topics = await self._children(znodes.TOPICS)
        if feature is None and not topics:
            # A new cluster: its records are still to be written.
            await self._read_directories()
            return found
        found.records.append(
            FeatureLevelRecord(name=METADATA_VERSION, feature_level=STORED_METADATA_VERSION.level)
        )
        if feature is not None:
            for name, level in sorted(znodes.FeatureZNode.decode(feature.data).features.items()):
                if name in STORED_FEATURES and level:
                    found.records.append(FeatureLevelRecord(name=name, feature_level=level))
        await self._read_brokers()
        await self._read_topics(topics)
        await self._read_configs()
        await self._read_users_and_clients()
        await self._read_acls()
        await self._read_tokens()
        block = await self._get(znodes.LATEST_PRODUCER_ID_BLOCK)
        if block is not None and block.data:
            last = znodes.ProducerIdBlockZNode.decode(block.data).last
            found.records.append(ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=last + 1))
        return found

    # Reading

    async def _get(self, path: str) -> ZNode | None:
        try:
            node = await self._session.get(path)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
            return None
        self._read.paths.add(path)
        return node

    async def _children(self, path: str) -> list[str]:
        try:
            names = await self._session.children(path)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
            return []
        self._read.paths.add(path)
        return names

    async def _each(
        self, keys: Sequence[T], read: Callable[[T], Awaitable[ZNode | None]]
    ) -> list[ZNode | None]:
        """Read znodes, some at a time, in the order of the keys."""
        found: list[ZNode | None] = []
        for start in range(0, len(keys), _IN_FLIGHT):
            found += await asyncio.gather(*(read(key) for key in keys[start : start + _IN_FLIGHT]))
        return found

    async def _get_all(self, paths: Iterable[str]) -> dict[str, ZNode]:
        wanted = list(paths)
        found = await self._each(wanted, self._get)
        return {path: node for path, node in zip(wanted, found, strict=True) if node is not None}

    async def _read_directories(self) -> None:
        """Note which of the znodes above others are there."""
        above = REGISTRATIONS.rpartition("/")[0]
        for path in (*znodes.PERSISTENT_PATHS, znodes.CONFIG, znodes.ADMIN, znodes.BROKERS, above):
            await self._get(path)

    # Brokers and topics

    async def _read_brokers(self) -> None:
        for name in await self._children(znodes.BROKER_IDS):
            found = await self._read_broker(name, znodes.broker_path)
            if found is not None:
                self._read.brokers[found.id] = found
        await self._children(REGISTRATIONS.rpartition("/")[0])
        for name in await self._children(REGISTRATIONS):
            registered = await self._read_broker(name, registration_path)
            if registered is None:
                continue
            live = self._read.brokers.get(registered.id)
            serves = live is not None and live.incarnation_id == registered.incarnation_id
            self._read.records.append(registered.to_record(fenced=not serves))

    async def _read_broker(self, name: str, path: Callable[[int], str]) -> RegisteredBroker | None:
        node = await self._get(path(int(name))) if name.isdigit() else None
        return None if node is None else RegisteredBroker.decode(int(name), node)

    async def _read_topics(self, names: Sequence[str]) -> None:
        for name in await self._children(znodes.DELETE_TOPICS):
            self._read.paths.add(znodes.delete_topic_path(name))
        nodes = await self._get_all(map(znodes.topic_path, names))
        topics: list[tuple[znodes.TopicZNode, bytes]] = []
        for name in names:
            await self._turns.pause_if_due()
            node = nodes.get(znodes.topic_path(name))
            if node is None:
                continue
            topic = znodes.TopicZNode.decode(name, node.data)
            id = topic.topic_id
            if id is None:
                id = self._new_uuid()
                with_id = znodes.TopicZNode(name, topic.assignment, id)
                self._read.writes.append(SetZNode(znodes.topic_path(name), with_id.encode()))
            topics.append((topic, id))
        partitions = [TopicPartition(topic.topic, index) for topic, _ in topics for index in topic.assignment]
        states = dict(zip(partitions, await self._each(partitions, self._get_state), strict=True))
        for topic, id in topics:
            self._read.records.append(TopicRecord(name=topic.topic, topic_id=id))
            await self._read_partitions(topic, id, states)
            self._read.paths.discard(znodes.topic_path(topic.topic))

    def _get_state(self, tp: TopicPartition) -> Awaitable[ZNode | None]:
        return self._get_quietly(znodes.partition_state_path(tp))

    async def _get_quietly(self, path: str) -> ZNode | None:
        node = await self._get(path)
        self._read.paths.discard(path)
        return node

    async def _read_partitions(
        self, topic: znodes.TopicZNode, id: bytes, states: dict[TopicPartition, ZNode | None]
    ) -> None:
        without = [index for index in topic.assignment if states[TopicPartition(topic.topic, index)] is None]
        if without:
            await self._add_missing_states(topic, without)
        for index, assignment in topic.assignment.items():
            await self._turns.pause_if_due()
            tp = TopicPartition(topic.topic, index)
            node = states[tp]
            if node is None:
                partition = self._new_partition(assignment)
            else:
                state = znodes.TopicPartitionStateZNode.decode(tp, node.data)
                partition = PartitionRegistration(
                    replicas=assignment.replicas,
                    directories=(),
                    isr=state.isr,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=node.stat.version,
                    adding_replicas=assignment.adding,
                    removing_replicas=assignment.removing,
                    leader_recovery_state=LeaderRecoveryState(state.leader_recovery_state),
                )
            self._read.records.append(
                partition.to_record(id, index, STORED_METADATA_VERSION, elr_enabled=False)
            )

    async def _add_missing_states(self, topic: znodes.TopicZNode, indexes: Sequence[int]) -> None:
        writes = self._read.writes
        if await self._session.exists(znodes.partitions_path(topic.topic)) is None:
            writes.append(CreateZNode(znodes.partitions_path(topic.topic)))
            known: set[str] = set()
        else:
            known = set(await self._session.children(znodes.partitions_path(topic.topic)))
        for index in indexes:
            tp = TopicPartition(topic.topic, index)
            if str(index) not in known:
                writes.append(CreateZNode(znodes.partition_path(tp)))
            state = encode_state(self._new_partition(topic.assignment[index]), self._epoch)
            writes.append(CreateZNode(znodes.partition_state_path(tp), state))

    def _new_partition(self, assignment: znodes.PartitionAssignment) -> PartitionRegistration:
        """The first state of a partition: its live replicas are in sync, as all are empty."""
        live = tuple(id for id in assignment.replicas if id in self._read.brokers)
        return PartitionRegistration(
            replicas=assignment.replicas,
            directories=(),
            isr=live or assignment.replicas,
            leader=live[0] if live else -1,
            adding_replicas=assignment.adding,
            removing_replicas=assignment.removing,
        )

    # Configurations

    async def _read_configs(self) -> None:
        for kind, type in (("topics", ConfigResourceType.TOPIC), ("brokers", ConfigResourceType.BROKER)):
            above = f"{znodes.CONFIG}/{kind}"
            names = await self._children(above)
            nodes = await self._get_all(f"{above}/{name}" for name in names)
            for path, node in nodes.items():
                await self._turns.pause_if_due()
                name = path.rpartition("/")[2]
                resource = CLUSTER_DEFAULT if name == znodes.DEFAULT_ENTITY else ConfigResource(type, name)
                for key, value in znodes.decode_config(path, node.data).items():
                    self._read.records.append(config_record(resource, key, value))
        await self._children(znodes.CONFIG_CHANGES)
        await self._children(znodes.CONFIG)

    async def _read_users_and_clients(self) -> None:
        for name in await self._children(znodes.CONFIG_CLIENTS):
            await self._read_quotas(f"{znodes.CONFIG_CLIENTS}/{name}", (("client-id", _entity_name(name)),))
        for name in await self._children(znodes.CONFIG_IPS):
            ip = None if name == znodes.DEFAULT_ENTITY else name
            await self._read_quotas(f"{znodes.CONFIG_IPS}/{name}", (("ip", ip),))
        for name in await self._children(znodes.CONFIG_USERS):
            user = _entity_name(name)
            path = f"{znodes.CONFIG_USERS}/{name}"
            await self._read_quotas(path, (("user", user),))
            for client in await self._children(f"{path}/clients"):
                await self._read_quotas(
                    f"{path}/clients/{client}", (("client-id", _entity_name(client)), ("user", user))
                )

    async def _read_quotas(self, path: str, entity: QuotaEntity) -> None:
        node = await self._get(path)
        configs = {} if node is None else znodes.decode_config(path, node.data)
        for name, value in configs.items():
            mechanism = _SCRAM_NUMBERS.get(name)
            if mechanism is None:
                self._read.records.append(quota_record(entity, name, float(value)))
            elif len(entity) == 1 and entity[0][1] is not None:
                credential = znodes.ScramZNodeCredential.decode(path, value)
                self._read.records.append(
                    UserScramCredentialRecord(
                        name=entity[0][1],
                        mechanism=mechanism,
                        salt=credential.salt,
                        stored_key=credential.stored_key,
                        server_key=credential.server_key,
                        iterations=credential.iterations,
                    )
                )

    # ACLs and tokens

    async def _read_acls(self) -> None:
        await self._children(znodes.ACL_CHANGES)
        await self._children(znodes.EXTENDED_ACL_CHANGES)
        await self._children(znodes.EXTENDED_ACL)
        for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
            root = znodes.acl_root(pattern_type)
            for type_name in await self._children(root):
                type = znodes.RESOURCE_TYPES_BY_NAME.get(type_name)
                if type is None:
                    continue
                above = f"{root}/{type_name}"
                names = await self._children(above)
                for path, node in (await self._get_all(f"{above}/{name}" for name in names)).items():
                    name = path.rpartition("/")[2]
                    for entry in znodes.decode_acls(path, node.data):
                        acl = AccessControlEntry(
                            type,
                            name,
                            pattern_type,
                            entry.principal,
                            entry.host,
                            entry.operation,
                            entry.permission_type,
                        )
                        self._read.records.append(acl.to_record(acl_id(acl)))

    async def _read_tokens(self) -> None:
        await self._children(znodes.DELEGATION_TOKEN)
        for id in await self._children(znodes.DELEGATION_TOKENS):
            path = znodes.delegation_token_path(id)
            node = await self._get(path)
            if node is None:
                continue
            token = znodes.DelegationTokenZNode.decode(path, node.data)
            self._read.records.append(
                DelegationTokenRecord(
                    token_id=token.token_id,
                    owner=token.owner,
                    requester=token.requester,
                    renewers=list(token.renewers),
                    issue_timestamp=token.issue_timestamp_ms,
                    max_timestamp=token.max_timestamp_ms,
                    expiration_timestamp=token.expiry_timestamp_ms,
                )
            )


def _entity_name(name: str) -> str | None:
    return None if name == znodes.DEFAULT_ENTITY else znodes.desanitize(name)


def acl_id(acl: AccessControlEntry) -> bytes:
    """An id for an ACL, which has none in ZooKeeper: every controller finds the same."""
    return hashlib.sha256(repr(acl).encode()).digest()[:16]
