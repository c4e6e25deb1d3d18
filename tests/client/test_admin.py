"""The admin client, with the same tests for Ottla and for Apache Kafka."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.admin import Admin
from ottla.client.admin.configs import Config, ResourceType
from ottla.client.admin.offsets import OffsetSpec
from ottla.client.admin.partitions import ElectionType
from ottla.client.admin.topics import NewTopic
from ottla.client.consumer import Consumer, TopicPartition
from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError

STATIC = {"group_instance_id": "me", "session_timeout_ms": 30_000, "heartbeat_interval_ms": 100}


async def fill(servers: str, topic: str, count: int) -> None:
    async with Producer(servers) as producer:
        await producer.ready(topic)
        for n in range(count):
            producer.send_nowait(topic, b"%d" % n, partition=0, timestamp=1_000 + n)
        await producer.flush()


async def describe_for_ever(admin: Admin, topic: str) -> None:
    async with asyncio.timeout(60):
        while True:
            await admin.topics.describe(topic)


class TestTopics:
    @pytest.mark.witness
    async def test_come_and_go(self, admin: Admin, fresh_name: str) -> None:
        await admin.topics.create(fresh_name, partitions=2, configs={"retention.ms": "12345"})
        async with asyncio.timeout(60):  # what the controller has done, brokers tell a moment later
            while fresh_name not in [topic.name for topic in await admin.topics.list()]:
                pass
        assert len((await admin.topics.describe(fresh_name)).partitions) == 2
        await admin.topics.add_partitions(fresh_name, 5)
        async with asyncio.timeout(60):
            while len((await admin.topics.describe(fresh_name)).partitions) != 5:
                pass
        await admin.topics.delete(fresh_name)
        with pytest.raises(KafkaError, match=fresh_name) as missing:
            await describe_for_ever(admin, fresh_name)
        assert missing.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def test_many_at_once_tell_each_its_own_result(
        self, admin: Admin, topic: str, fresh_name: str
    ) -> None:
        results = await admin.topics.create_many([NewTopic(fresh_name), NewTopic(topic), NewTopic("a/b")])
        codes = {name: error.code if error is not None else None for name, error in results.items()}
        assert codes == {
            fresh_name: None,
            topic: ErrorCode.TOPIC_ALREADY_EXISTS,
            "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        gone = await admin.topics.delete_many([fresh_name, "unknown"])
        assert gone[fresh_name] is None
        assert gone["unknown"] is not None

    async def test_only_checking_changes_nothing(self, admin: Admin, fresh_name: str) -> None:
        await admin.topics.create_many([NewTopic(fresh_name)], validate_only=True)
        assert fresh_name not in [topic.name for topic in await admin.topics.list()]


class TestConfigs:
    @pytest.mark.witness
    async def test_are_set_and_taken_back(self, admin: Admin, topic: str) -> None:
        await admin.configs.alter(ResourceType.TOPIC, topic, set={"retention.ms": "777"})
        found = await self.set_to(admin, topic, "777")
        assert not found.is_default
        await admin.configs.alter(ResourceType.TOPIC, topic, delete=["retention.ms"])
        found = await self.set_to(admin, topic, "604800000")
        assert found.is_default

    async def set_to(self, admin: Admin, topic: str, value: str) -> Config:
        """What the controller has done, brokers tell a moment later."""
        async with asyncio.timeout(60):
            while True:
                found = (await admin.configs.describe(ResourceType.TOPIC, topic))["retention.ms"]
                if found.value == value:
                    return found

    async def test_those_of_many_topics_are_asked_for_at_once(self, admin: Admin, topic: str) -> None:
        found = await admin.configs.describe_topics([topic, "unknown"], keys=["retention.ms"])
        settings, unknown = found[topic], found["unknown"]
        assert isinstance(settings, dict)
        assert list(settings) == ["retention.ms"]
        assert isinstance(unknown, KafkaError)
        assert unknown.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def test_a_wrong_one_is_refused_with_its_name(self, admin: Admin, topic: str) -> None:
        with pytest.raises(KafkaError, match=r"retention\.ms") as refused:
            await admin.configs.alter(ResourceType.TOPIC, topic, set={"retention.ms": "soon"})
        assert refused.value.code is ErrorCode.INVALID_CONFIG


class TestOffsets:
    @pytest.mark.witness
    async def test_of_both_ends_and_by_time(self, admin: Admin, servers: str, topic: str) -> None:
        await fill(servers, topic, 10)
        assert await admin.offsets.beginning(topic) == {0: 0, 1: 0, 2: 0}
        assert await admin.offsets.end(topic) == {0: 10, 1: 0, 2: 0}
        part = TopicPartition(topic, 0)
        found = await admin.offsets.list({part: 1_004})
        assert (found[part].offset, found[part].timestamp) == (4, 1_004)
        youngest = await admin.offsets.list({part: OffsetSpec.MAX_TIMESTAMP})
        assert youngest[part].offset == 9
        nowhere = await admin.offsets.list({TopicPartition(topic, 99): OffsetSpec.LATEST})
        assert isinstance(nowhere[TopicPartition(topic, 99)], KafkaError)

    async def test_records_are_deleted_up_to_one(self, admin: Admin, servers: str, topic: str) -> None:
        await fill(servers, topic, 10)
        part = TopicPartition(topic, 0)
        assert await admin.offsets.delete_records({part: 7}) == {part: 7}
        assert (await admin.offsets.beginning(topic))[0] == 7
        refused = (await admin.offsets.delete_records({part: 99}))[part]
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.OFFSET_OUT_OF_RANGE


class TestGroups:
    @pytest.mark.witness
    async def test_offsets_are_moved_and_forgotten(self, admin: Admin, topic: str, fresh_name: str) -> None:
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        assert set((await admin.groups.alter_offsets(fresh_name, {first: 0, second: 0})).values()) == {None}
        assert fresh_name in [group.group_id for group in await admin.groups.list()]
        offsets = await admin.groups.offsets(fresh_name)
        assert {p: o.offset for p, o in offsets.items()} == {first: 0, second: 0}
        assert await admin.groups.delete_offsets(fresh_name, [first]) == {first: None}
        assert list(await admin.groups.offsets(fresh_name)) == [second]
        await admin.groups.delete(fresh_name)
        assert fresh_name not in [group.group_id for group in await admin.groups.list()]

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    async def test_are_described_with_their_members(
        self, admin: Admin, servers: str, topic: str, fresh_name: str, protocol: str
    ) -> None:
        settings = {"group_protocol": protocol, "client_id": "it", "group_id": fresh_name}
        async with Consumer(servers, **settings) as consumer:
            consumer.subscribe(topic)
            await until_assigned(consumer, 3)
            async with asyncio.timeout(60):
                while (group := await admin.groups.describe(fresh_name)).state.lower() != "stable":
                    await consumer.poll(timeout_ms=50)
            assert group.type == protocol
            (member,) = group.members
            assert member.client_id == "it"
            assert set(member.assignment) == {TopicPartition(topic, p) for p in range(3)}
            refused = await admin.groups.alter_offsets(fresh_name, {TopicPartition(topic, 0): 0})
            assert all(isinstance(error, KafkaError) for error in refused.values())
        with pytest.raises(KafkaError) as missing:
            await admin.groups.describe("unknown")
        assert missing.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    async def test_members_are_removed(self, admin: Admin, servers: str, topic: str, fresh_name: str) -> None:
        async with Consumer(servers, group_id=fresh_name, **STATIC) as consumer:
            consumer.subscribe(topic)
            await until_assigned(consumer, 3)
        # A static member that left keeps its place until it is removed.
        assert [m.instance_id for m in (await admin.groups.describe(fresh_name)).members] == ["me"]
        results = await admin.groups.remove_members(fresh_name, ["unknown"], instance_ids=["me"])
        assert results["me"] is None
        assert results["unknown"] is not None
        assert results["unknown"].code is ErrorCode.UNKNOWN_MEMBER_ID
        assert not (await admin.groups.describe(fresh_name)).members
        assert await admin.groups.remove_members(fresh_name) == {}

    async def test_all_members_are_removed_where_none_is_named(
        self, admin: Admin, servers: str, topic: str, fresh_name: str
    ) -> None:
        async with Consumer(servers, group_id=fresh_name, **STATIC) as consumer:
            consumer.subscribe(topic)
            await until_assigned(consumer, 3)
        assert list((await admin.groups.remove_members(fresh_name)).values()) == [None]
        assert not (await admin.groups.describe(fresh_name)).members


async def until_assigned(consumer: Consumer[bytes, bytes], count: int) -> None:
    async with asyncio.timeout(60):
        while len(consumer.assignment()) != count:
            await consumer.poll(timeout_ms=50)


class TestTransactions:
    @pytest.mark.witness
    async def test_are_listed_described_and_fenced(
        self, admin: Admin, servers: str, topic: str, fresh_name: str
    ) -> None:
        async with Producer(servers, transactional_id=fresh_name) as producer:
            await producer.ready(topic)
            producer.transactions.begin()
            await producer.send(topic, b"x", partition=1)
            info = await admin.transactions.describe(fresh_name)
            assert info.state == "Ongoing"
            assert info.partitions == (TopicPartition(topic, 1),)
            listed = {t.transactional_id: t.state for t in await admin.transactions.list()}
            assert listed[fresh_name] == "Ongoing"
            producer_id, epoch = await admin.transactions.fence(fresh_name)
            assert (producer_id, epoch) > (info.producer_id, info.producer_epoch)
            with pytest.raises(KafkaError):
                await producer.transactions.commit()
        assert (await admin.transactions.describe(fresh_name)).state == "Empty"

    async def test_an_open_one_shows_at_its_partition(
        self, admin: Admin, servers: str, topic: str, fresh_name: str
    ) -> None:
        part = TopicPartition(topic, 0)
        async with Producer(servers, transactional_id=fresh_name) as producer:
            await producer.ready(topic)
            async with producer.transaction():
                await producer.send(topic, b"x", partition=0)
                found = (await admin.partitions.producers([part]))[part]
                assert not isinstance(found, KafkaError)
                (state,) = found
                assert state.current_txn_start_offset == 0


class TestTheCluster:
    @pytest.mark.witness
    async def test_describes_itself(self, admin: Admin) -> None:
        info = await admin.cluster.describe()
        assert info.cluster_id
        (broker,) = info.brokers
        assert info.controller_id == broker.node_id
        quorum = await admin.cluster.quorum()
        assert quorum.leader_id == broker.node_id
        assert "metadata.version" in await admin.cluster.features()
        assert await admin.log_dirs.describe()

    async def test_a_broker_that_never_was_cannot_be_unregistered(self, admin: Admin) -> None:
        with pytest.raises(KafkaError, match="broker 4711") as refused:
            await admin.cluster.unregister_broker(4711)
        assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED

    async def test_a_lone_brokers_replicas_have_nowhere_to_go(self, admin: Admin, topic: str) -> None:
        part = TopicPartition(topic, 0)
        assert await admin.partitions.reassignments() == {}
        refused = (await admin.partitions.reassign({part: [4711]}))[part]
        assert isinstance(refused, KafkaError)
        assert refused.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        elected = (await admin.partitions.elect_leaders(ElectionType.PREFERRED, [part]))[part]
        assert elected is None or elected.code is ErrorCode.ELECTION_NOT_NEEDED
