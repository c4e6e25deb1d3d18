"""The dashboard and the rules of `dashboards/` in a real Prometheus beside live nodes: all queries answer."""

import json
import re
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import PROMETHEUS_SKIP
from tests.coordinator.group.streams_topologies import subtopology, topology
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

from ottla import LocalCluster, blocking
from ottla.client.admin.configs import ResourceType
from ottla.client.share import ShareRecord
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from ottla.runtime.metrics_text import parse_metrics
from ottla.testing.cluster_plan import free_ports

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "dashboards" / "ottla.json"
RULES = ROOT / "dashboards" / "ottla-rules.yml"
PROMETHEUS = shutil.which("prometheus")
VARIABLES = {"$__rate_interval": "20s", "$instance": ".*", "$topic": ".*"}
NAMES = re.compile(r"\b((?:kafka|ottla|process)_\w+)")


def queries() -> list[str]:
    board = json.loads(BOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def rule_expressions() -> str:
    """The text of the rules without what only people read."""
    lines = RULES.read_text().splitlines()
    return "\n".join(line for line in lines if "#" not in line and "summary:" not in line)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two nodes with a replicated topic, groups with a lag, and an ended transaction."""
    with LocalCluster(nodes=2, settings={"http.listener": "http://127.0.0.1:0"}) as cluster:
        servers = cluster.bootstrap_servers
        with blocking.Admin(servers) as admin:
            admin.topics.create("orders", partitions=2, replication_factor=2)
        settings = {"bootstrap.servers": servers, "transactional.id": "teller"}
        with blocking.Producer(settings) as producer, producer.transaction():
            for number in range(10):
                producer.send("orders", b"x" * 100, partition=number % 2)
        settings = {"bootstrap.servers": servers, "group.id": "readers", "enable.auto.commit": "false"}
        with blocking.Consumer({**settings, "auto.offset.reset": "earliest"}) as reader:
            reader.subscribe(["orders"])
            while not reader.poll(5):
                pass
            reader.commit({("orders", 0): 2, ("orders", 1): 3})
        join_streams_group(servers)
        with blocking.Admin(servers) as admin:
            admin.configs.alter(ResourceType.GROUP, "workers", set={"share.auto.offset.reset": "earliest"})
        settings = {"group_id": "workers", "share_acknowledgement_mode": "explicit"}
        with blocking.ShareConsumer(servers, **settings) as worker:
            worker.subscribe("orders")
            held: list[ShareRecord[Any, Any]] = []
            while len(held) < 10:
                held += worker.poll()
            worker.accept(*[record for record in held if record.partition == 0][:2])
            worker.commit()
            yield cluster


def join_streams_group(servers: str) -> None:
    """Have a member join the streams group `totals`."""

    def joins() -> bool:
        with WireClient(servers.split(",")[0]) as client:
            search = FindCoordinatorRequest(key_type=0, coordinator_keys=["totals"])
            (found,) = client.get(search, 6, FindCoordinatorResponse).coordinators
        if found.error_code:
            return False
        request = StreamsGroupHeartbeatRequest(
            group_id="totals",
            member_id="adder",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            topology=topology(subtopology("0", "orders")),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            process_id="adder",
        )
        with WireClient(f"{found.host}:{found.port}") as client:
            return client.get(request, 0, StreamsGroupHeartbeatResponse).error_code == 0

    wait_until(joins, "the member did not join")


def metrics_of(cluster: LocalCluster) -> list[str]:
    texts = []
    for node in cluster.nodes:
        with urllib.request.urlopen(f"{node.http_url}/metrics", timeout=60) as answer:
            texts.append(answer.read().decode())
    return texts


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **arguments: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def query(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return found

    def is_up(self) -> bool:
        try:
            return bool(self.query("up"))
        except OSError:
            return False


@pytest.fixture(scope="module")
def prometheus(cluster: LocalCluster) -> Iterator[Prometheus]:
    if PROMETHEUS is None:
        pytest.skip(PROMETHEUS_SKIP)
    targets = [str(node.http_url).removeprefix("http://") for node in cluster.nodes]
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "prometheus.json"  # which is YAML too
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
                    "rule_files": [str(RULES)],
                    "scrape_configs": [{"job_name": "ottla", "static_configs": [{"targets": targets}]}],
                }
            )
        )
        command = [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={directory}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        process = subprocess.Popen(command)
        try:
            server = Prometheus(port)
            wait_until(server.is_up, "Prometheus has scraped nothing")
            yield server
        finally:
            process.terminate()
            process.wait(60)


def test_the_nodes_have_every_metric_that_the_dashboard_and_the_rules_name(cluster: LocalCluster) -> None:
    known = {sample.name for text in metrics_of(cluster) for sample in parse_metrics(text)}
    wanted = set(NAMES.findall("\n".join([*queries(), rule_expressions()])))
    assert len(wanted) > 50
    assert wanted <= known, wanted - known


def test_each_query_of_the_dashboard_answers(prometheus: Prometheus) -> None:
    expressions = queries()
    assert len(expressions) > 50
    for expression in expressions:
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        wait_until(lambda: bool(prometheus.query(expression)), f"no answer to {expression}")  # noqa: B023


def test_each_rule_is_evaluated_and_no_alert_fires_on_sound_nodes(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), "not all rules were evaluated")
    assert len(rules()) >= 25
    assert [rule["name"] for rule in rules() if rule["health"] != "ok"] == []
    assert [alert for alert in prometheus.get("alerts")["alerts"] if alert["state"] == "firing"] == []


def test_the_lag_of_a_group_is_computed_over_all_nodes(prometheus: Prometheus) -> None:
    query = 'sort(ottla:consumergroup_lag{consumergroup="readers"})'
    wait_until(lambda: len(prometheus.query(query)) == 2, "no lag of the group")
    lags = {each["metric"]["partition"]: float(each["value"][1]) for each in prometheus.query(query)}
    # Five records and the marker of the transaction in each.
    assert lags == {"0": 4.0, "1": 3.0}


def test_the_lag_of_a_share_group_is_computed_over_all_nodes(prometheus: Prometheus) -> None:
    query = 'ottla:sharegroup_lag{group="workers"}'

    def lags() -> dict[str, float]:
        return {each["metric"]["partition"]: float(each["value"][1]) for each in prometheus.query(query)}

    # Five records in each, of which two were accepted; the marker of the transaction is a gap, which is done.
    wait_until(lambda: lags() == {"0": 3.0, "1": 5.0}, "the lag of the share group is another")


def test_an_alert_comes_when_a_node_is_gone(cluster: LocalCluster, prometheus: Prometheus) -> None:
    cluster.kill(2)
    wait_until(lambda: bool(prometheus.query('ALERTS{alertname="OttlaNodeDown"}')), "there is no alert")
