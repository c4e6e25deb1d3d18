"""Administrators: create and delete topics, change settings, move replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from ottla.client.admin import Admin
from ottla.client.admin.configs import ResourceType
from ottla.client.admin.partitions import ElectionType
from ottla.client.producer import Producer
from ottla.metadata.features import METADATA_VERSION
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.address import Address
from ottla.runtime.random import Random
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.environment import EVENTS, ClusterEnvironment, attempt
from ottla.sim.cluster.writers import producer_settings

T = TypeVar("T")
VoterAddresses = Mapping[int, Mapping[str, Address]]

# Settings of topics that may change at any time, with their values.
_CHOICES = {
    "segment.ms": ("200", "5000", "604800000"),
    "compression.type": ("producer", "uncompressed", "lz4", "zstd", "gzip"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "max.message.bytes": ("100000", "1048588"),
}
_MAX_PARTITIONS = 4
# Quotas of all clients and of all users, with values that throttle some of what a run sends.
_QUOTA_ENTITIES: tuple[Mapping[str, str | None], ...] = ({"client-id": None}, {"user": None})
_QUOTAS: Mapping[str, tuple[float, ...]] = {
    "producer_byte_rate": (500.0, 5_000.0, 100_000.0),
    "consumer_byte_rate": (500.0, 5_000.0, 100_000.0),
    "request_percentage": (0.5, 5.0, 100.0),
    "controller_mutation_rate": (0.5, 5.0),
}


def admin_settings() -> dict[str, int]:
    return {"request_timeout_ms": 2_000, "default_api_timeout_ms": 8_000}


class Administrator:
    """Executes one operation after the other, with a new admin client from time to time."""

    def __init__(self, environment: ClusterEnvironment, name: str) -> None:
        self.environment = environment
        self.name = name

    async def main(self, runtime: Runtime) -> None:
        while not self.environment.stopping:
            await attempt(self.environment, self.name, lambda: self._session(runtime))
            await asyncio.sleep(runtime.random.random())
        self.environment.ended.add(self.name)

    async def _session(self, runtime: Runtime) -> None:
        async with Admin(self.environment.servers, runtime=runtime, **admin_settings()) as admin:
            for _ in range(runtime.random.randrange(3, 20)):
                if self.environment.stopping:
                    return
                await asyncio.sleep(runtime.random.random() * 3)
                await self.act(admin, runtime)

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        raise AssertionError(f"{self.name} does not define its operations")

    def count(self, what: str) -> None:
        self.environment.world.coverage[f"admin: {what}"] += 1


class TopicChurn(Administrator):
    """Creates topics, writes a few records to them, and deletes them; names are used again."""

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        random = runtime.random
        name = f"churn{random.randrange(0, 3)}"
        try:
            if random.random() < 0.5:
                factor = random.randrange(1, len(self.environment.brokers) + 1)
                partitions = random.randrange(1, 4)
                await admin.topics.create(
                    name,
                    partitions=partitions,
                    replication_factor=factor,
                    configs=self.environment.topic_settings,
                )
                self.count("create a topic")
                await self._write(name, runtime)
            else:
                await admin.topics.delete(name)
                self.count("delete a topic")
        except KafkaError as error:
            if error.code not in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise

    async def _write(self, name: str, runtime: Runtime) -> None:
        async with Producer(
            self.environment.servers, runtime=runtime, enable_idempotence=False, **producer_settings(runtime)
        ) as producer:
            # More where there are settings, so that a tiered topic has segments in the store.
            for number in range(runtime.random.randrange(0, 40 if self.environment.topic_settings else 10)):
                await producer.send(name, b"%d" % number)


class SettingsChanger(Administrator):
    """Changes settings of topics, and adds partitions."""

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        random = runtime.random
        topic = _choose(random, tuple(self.environment.topics))
        if random.random() < 0.15:
            count = self.environment.partitions(EVENTS)
            if count < _MAX_PARTITIONS:
                await admin.topics.add_partitions(EVENTS, count + 1)
                self.count("add a partition")
            return
        name = _choose(random, tuple(_CHOICES))
        value = None if random.random() < 0.2 else _choose(random, _CHOICES[name])
        await admin.configs.alter(
            ResourceType.TOPIC,
            topic,
            set={} if value is None else {name: value},
            delete=[name] if value is None else (),
        )
        self.count("change a setting")


class ReplicaMover(Administrator):
    """Reassigns partitions, cancels some reassignments, and elects preferred leaders."""

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        random, environment = runtime.random, self.environment
        topic = _choose(random, tuple(environment.topics))
        partition = TopicPartition(topic, random.randrange(0, max(environment.partitions(topic), 1)))
        operations: tuple[Callable[[], Awaitable[None]], ...] = (
            lambda: self._move(admin, partition, random),
            lambda: self._move(admin, partition, random),
            lambda: self._cancel(admin, partition),
            lambda: self._elect(admin, partition),
        )
        await _choose(random, operations)()

    async def _move(self, admin: Admin, partition: TopicPartition, random: Random) -> None:
        brokers = list(self.environment.brokers)
        # At least two, so that `min.insync.replicas` can be kept.
        factor = random.randrange(min(len(brokers), 2), len(brokers) + 1)
        target = [brokers.pop(random.randrange(0, len(brokers))) for _ in range(factor)]
        checker = self.environment.checker
        if not checker.may_move_replicas():
            return
        checker.moves_in_flight += 1
        try:
            await admin.partitions.reassign({partition: target})
        finally:
            checker.moves_in_flight -= 1
        self.count("move replicas")

    async def _cancel(self, admin: Admin, partition: TopicPartition) -> None:
        await admin.partitions.reassign({partition: None})
        self.count("take a move back")

    async def _elect(self, admin: Admin, partition: TopicPartition) -> None:
        await admin.partitions.elect_leaders(ElectionType.PREFERRED, [partition])
        self.count("elect the preferred leader")


class VoterChanger(Administrator):
    """Removes voters of the quorum, and adds them again, with the addresses of all controllers."""

    def __init__(self, environment: ClusterEnvironment, name: str, addresses: VoterAddresses) -> None:
        super().__init__(environment, name)
        self._addresses = addresses

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        quorum = await admin.cluster.quorum()
        present = {voter.replica_id: bytes(voter.replica_directory_id) for voter in quorum.voters}
        absent = {
            observer.replica_id: bytes(observer.replica_directory_id)
            for observer in quorum.observers
            if observer.replica_id in self._addresses
        }
        if len(present) > 1 and (not absent or runtime.random.random() < 0.5):
            id = _choose(runtime.random, tuple(present))
            await admin.cluster.remove_voter(id, present[id])
            self.count("remove a voter")
        elif absent:
            id = _choose(runtime.random, tuple(absent))
            await admin.cluster.add_voter(id, absent[id], self._addresses[id])
            self.count("add a voter")


class LevelRaiser(Administrator):
    """Raises the feature levels of the cluster step by step, and to the last ones at its end."""

    def __init__(self, environment: ClusterEnvironment, name: str, last: Mapping[str, int]) -> None:
        super().__init__(environment, name)
        self._last = last

    async def main(self, runtime: Runtime) -> None:
        await super().main(runtime)
        self.environment.ended.discard(self.name)
        while not await attempt(self.environment, self.name, lambda: self._finish(runtime)):  # noqa: ASYNC110
            await asyncio.sleep(runtime.random.random())
        self.environment.ended.add(self.name)

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        missing = await self._missing(admin)
        if missing:
            name = _choose(runtime.random, tuple(missing))
            current, last = missing[name]
            await admin.cluster.update_features({name: runtime.random.randrange(current + 1, last + 1)})
            self.count("raise a feature level")

    async def _finish(self, runtime: Runtime) -> None:
        async with Admin(self.environment.servers, runtime=runtime, **admin_settings()) as admin:
            missing = await self._missing(admin)
            # `metadata.version` first: others depend on it.
            for name in sorted(missing, key=lambda name: (name != METADATA_VERSION, name)):
                await admin.cluster.update_features({name: missing[name][1]})

    async def _missing(self, admin: Admin) -> dict[str, tuple[int, int]]:
        """The level of each feature that is below its last one, and that one."""
        features = await admin.cluster.features()
        levels = {name: feature.finalized or 0 for name, feature in features.items()}
        return {
            name: (levels[name], last) for name, last in self._last.items() if levels.get(name, last) < last
        }


class QuotaChanger(Administrator):
    """Limits all clients, or all users, in one way after the other; removes all limits at its end."""

    async def main(self, runtime: Runtime) -> None:
        await super().main(runtime)
        # Not over before they are gone: what remains to be read must not wait for them.
        self.environment.ended.discard(self.name)
        while not await attempt(self.environment, self.name, lambda: self._remove_all(runtime)):  # noqa: ASYNC110
            await asyncio.sleep(runtime.random.random())
        self.environment.ended.add(self.name)

    async def act(self, admin: Admin, runtime: Runtime) -> None:
        random = runtime.random
        entity = _choose(random, _QUOTA_ENTITIES)
        name = _choose(random, tuple(_QUOTAS))
        if random.random() < 0.25:
            await admin.quotas.alter(entity, remove=[name])
            self.count("remove a quota")
        else:
            await admin.quotas.alter(entity, set={name: _choose(random, _QUOTAS[name])})
            self.count("set a quota")

    async def _remove_all(self, runtime: Runtime) -> None:
        async with Admin(self.environment.servers, runtime=runtime, **admin_settings()) as admin:
            for entity in _QUOTA_ENTITIES:
                await admin.quotas.alter(entity, remove=tuple(_QUOTAS))


def _choose(random: Random, options: tuple[T, ...]) -> T:
    return options[random.randrange(0, len(options))]
