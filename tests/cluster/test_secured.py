"""Three nodes with everything on: SASL_SSL on all listeners, SCRAM among brokers, PLAIN at controllers, ACLs.

A user with just the ACLs that it needs writes, reads in a group and copies in transactions, while nodes are
killed; what was acknowledged is there, and others are refused all the time. Certificates are renewed under
load. A node whose certificate is for another host is followed by no other.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import Producer
from cryptography.x509 import load_pem_x509_certificate

from ottla import blocking
from ottla.client.admin.configs import ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.tls.authority import CertificateAuthority
from ottla.testing.local_cluster import ClusterNode, LocalCluster, NodeAccess
from ottla.testing.security import write_secret
from tests.cluster.conftest import SETTINGS
from tests.support.acknowledged_workload import Load
from tests.support.transform_workload import Copying, Worker, read
from tests.support.users import ScramUser, add_user, admin_of, copying_acls
from tests.support.waiting import came_true, wait_until

pytestmark = pytest.mark.slow

PARTITIONS = 3
PER_SECOND = 300
SOURCE, TARGET, RENEWED, ELSEWHERE = "source", "target", "renewed", "elsewhere"
GROUP = f"{SOURCE}-to-{TARGET}"
# Those of the processes that copy, and of what reads their result and that of the load.
GROUPS = (GROUP, "reader-read_committed", "none")

# A member or a transaction of a process that is killed is missed soon.
QUICK = {
    "group.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


class CarelessCluster(LocalCluster):
    """A cluster that is waited for and inspected whatever host its certificates are for."""

    def access(self) -> NodeAccess:
        access = super().access()
        assert access.tls is not None
        access.tls.check_hostname = False
        return access


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalCluster]:
    with CarelessCluster(
        nodes=3, settings=SETTINGS | QUICK, security="SASL_SSL", log_level="info"
    ) as cluster:
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
    producer.flush(120)
    assert [error and error.code() for error in errors] == [RdKafkaError.TOPIC_AUTHORIZATION_FAILED]
    with blocking.Admin({"bootstrap.servers": cluster.bootstrap_servers, **user.java}) as admin:
        with pytest.raises(KafkaError) as caught:
            admin.topics.create("mine")
        assert caught.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert [topic.name for topic in admin.topics.list()] == []


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(500)
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

        assert came_true(copied, 180), f"{load.count} were written\n{worker.last_words()}"
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
            consumer.poll(timeout_ms=120_000)
    refused(secured, mallory)


def serial(node: ClusterNode) -> int:
    """The serial number of the certificate that a new connection to the node is shown."""
    pem = ssl.get_server_certificate(("127.0.0.1", node.port))
    return load_pem_x509_certificate(pem.encode()).serial_number


def issue(
    directory: Path, name: str, hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1")
) -> tuple[Path, int]:
    """A new certificate of the nodes in a file of this name, put there in one step, and its serial number."""
    authority = CertificateAuthority.load(
        (directory / "ca.key").read_bytes(), (directory / "ca.crt").read_bytes()
    )
    issued = authority.issue("CN=node,O=Ottla", int(time.time() * 1000), hosts=hosts)
    unfinished = directory / "unfinished"
    write_secret(unfinished, issued.key_pem() + issued.chain_pem())
    unfinished.replace(directory / name)
    return directory / name, issued.certificate.serial_number


class Visitors:
    """Producers that connect, write a few records and go, one after the other: all of them are let in."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="visitors")
        self.visits = 0
        self.failures: list[BaseException] = []

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with blocking.Producer(self._settings, linger_ms=0) as producer:
                    for partition in range(PARTITIONS):
                        producer.send(TARGET, b"visit", partition=partition)
                self.visits += 1
        except BaseException as error:
            self.failures.append(error)

    def wait_for_more(self, count: int) -> None:
        wanted = self.visits + count
        wait_until(lambda: self.visits >= wanted or bool(self.failures), "no more visits")
        assert self.failures == []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.exhaustive
def test_certificates_are_renewed_under_load_and_no_request_fails(
    secured: LocalCluster, alice: ScramUser
) -> None:
    bootstrap, directory = secured.bootstrap_servers, Path(secured.data_dir) / "security"
    with admin_of(secured) as admin:
        admin.topics.create(RENEWED, partitions=PARTITIONS, replication_factor=3)
        admin.acls.create(copying_acls(alice, (RENEWED,), GROUPS, "worker-"))
    load = Load(bootstrap, RENEWED, PARTITIONS, per_second=PER_SECOND, settings=alice.librdkafka)
    node, others = secured.nodes[0], secured.nodes[1:]
    with load, Visitors({"bootstrap.servers": bootstrap, **alice.java}) as visitors:
        load.wait_for_more(PER_SECOND)
        visitors.wait_for_more(1)
        # By a changed setting of one node.
        path, expected = issue(directory, "node-1.pem")
        name = "listener.name.sasl_ssl.ssl.keystore.location"
        with admin_of(secured) as admin:
            admin.configs.alter(ResourceType.BROKER, str(node.id), set={name: str(path)})
        wait_until(lambda: serial(node) == expected, "the new certificate is not shown")
        assert expected not in {serial(other) for other in others}
        load.wait_for_more(PER_SECOND)
        visitors.wait_for_more(2)
        # By a changed file, which two nodes share.
        _, expected = issue(directory, "node.pem")
        wait_until(lambda: {serial(other) for other in others} == {expected}, "not shown by the others")
        # And nodes connect to each other with what they have now.
        secured.kill(node)
        load.wait_for_more(PER_SECOND)
        secured.start(node)
        secured.wait_in_sync()
        load.wait_for_more(PER_SECOND)
        visitors.wait_for_more(2)
        load.finish()
    load.check(bootstrap)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_no_node_follows_one_whose_certificate_is_for_another_host(secured: LocalCluster) -> None:
    """The certificate is of the same authority, and its key logs in: only the host name is another."""
    node, others = secured.nodes[2], secured.nodes[:2]
    settings = node.plan.properties_file.read_text()
    path, _ = issue(Path(secured.data_dir) / "security", "elsewhere.pem", ("another.example", "127.0.0.2"))
    node.plan.properties_file.write_text(f"{settings}\nssl.keystore.location={path}\n")
    refusal = "the certificate is for another address than 127.0.0.1"
    try:
        secured.restart(node)
        elsewhere = {"bootstrap.servers": others[0].bootstrap_servers, **secured.client_settings}
        with blocking.Admin(elsewhere) as admin:
            replicas = [node.id, *(other.id for other in others)]
            admin.topics.create(ELSEWHERE, assignments={0: replicas})
        wait_until(lambda: secured.partition(ELSEWHERE).isr_nodes == [node.id], "the others followed")
        assert secured.leader(ELSEWHERE) == node.id
        for other in others:
            wait_until(lambda other=other: refusal in other.log(1_000_000), f"{other} does not say why")
    finally:
        node.plan.properties_file.write_text(settings)
        secured.restart(node)
    secured.wait_in_sync()
