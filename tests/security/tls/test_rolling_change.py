"""A cluster goes from plain text to SASL over TLS while clients work, by the steps of docs/security.md."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ottla.client.blocking import Consumer, Producer
from ottla.node.config.properties import parse_properties
from ottla.protocol.names import TopicPartition
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.security import LocalSecurity
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NODES = (1, 2, 3)


class Load:
    """A client that writes numbers, and goes on with other settings when it is asked to."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings
        self.sent = 0
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with Producer(self.settings, linger_ms=0) as producer:
                    for _ in range(50):
                        producer.send("orders", b"%d" % self.sent, partition=0)
                        self.sent += 1
        except BaseException as error:
            self.failure = error

    def wait_for_more(self) -> None:
        before = self.sent
        wait_until(lambda: self.sent > before + 120 or self.failure is not None, "nothing more was sent")
        assert self.failure is None, self.failure

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self.failure is None, self.failure


def change(path: Path, **settings: str) -> None:
    values = parse_properties(path.read_text())
    values |= {name.replace("__", "."): value for name, value in settings.items()}
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def test_clients_work_while_every_listener_of_brokers_changes(tmp_path: Path) -> None:
    security = LocalSecurity("SASL_SSL")
    security.write(tmp_path)
    ports = dict(zip(NODES, free_ports(3), strict=True))
    secured = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    with LocalCluster() as cluster:
        load = Load({"bootstrap.servers": cluster.bootstrap_servers})
        load.wait_for_more()

        def files() -> dict[int, Path]:
            return {number: cluster.plan.node(number).properties_file for number in NODES}

        # 1. A second listener on every node.
        for number, path in files().items():
            plan = cluster.plan.node(number)
            plain, controller = plan.port, plan.controller_port
            both = f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{ports[number]}"
            change(
                path,
                listeners=f"{both},CONTROLLER://127.0.0.1:{controller}",
                listener__security__protocol__map="PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
                **{name.replace(".", "__"): value for name, value in security.server_settings.items()},
            )
            cluster.restart(number)
            load.wait_for_more()
        # 2. Nodes use it among themselves.
        for number, path in files().items():
            change(path, inter__broker__listener__name="SASL_SSL")
            cluster.restart(number)
            load.wait_for_more()
        cluster.wait_in_sync()
        # 3. Clients use it.
        load.settings = {"bootstrap.servers": secured, **security.client_settings}
        load.wait_for_more()
        # 4. The old one goes.
        for number, path in files().items():
            controller = cluster.plan.node(number).controller_port
            change(
                path, listeners=f"SASL_SSL://127.0.0.1:{ports[number]},CONTROLLER://127.0.0.1:{controller}"
            )
            process = cluster._process(number)
            cluster.stop(number)
            process.start()
            wait_until(process.said_ready, f"node {number} is not ready")
            load.wait_for_more()
        load.stop()
        consumer: Consumer[bytes, bytes] = Consumer(load.settings, auto_offset_reset="earliest")
        with consumer:
            partition = TopicPartition("orders", 0)
            consumer.assign([partition])
            found: list[int] = []
            while len(found) < load.sent:
                found += [int(record.value or b"") for record in consumer.poll(timeout_ms=60_000)]
        assert found == list(range(load.sent))
