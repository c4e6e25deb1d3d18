"""The oracle itself: Apache Kafka runs, restarts, survives a kill, and both Java clients talk to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.apache_kafka import ApacheKafka, ApacheKafkaError
from tests.support.java_driver import JavaDriver, JavaDriverError, Message

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_records_of_both_clients_survive_a_kill(
    tmp_path: Path, java_driver: JavaDriver, old_java_driver: JavaDriver
) -> None:
    with ApacheKafka(tmp_path) as kafka:
        for driver, value in ((java_driver, b"new"), (old_java_driver, b"old")):
            with driver.producer(kafka.bootstrap) as producer:
                producer.send([Message("letters", value, key=b"k", headers=(("h", None),))])
        kafka.kill()
        assert not kafka.running
        kafka.start()
        for driver in (java_driver, old_java_driver):
            consumed = driver.consume(kafka.bootstrap, "letters")
            assert [(each.value, each.headers) for each in consumed.records] == [
                (b"new", (("h", None),)),
                (b"old", (("h", None),)),
            ]


def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path, properties={"log.retention.ms": "soon"})
    with pytest.raises(AssertionError, match=r"log\.retention\.ms"):
        kafka.start()
    assert not kafka.running


def test_a_node_that_ends_while_starting_shows_its_log(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path)
    kafka.data_dir.mkdir()
    (kafka.data_dir / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=7\n")
    with pytest.raises(ApacheKafkaError, match="Stored node id 7"):
        kafka.start()


def test_a_failing_command_raises_with_javas_exception(java_driver: JavaDriver) -> None:
    with pytest.raises(JavaDriverError, match="no_such_codec") as caught:
        java_driver.producer("127.0.0.1:1", compression_type="no_such_codec")
    assert caught.value.kind == "ConfigException"
