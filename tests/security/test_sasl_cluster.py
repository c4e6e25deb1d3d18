"""Three nodes whose every listener asks for a login: quorum, replication, forwarding and registration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import AuthenticationFailed
from ottla.client.producer.producer import Producer
from ottla.metadata.log.bootstrap_metadata import bootstrap_records, format_directory
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.runtime.random import SystemRandom
from ottla.runtime.runtime import Runtime
from ottla.security.sasl.add_scram import scram_records
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.local_node import FOR_TESTS
from tests.security.test_sasl_kafka import SaslApacheKafka
from tests.support.principals import login_settings

pytestmark = pytest.mark.slow

DEADLINE_SECONDS = 90
CLUSTER_ID = "dGhlLWNsdXN0ZXItaWQtMQ"
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def node_settings(node_id: int, directory: Path, ports: list[int], mechanism: str) -> dict[str, str]:
    voters = ",".join(f"{n}@127.0.0.1:{ports[n + 2]}" for n in (1, 2, 3))
    users = 'user_nodes="node-secret" user_alice="alice-secret"' if mechanism == "PLAIN" else ""
    jaas = f'{MODULES[mechanism]} required username="nodes" password="node-secret" {users};'
    return {
        **FOR_TESTS,
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "listeners": f"CLIENTS://127.0.0.1:{ports[node_id - 1]},CONTROLLER://127.0.0.1:{ports[node_id + 2]}",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "sasl.mechanism.controller.protocol": mechanism,
        f"listener.name.clients.{mechanism.lower()}.sasl.jaas.config": jaas,
        f"listener.name.controller.{mechanism.lower()}.sasl.jaas.config": jaas,
        # Sessions end while the cluster is at work, so nodes renew theirs.
        "connections.max.reauth.ms": "1500",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "log.dirs": str(directory),
    }


def format_node(runtime: Runtime, directory: Path, node_id: int) -> None:
    users = (
        "SCRAM-SHA-512=[name=nodes,password=node-secret]",
        "SCRAM-SHA-512=[name=alice,password=alice-secret]",
    )
    records = [*bootstrap_records(), *scram_records(users, SystemRandom())]
    format_directory(
        runtime.disk,
        runtime.random,
        runtime.clock,
        str(directory),
        cluster_id=CLUSTER_ID,
        node_id=node_id,
        bootstrap=records,
    )


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", pytest.param("PLAIN", marks=pytest.mark.exhaustive)])
def test_nodes_log_in_at_each_other(tmp_path: Path, mechanism: str) -> None:
    async def run() -> None:
        ports, runtime = free_ports(6), Runtime.real(guest=True)
        nodes = []
        for node_id in (1, 2, 3):
            directory = tmp_path / str(node_id)
            format_node(runtime, directory, node_id)
            settings = node_settings(node_id, directory, ports, mechanism)
            nodes.append(Node(runtime, NodeConfig(settings)))
        try:
            await asyncio.gather(*(node.start() for node in nodes))
            servers = f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
            given = login_settings(servers, "alice", "alice-secret", mechanism=mechanism)
            async with Admin(given) as admin:
                await admin.topics.create("orders", partitions=3, replication_factor=3)
            async with Producer(given) as producer:
                for n in range(30):
                    await producer.send("orders", b"%d" % n)
                    await asyncio.sleep(0.1)
            async with Consumer(given, group_id="g", auto_offset_reset="earliest") as consumer:
                consumer.subscribe(["orders"])
                found: list[bytes | None] = []
                while len(found) < 30:
                    records = await consumer.poll(timeout_ms=DEADLINE_SECONDS * 1000)
                    found += [record.value for record in records]
            with pytest.raises(AuthenticationFailed):
                async with Admin({**given, "sasl.password": "wrong"}):
                    pass
        finally:
            await asyncio.gather(*(node.stop() for node in reversed(nodes)))
            runtime.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_SECONDS))


def test_a_secured_cluster_survives_a_killed_node() -> None:
    with LocalCluster(nodes=3, security="SASL_SSL") as cluster:
        given = {"bootstrap.servers": cluster.bootstrap_servers, **cluster.client_settings}

        async def write(values: range) -> None:
            async with Producer(given) as producer:
                for n in values:
                    await producer.send("orders", b"%d" % n)

        asyncio.run(write(range(5)))
        cluster.kill(cluster.leader("orders"))
        asyncio.run(asyncio.wait_for(write(range(5, 10)), DEADLINE_SECONDS))


@pytest.mark.kafka
@pytest.mark.slow
def test_apache_kafka_knows_the_users_that_a_directory_was_formatted_with(tmp_path: Path) -> None:
    runtime = Runtime.real(guest=True)
    kafka = SaslApacheKafka(tmp_path, free_ports(2), cluster_id=CLUSTER_ID)
    format_node(runtime, kafka.data_dir, 1)
    runtime.close()
    with kafka:

        async def log_in(password: str) -> None:
            given = login_settings(kafka.sasl, "alice", password, mechanism="SCRAM-SHA-512")
            async with Admin(given) as admin:
                assert [user.name for user in await admin.users.list()] == ["alice", "nodes"]

        asyncio.run(log_in("alice-secret"))
        with pytest.raises(AuthenticationFailed):
            asyncio.run(log_in("wrong"))
