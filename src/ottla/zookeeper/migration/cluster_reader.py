"""Read what a cluster keeps in ZooKeeper, and nothing else: the state that an import starts from.

Only reads. A znode that makes no sense does not end the reading: it becomes a line of `damaged`, so that an
operator sees all of them at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from ottla.protocol.acl import PatternType
from ottla.protocol.names import TopicPartition
from ottla.runtime.zookeeper import ZNode, ZooKeeperError, ZooKeeperErrorCode, ZooKeeperSession
from ottla.zookeeper import znodes
from ottla.zookeeper.znodes import (
    AclZNodeEntry,
    BrokerIdZNode,
    ControllerZNode,
    DelegationTokenZNode,
    FeatureZNode,
    MigrationZNode,
    ProducerIdBlockZNode,
    TopicPartitionStateZNode,
    TopicZNode,
    ZNodeFormatError,
)

T = TypeVar("T")
K = TypeVar("K")

# How many requests to ZooKeeper are under way at the same time.
_IN_FLIGHT: Final = 256
_REQUEST_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ReadTopic:
    znode: TopicZNode
    created_zxid: int
    """The transaction that created the topic: it tells two topics of one name apart."""
    states: dict[int, TopicPartitionStateZNode] = field(default_factory=dict)
    partition_epochs: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class ZooKeeperCluster:
    """What the znodes say, in their words: names are not escaped any more, `None` is a default entity."""

    cluster_id: str | None = None
    brokers: dict[int, BrokerIdZNode | None] = field(default_factory=dict)
    """The brokers that are registered now; None where the registration cannot be read."""
    controller: ControllerZNode | None = None
    controller_epoch: int = 0
    migration: MigrationZNode | None = None
    topics: dict[str, ReadTopic] = field(default_factory=dict)
    deleted_topics: list[str] = field(default_factory=list)
    """Topics whose deletion was asked for, and is not complete."""
    requested_reassignments: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """Reassignments that an old tool has asked for, and no controller has begun."""
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str | None, dict[str, str]] = field(default_factory=dict, repr=False)
    user_configs: dict[str | None, dict[str, str]] = field(default_factory=dict, repr=False)
    client_configs: dict[str | None, dict[str, str]] = field(default_factory=dict)
    user_client_configs: dict[tuple[str | None, str | None], dict[str, str]] = field(default_factory=dict)
    ip_configs: dict[str | None, dict[str, str]] = field(default_factory=dict)
    acls: dict[tuple[int, int, str], list[AclZNodeEntry]] = field(default_factory=dict)
    """By pattern type, resource type and name."""
    tokens: list[DelegationTokenZNode] = field(default_factory=list)
    producer_ids: ProducerIdBlockZNode | None = None
    features: FeatureZNode | None = None
    changed_ms: int = 0
    """When the newest of the znodes was changed."""
    has_changed: bool = False
    """Whether a controller has run while the znodes were read."""
    damaged: list[str] = field(default_factory=list)


async def read_cluster(session: ZooKeeperSession) -> ZooKeeperCluster:
    """Read everything; ZooKeeperError if ZooKeeper does not answer, or does not let this login read."""
    return await _Reader(session).read()


async def registered_brokers(session: ZooKeeperSession) -> list[str]:
    """The ids of the brokers that are running, as ZooKeeper has them."""
    return await _Reader(session).registered()


class _Reader:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session: Final = session
        self._cluster: Final = ZooKeeperCluster()
        self._slots: Final = asyncio.Semaphore(_IN_FLIGHT)

    async def read(self) -> ZooKeeperCluster:
        cluster = self._cluster
        cluster.cluster_id = await self._one(znodes.CLUSTER_ID, znodes.decode_cluster_id)
        if cluster.cluster_id is None:
            return cluster
        await self._read_cluster()
        await self._read_topics()
        await self._read_configs()
        await self._read_security()
        await self._check_unchanged()
        return cluster

    async def registered(self) -> list[str]:
        return [name for name in await self._children(znodes.BROKER_IDS) if name.isdigit()]

    async def _check_unchanged(self) -> None:
        """Look again at who runs: reading takes a while, and a broker may have started since."""
        cluster = self._cluster
        for name in await self.registered():
            cluster.brokers.setdefault(int(name), None)
        cluster.controller = cluster.controller or await self._one(znodes.CONTROLLER, ControllerZNode.decode)
        epoch = await self._one(znodes.CONTROLLER_EPOCH, znodes.decode_controller_epoch) or 0
        cluster.has_changed = epoch != cluster.controller_epoch

    async def _read_cluster(self) -> None:
        cluster = self._cluster
        cluster.controller = await self._one(znodes.CONTROLLER, ControllerZNode.decode)
        cluster.controller_epoch = (
            await self._one(znodes.CONTROLLER_EPOCH, znodes.decode_controller_epoch) or 0
        )
        cluster.migration = await self._one(znodes.MIGRATION, MigrationZNode.decode)
        cluster.features = await self._one(znodes.FEATURE, FeatureZNode.decode)
        cluster.producer_ids = await self._one(znodes.LATEST_PRODUCER_ID_BLOCK, ProducerIdBlockZNode.decode)
        for name in await self.registered():
            id = int(name)
            cluster.brokers[id] = await self._one(znodes.broker_path(id), partial(BrokerIdZNode.decode, id))
        cluster.deleted_topics = await self._children(znodes.DELETE_TOPICS)
        cluster.requested_reassignments = (
            await self._one(znodes.REASSIGN_PARTITIONS, znodes.decode_reassign_partitions) or {}
        )

    async def _read_topics(self) -> None:
        topics = await self._each(await self._children(znodes.TOPICS), self._read_topic)
        self._cluster.topics = {name: topic for name, topic in topics.items() if topic is not None}

    async def _read_topic(self, name: str) -> ReadTopic | None:
        path = znodes.topic_path(name)
        node = await self._get(path)
        if node is None:
            return None
        znode = self._decode(partial(TopicZNode.decode, name), path, node)
        if znode is None:
            return None
        topic = ReadTopic(znode, node.stat.czxid)

        async def read_state(partition: int) -> None:
            id = TopicPartition(name, partition)
            found = await self._get(znodes.partition_state_path(id))
            if found is not None:
                state = self._decode(
                    partial(TopicPartitionStateZNode.decode, id),
                    znodes.partition_state_path(id),
                    found,
                )
                if state is not None:
                    topic.states[partition] = state
                    topic.partition_epochs[partition] = found.stat.version

        await self._each(znode.assignment, read_state)
        return topic

    async def _read_configs(self) -> None:
        cluster = self._cluster
        names = await self._children(znodes.CONFIG_TOPICS)
        cluster.topic_configs = await self._configs(znodes.CONFIG_TOPICS, names)
        cluster.broker_configs = await self._entities(znodes.CONFIG_BROKERS)
        cluster.user_configs = await self._entities(znodes.CONFIG_USERS)
        cluster.client_configs = await self._entities(znodes.CONFIG_CLIENTS)
        cluster.ip_configs = await self._entities(znodes.CONFIG_IPS)
        for user in await self._children(znodes.CONFIG_USERS):
            root = f"{znodes.CONFIG_USERS}/{user}/clients"
            for client, configs in (await self._entities(root)).items():
                cluster.user_client_configs[_entity(user), client] = configs

    async def _entities(self, root: str) -> dict[str | None, dict[str, str]]:
        configs = await self._configs(root, await self._children(root))
        return {_entity(name): values for name, values in configs.items() if values}

    async def _configs(self, root: str, names: Iterable[str]) -> dict[str, dict[str, str]]:
        async def read(name: str) -> dict[str, str]:
            path = f"{root}/{name}"
            return await self._one(path, partial(znodes.decode_config, path)) or {}

        return await self._each(names, read)

    async def _read_security(self) -> None:
        cluster = self._cluster
        roots = [(PatternType.LITERAL, znodes.ACL)]
        for name in await self._children(znodes.EXTENDED_ACL):
            kind = PatternType.__members__.get(name.upper())
            if kind is None:
                cluster.damaged.append(f"{znodes.EXTENDED_ACL}/{name} is a kind of pattern that is not known")
            else:
                roots.append((kind, f"{znodes.EXTENDED_ACL}/{name}"))
        for pattern_type, root in roots:
            for type_name in await self._children(root):
                resource_type = znodes.RESOURCE_TYPES_BY_NAME.get(type_name)
                if resource_type is None:
                    cluster.damaged.append(f"{root}/{type_name} is a type of resource that is not known")
                    continue
                paths = [f"{root}/{type_name}/{name}" for name in await self._children(f"{root}/{type_name}")]
                for path, entries in (await self._each(paths, self._read_acls)).items():
                    if entries:
                        name = path.rpartition("/")[2]
                        cluster.acls[int(pattern_type), int(resource_type), name] = entries
        for id in await self._children(znodes.DELEGATION_TOKENS):
            path = znodes.delegation_token_path(id)
            token = await self._one(path, partial(DelegationTokenZNode.decode, path))
            if token is not None:
                cluster.tokens.append(token)

    async def _read_acls(self, path: str) -> list[AclZNodeEntry]:
        return await self._one(path, partial(znodes.decode_acls, path)) or []

    async def _each(self, names: Iterable[K], read: Callable[[K], Awaitable[T]]) -> dict[K, T]:
        """Read many, some at a time; the result is in their order."""
        keys = list(names)
        found: dict[K, T] = {}
        for start in range(0, len(keys), _IN_FLIGHT):
            some = keys[start : start + _IN_FLIGHT]
            found.update(zip(some, await asyncio.gather(*map(read, some)), strict=True))
        return found

    async def _one(self, path: str, decode: Callable[[bytes], T]) -> T | None:
        """Read a znode; None if there is none, or none with data, or its data makes no sense."""
        node = await self._get(path)
        return None if node is None or not node.data else self._decode(decode, path, node)

    def _decode(self, decode: Callable[[bytes], T], path: str, node: ZNode) -> T | None:
        try:
            return decode(node.data)
        except ZNodeFormatError as error:
            self._cluster.damaged.append(str(error))
        except (KeyError, TypeError, ValueError) as error:
            self._cluster.damaged.append(f"{path} cannot be read: {error!r}")
        return None

    async def _get(self, path: str) -> ZNode | None:
        try:
            node = await self._ask(path, self._session.get)
        except ZooKeeperError as error:
            if error.code is ZooKeeperErrorCode.NO_NODE:
                return None
            raise
        self._cluster.changed_ms = max(self._cluster.changed_ms, node.stat.mtime_ms)
        return node

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._ask(path, self._session.children)
        except ZooKeeperError as error:
            if error.code is ZooKeeperErrorCode.NO_NODE:
                return []
            raise

    async def _ask(self, path: str, read: Callable[[str], Awaitable[T]]) -> T:
        """Read with a bound: requests of a session that has lost its servers wait until one is back."""
        async with self._slots:
            try:
                async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                    return await read(path)
            except TimeoutError:
                raise ZooKeeperError(
                    ZooKeeperErrorCode.CONNECTION_LOSS,
                    path,
                    f"ZooKeeper: no answer within {_REQUEST_TIMEOUT_S:g} s for {path}",
                ) from None


def _entity(name: str) -> str | None:
    return None if name == znodes.DEFAULT_ENTITY else znodes.desanitize(name)
