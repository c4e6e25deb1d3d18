"""Our source and sink for Spark, and Spark's own, on a listener with TLS that asks for a login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.client.blocking import Admin
from ottla.spark.sink.options import sink_options
from ottla.spark.source.options import source_options
from ottla.spark.worker.client_config import FILE, SERVERS, with_client_config
from ottla.testing.local_node import LocalNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(security="SASL_SSL") as node:
        yield node


def options(node: LocalNode, **changes: str) -> dict[str, str]:
    settings = {"bootstrap.servers": node.bootstrap_servers, **node.client_settings, **changes}
    return {f"kafka.{name}": value for name, value in settings.items()}


def test_rows_go_there_and_back(spark: SparkSession, node: LocalNode) -> None:
    rows = spark.createDataFrame([(bytes([n]),) for n in range(20)], "value binary")
    rows.write.format("ottla").options(**options(node), topic="of-spark").mode("append").save()
    read = spark.read.format("ottla").options(**options(node), subscribe="of-spark").load()
    assert sorted(bytes(row.value) for row in read.collect()) == [bytes([n]) for n in range(20)]


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["PLAIN", pytest.param("SCRAM-SHA-512", marks=pytest.mark.exhaustive)])
def test_sparks_own_connector_logs_in_by_jaas(
    spark: SparkSession, node: LocalNode, tmp_path: Path, mechanism: str
) -> None:
    """`format("kafka")` over TLS: a batch is written and read, and a stream copies it to another topic."""
    source, target = f"source-{mechanism}", f"target-{mechanism}"
    changes = {}
    with Admin({"bootstrap.servers": node.bootstrap_servers, **node.client_settings}) as admin:
        for topic in (source, target):
            admin.topics.create(topic, partitions=2)
        if mechanism != "PLAIN":
            admin.users.set_password("etl", "etl-secret", mechanism=mechanism)
            module = "org.apache.kafka.common.security.scram.ScramLoginModule"
            changes["sasl.mechanism"] = mechanism
            changes["sasl.jaas.config"] = f'{module} required username="etl" password="etl-secret";'
    login = options(node, **changes)
    expected = [bytes([n]) for n in range(50)]
    rows = spark.createDataFrame([(value,) for value in expected], "value binary")
    rows.write.format("kafka").options(**login, topic=source).save()
    stream = spark.readStream.format("kafka").options(**login, subscribe=source, startingOffsets="earliest")
    copy = stream.load().select("value").writeStream.format("kafka").options(**login, topic=target)
    copy.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(240)
    read = spark.read.format("kafka").options(**login, subscribe=target).load()
    assert sorted(bytes(row.value) for row in read.collect()) == expected


def test_a_refused_login_is_explained_without_the_password(spark: SparkSession, node: LocalNode) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="client" password="hunter2";'
    wrong = options(node, **{"sasl.jaas.config": jaas})
    with pytest.raises(Exception, match="Invalid username or password") as caught:
        spark.read.format("ottla").options(**wrong, subscribe="of-spark").load().collect()
    assert "hunter2" not in str(caught.value)


def test_the_file_of_a_run_is_for_its_own_brokers_and_options_win(
    node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.username=etl\nssl.truststore.location=/ca\nacks=1\n")
    monkeypatch.setenv(FILE, str(file))
    monkeypatch.setenv(SERVERS, "a:1, b:2")
    at_b = {"bootstrap.servers": "b:2"}
    login = {"security.protocol": "SASL_SSL", "sasl.username": "etl"}
    assert with_client_config(at_b) == {**at_b, **login, "ssl.truststore.location": "/ca"}
    own = {**at_b, "ssl.ca.location": "/other", "security.protocol": "SSL"}
    assert with_client_config(own) == {**own, "sasl.username": "etl"}
    assert with_client_config({"bootstrap.servers": "c:3"}) == {"bootstrap.servers": "c:3"}
    # Source and sink both use it.
    file.write_text("".join(f"{name}={value}\n" for name, value in node.client_settings.items()))
    monkeypatch.setenv(SERVERS, node.bootstrap_servers)
    servers = {"kafka.bootstrap.servers": node.bootstrap_servers}
    assert source_options({**servers, "subscribe": "t"}, streaming=True) == source_options(
        {**options(node), "subscribe": "t"}, streaming=True
    )
    assert sink_options({**servers, "topic": "t"}) == sink_options({**options(node), "topic": "t"})


def test_options_do_not_show_the_password(node: LocalNode) -> None:
    source = source_options({**options(node), "subscribe": "t"}, streaming=False)
    sink = sink_options({**options(node), "topic": "t"})
    assert node.security.password not in f"{source!r}{sink!r}"
