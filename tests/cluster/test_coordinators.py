"""Coordinators move with their partitions: groups and transactions go on when their node dies.

The coordinator of a group or a transactional id is the leader of the partition that holds its state; its
successor loads that state and knows everything that was acknowledged.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from ottla.testing.local_cluster import ClusterNode, LocalCluster, send_request
from tests.cluster.conftest import MakeTopic
from tests.support.acknowledged_workload import Load
from tests.support.committing import commit_offsets
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

GROUP, TRANSACTION = 0, 1
PARTITIONS = 3
QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}


def coordinator(cluster: LocalCluster, key: str, kind: int = GROUP) -> int:
    """Who coordinates, as all nodes that run say in agreement."""
    found: set[int] = set()

    def agreed() -> bool:
        found.clear()
        for node in cluster.nodes:
            if node.pid is None:
                continue
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            answer = send_request(node.port, request, 4, FindCoordinatorResponse, timeout_s=30)
            (each,) = answer.coordinators
            found.add(each.node_id if each.error_code == ErrorCode.NONE else -1)
        return len(found) == 1 and -1 not in found

    wait_until(agreed, f"no coordinator of {key}: {found}")
    return found.pop()


def offset_fetch_code(node: ClusterNode, group: str) -> ErrorCode:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    answer = send_request(node.port, request, 8, OffsetFetchResponse, timeout_s=30)
    return ErrorCode.of(answer.groups[0].error_code)


def test_only_the_leader_of_its_partition_coordinates_a_group(cluster: LocalCluster) -> None:
    group = f"g-{uuid4().hex}"
    chosen = coordinator(cluster, group)
    for node in cluster.nodes:
        expected = ErrorCode.NONE if node.id == chosen else ErrorCode.NOT_COORDINATOR
        wait_until(
            lambda node=node, expected=expected: offset_fetch_code(node, group) is expected,  # type: ignore[misc]
            f"node {node.id} does not answer {expected.name}",
        )


def test_offsets_that_were_committed_are_known_to_the_next_coordinator(
    cluster: LocalCluster, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(PARTITIONS), f"g-{uuid4().hex}"
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, **QUIET})
    offsets = [TopicPartition(topic, index, 10 + index) for index in range(PARTITIONS)]
    commit_offsets(consumer, offsets)
    first = coordinator(cluster, group)
    cluster.kill(first)

    def another_is_ready() -> bool:
        found = coordinator(cluster, group)
        return found != first and offset_fetch_code(cluster.node(found), group) is ErrorCode.NONE

    wait_until(another_is_ready, "no other coordinator")
    consumer.close()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
    asked = ConsumerGroupTopicPartitions(group)
    answer = admin.list_consumer_group_offsets([asked])[group].result(60)
    found = {each.partition: each.offset for each in answer.topic_partitions}
    assert found == {index: 10 + index for index in range(PARTITIONS)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_when_its_coordinator_dies(
    cluster: LocalCluster, make_topic: MakeTopic, protocol: str
) -> None:
    topic, group = make_topic(PARTITIONS), f"g-{uuid4().hex}"
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **QUIET,
    }
    if protocol == "classic":
        settings |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}
    seen: Counter[tuple[int, int]] = Counter()
    stop = threading.Event()

    def consume() -> None:
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        while not stop.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    seen[message.partition(), message.offset()] += 1  # type: ignore[index]
            # There may be nothing to commit, or no coordinator for the moment; the next commit has more.
            with contextlib.suppress(KafkaException):
                consumer.commit(asynchronous=False)
        consumer.close()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        with Load(cluster.bootstrap_servers, topic, PARTITIONS, per_second=1000) as load:
            load.wait_for_more(500)
            wait_until(lambda: len(seen) >= 200, "the group does not read")
            first = coordinator(cluster, group)
            cluster.kill(first)
            load.wait_for_more(500)
            load.finish()
        wait_until(lambda: len(seen) == load.count, f"{load.count} records were written", 120)
    finally:
        stop.set()
        thread.join()
    load.check(cluster.bootstrap_servers)


@pytest.mark.slow
def test_transactions_are_whole_whoever_dies(cluster: LocalCluster, make_topic: MakeTopic) -> None:
    """A producer writes to all partitions in each transaction, aborts some, and nodes die in turn: its
    coordinator, leaders of its partitions. Readers see all of what was committed and nothing else.
    """
    topic, name = make_topic(PARTITIONS), f"t-{uuid4().hex}"
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": name,
            "transaction.timeout.ms": 300_000,  # none is aborted because a machine is busy
            "linger.ms": 0,
            **QUIET,
        }
    )
    producer.init_transactions(60)
    committed: list[int] = []

    def transact(number: int) -> None:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            for part in range(3):
                producer.produce(topic, f"{number}:{part}".encode(), partition=partition)
        if number % 4 == 3:
            producer.flush(60)
            producer.abort_transaction(60)
        else:
            retry_commit(producer)
            committed.append(number)

    number = 0
    for victim in (
        lambda: coordinator(cluster, name, TRANSACTION),
        lambda: cluster.leader(topic, 0),
        lambda: coordinator(cluster, name, TRANSACTION),
    ):
        for _ in range(6):
            transact(number)
            number += 1
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, f"{number}:0".encode(), partition=partition)
        dead = victim()
        cluster.kill(dead)
        retry_commit(producer)
        committed.append(number)
        number += 1
        for _ in range(4):
            transact(number)
            number += 1
        cluster.start(dead)
        cluster.wait_ready()
        cluster.wait_in_sync()
    # A commit is answered when it is decided; its markers may come later.
    found: list[list[bytes]] = []

    def last_is_there() -> bool:
        found[:] = read_committed(cluster.bootstrap_servers, topic)
        last = b"%d:" % committed[-1]
        return all(values and values[-1].startswith(last) for values in found)

    wait_until(last_is_there, "the last transaction is not read")
    for partition in range(PARTITIONS):
        numbers = [int(value.split(b":")[0]) for value in found[partition]]
        assert list(dict.fromkeys(numbers)) == committed
        assert all(count in (1, 3) for count in Counter(numbers).values())
        assert len(set(found[partition])) == len(found[partition]), "something came twice"


def retry_commit(producer: Producer) -> None:
    """Commit, and again where the client says that it may be tried again."""
    for _ in range(20):
        try:
            producer.commit_transaction(60)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
    raise AssertionError("the transaction could not be committed")


def read_committed(bootstrap: str, topic: str) -> list[list[bytes]]:
    """The values of each partition that read_committed readers see, up to the end as of now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **QUIET,
        }
    )
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

    def all_read() -> bool:
        for message in consumer.consume(1000, 0.2):
            error, partition, value = message.error(), message.partition(), message.value()
            assert partition is not None
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                ended.add(partition)
            else:
                assert isinstance(value, bytes)
                found[partition].append(value)
        return len(ended) == PARTITIONS

    wait_until(all_read, "the end does not come: a transaction is open")
    consumer.close()
    return found
