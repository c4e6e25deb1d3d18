"""From plain text to SASL_SSL, node by node, as docs/security.md says: no send fails, nothing is lost.

The settings of each round are those of the page, with the addresses and files of the test's cluster.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla import blocking
from ottla.protocol.errors import KafkaError
from ottla.runtime.properties import parse_properties
from ottla.testing.cluster_plan import free_ports
from ottla.testing.cluster_process import NodeProcess
from ottla.testing.local_cluster import ClusterNode, LocalCluster
from ottla.testing.security import LocalSecurity
from tests.cluster.conftest import SETTINGS
from tests.support.acknowledged_workload import Load
from tests.support.users import ScramUser, add_user, copying_acls
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
HEADING = "## From plain text to SASL_SSL, node by node"
HOST = "127.0.0.1"
PARTITIONS = 3
PER_SECOND = 200
OLD, NEW = "old", "new"


def rounds() -> list[str]:
    """The settings of each round, as they are on the page."""
    section = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    return re.findall(r"```properties\n(.*?)```", section, re.DOTALL)


class Operator:
    """Does what the page says, with the cluster's own ports: 9092 and 9094 are those that it has had,
    9093 and 9095 are new.
    """

    def __init__(self, cluster: LocalCluster, files: Path) -> None:
        self._cluster = cluster
        self._files = files
        ports = free_ports(2 * len(cluster.nodes))
        self._ports = {
            node.id: {"9092": node.port, "9093": ports.pop(), "9094": controller_port, "9095": ports.pop()}
            for node in cluster.nodes
            if (controller_port := node.plan.controller_port) is not None
        }

    @property
    def secure_servers(self) -> str:
        return ",".join(f"{HOST}:{ports['9093']}" for ports in self._ports.values())

    def settings_of(self, node: ClusterNode, text: str) -> dict[str, str]:
        def address(match: re.Match[str]) -> str:
            # The page is about node 1; other nodes put their own names where it has that of its node.
            listed, id = match.group(1) is not None, int(match.group(2))
            return f"{match.group(1) or ''}{HOST}:{self._ports[id if listed else node.id][match.group(3)]}"

        text = re.sub(r"(\d@)?broker(\d)\.example:(\d+)", address, text)
        return dict(parse_properties(text.replace("/etc/ottla", str(self._files))))

    def restart_all(self, text: str, is_in_sync: Callable[[], bool]) -> None:
        """One round: each node with new settings, and the next when all replicas are in sync again."""
        for node in self._cluster.nodes:
            self._cluster.stop(node)
            file = node.plan.properties_file
            settings = parse_properties(file.read_text()) | self.settings_of(node, text)
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            process = NodeProcess(node.plan)
            process.start()
            wait_until(process.said_ready, f"node {node.id} is not ready", 90)
            wait_until(is_in_sync, f"not in sync after the restart of node {node.id}", 90)


def in_sync(settings: dict[str, str]) -> bool:
    with contextlib.suppress(KafkaError, OSError), blocking.Admin(settings) as admin:
        topics = [admin.topics.describe(name) for name in (OLD, NEW)]
        return all(
            set(partition.isr) == set(partition.replicas) and partition.leader >= 0
            for topic in topics
            for partition in topic.partitions
        )
    return False


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_send_fails_while_a_cluster_moves_by_the_page(tmp_path: Path) -> None:
    both, among_nodes, without_plain_text = rounds()
    LocalSecurity("SSL").write(tmp_path / "files")
    with LocalCluster(nodes=3, settings=SETTINGS) as cluster:
        plain = {"bootstrap.servers": cluster.bootstrap_servers}
        operator = Operator(cluster, tmp_path / "files")
        authority = tmp_path / "files" / "ca.crt"
        with blocking.Admin(plain) as admin:
            for topic in (OLD, NEW):
                admin.topics.create(topic, partitions=PARTITIONS, replication_factor=3)
            for name in ("node", "admin"):
                add_user(admin, name, authority)
        root = ScramUser("admin", "admin-secret", authority)
        secure = {"bootstrap.servers": operator.secure_servers, **root.java}
        with Load(cluster.bootstrap_servers, OLD, PARTITIONS, per_second=PER_SECOND) as old:
            old.wait_for_more(PER_SECOND)
            operator.restart_all(both, lambda: in_sync(plain))
            with blocking.Admin(secure) as admin:
                alice = add_user(admin, "alice", authority)
                admin.acls.create(copying_acls(alice, (OLD, NEW), ("none",), "-"))
            with Load(
                operator.secure_servers, NEW, PARTITIONS, per_second=PER_SECOND, settings=alice.librdkafka
            ) as new:
                new.wait_for_more(PER_SECOND)
                operator.restart_all(among_nodes, lambda: in_sync(secure))
                old.wait_for_more(PER_SECOND)
                old.finish()
                operator.restart_all(without_plain_text, lambda: in_sync(secure))
                new.wait_for_more(PER_SECOND)
                new.finish()
        new.check(operator.secure_servers)
        old.check(operator.secure_servers, alice.librdkafka)
