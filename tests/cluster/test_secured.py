"""Three nodes with everything on: SASL_SSL on all listeners, SCRAM among brokers, PLAIN at controllers, ACLs.

A user with just the ACLs that it needs writes, reads in a group and copies in transactions, while nodes are
killed; what was acknowledged is there, and others are refused all the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import Producer

from ottla import blocking
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.testing.local_cluster import LocalCluster
from tests.cluster.conftest import SETTINGS
from tests.support.acknowledged_workload import Load
from tests.support.transform_workload import Copying, Worker, read
from tests.support.users import ScramUser, add_user, admin_of, copying_acls
from tests.support.waiting import came_true

PARTITIONS = 3
PER_SECOND = 300
SOURCE, TARGET = "source", "target"
GROUP = f"{SOURCE}-to-{TARGET}"
# Those of the processes that copy, and of what reads their result and that of the load.
GROUPS = (GROUP, "reader-read_committed", "none")

# A member or a transaction of a process that is killed is missed soon.
QUICK = {
    "group.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, settings=SETTINGS | QUICK, security="SASL_SSL") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alice(secured: LocalCluster) -> ScramUser:
    """A user with just the ACLs needed."""
    with admin_of(secured) as admin:
        for topic in (SOURCE, TARGET):
            admin.topics.create(topic, partitions=PARTITIONS, replication_factor=3)
        user = add_user(admin, "alice", Path(secured.data_dir) / "security" / "ca.crt")
        admin.acls.create(copying_acls(user, (SOURCE, TARGET), GROUPS, "worker-"))
    return user


@pytest.fixture(scope="module")
def mallory(secured: LocalCluster, alice: ScramUser) -> ScramUser:
    """A user without any ACL."""
    with admin_of(secured) as admin:
        return add_user(admin, "mallory", alice.authority)


def refused(cluster: LocalCluster, user: ScramUser) -> None:
    """The user may not write by librdkafka, and not see the topic by our client."""
    errors: list[RdKafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **user.librdkafka})
    producer.produce(SOURCE, b"?", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [error and error.code() for error in errors] == [RdKafkaError.TOPIC_AUTHORIZATION_FAILED]
    with blocking.Admin({"bootstrap.servers": cluster.bootstrap_servers, **user.java}) as admin:
        with pytest.raises(KafkaError) as caught:
            admin.topics.create("mine")
        assert caught.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert [topic.name for topic in admin.topics.list()] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_user_with_just_the_acls_needed_goes_on_while_nodes_are_killed(
    secured: LocalCluster, alice: ScramUser, mallory: ScramUser, tmp_path: Path
) -> None:
    bootstrap = secured.bootstrap_servers
    copying = Copying(bootstrap, SOURCE, TARGET, PARTITIONS, librdkafka=alice.librdkafka)
    load = Load(bootstrap, SOURCE, PARTITIONS, per_second=PER_SECOND, bare=True, settings=alice.librdkafka)
    worker = Worker("librdkafka", "worker-1", copying, tmp_path, protocol="classic")
    worker.start()
    try:
        with load:
            load.wait_for_more(PER_SECOND)
            for victim in (secured.leader(TARGET), secured.controller()):
                secured.kill(victim)
                load.wait_for_more(PER_SECOND)
                refused(secured, mallory)
                secured.start(victim)
            load.finish()
        load.check(bootstrap)

        def copied() -> bool:
            worker.keep_alive()
            return len(read(copying, "read_committed")) >= load.count

        assert came_true(copied, 90), f"{load.count} were written\n{worker.last_words()}"
    finally:
        worker.kill()
    found = Counter(int(seen.value.split("|")[0]) for seen in read(copying, "read_committed"))
    assert found == Counter(range(load.count))
    secured.wait_in_sync()


def test_our_clients_read_in_a_group_and_no_further(
    secured: LocalCluster, alice: ScramUser, mallory: ScramUser
) -> None:
    settings = {"bootstrap.servers": secured.bootstrap_servers, **alice.java}
    with blocking.Producer(settings) as producer:
        producer.send(TARGET, b"ours", partition=0)
        producer.flush()
    with blocking.Consumer(settings, group_id=GROUP, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([TARGET])
        seen: list[bytes | None] = []
        while b"ours" not in seen:
            seen += [record.value for record in consumer.poll(timeout_ms=60_000)]
        consumer.commit()
    with blocking.Consumer(settings, group_id="other-group") as consumer:
        consumer.subscribe([TARGET])
        with pytest.raises(KafkaError, match="other-group"):
            consumer.poll(timeout_ms=30_000)
    refused(secured, mallory)
