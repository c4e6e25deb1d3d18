"""Kafka's Java clients push their metrics to us, and Kafka's tools manage the subscriptions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.java_driver import JavaDriver, Message
from tests.support.node_with_metrics import NodeWithMetrics
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
SENT = "org_apache_kafka_producer_record_send_total"


@pytest.fixture(scope="module")
def node() -> Iterator[NodeWithMetrics]:
    with NodeWithMetrics() as running:
        yield running


def test_the_tools_and_the_java_producer(node: NodeWithMetrics, java_driver: JavaDriver) -> None:
    def client_metrics(*args: str) -> str:
        return java_driver.tool(CLIENT_METRICS, "--bootstrap-server", node.bootstrap_servers, *args).out

    def configs(*args: str) -> str:
        return java_driver.tool(CONFIGS, "--bootstrap-server", node.bootstrap_servers, *args).out

    altered = client_metrics(
        "--alter", "--name", "java", "--metrics", "*", "--interval", "200", "--match", "client_id=java-.*"
    )
    assert "Altered client metrics config for java." in altered
    assert client_metrics("--list").splitlines() == ["java"]
    described = client_metrics("--describe", "--name", "java")
    assert [line.split()[0] for line in described.splitlines()[1:]] == [
        "interval.ms=200",
        "match=client_id=java-.*",
        "metrics=*",
    ], described
    of_configs = configs("--describe", "--entity-type", "client-metrics", "--entity-name", "java")
    assert "interval.ms=200" in of_configs

    with java_driver.producer(node.bootstrap_servers, client_id="java-p") as producer:
        producer.send([Message("java", b"value")] * 10)
        wait_until(lambda: node.sample(SENT, 'client_id="java-p"') == 10, "no push of the Java producer")
        assert node.sample("ottla_client_info", 'client_software_name="apache-kafka-java"') == 1
        producer.send([Message("java", b"value")] * 5)
        wait_until(lambda: node.sample(SENT, 'client_id="java-p"') == 15, "no second push")
    latency = "org_apache_kafka_producer_node_request_latency_max"
    assert f"# TYPE {latency} gauge" in node.metrics()
    assert f"# TYPE {SENT} counter" in node.metrics()
    assert node.sample("kafka_server_client_metrics_plugin_error_count") == 0

    deleted = configs(
        "--alter",
        "--entity-type",
        "client-metrics",
        "--entity-name",
        "java",
        "--delete-config",
        "metrics,interval.ms,match",
    )
    assert "Completed updating config" in deleted
    assert client_metrics("--list").strip() == ""
