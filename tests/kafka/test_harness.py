"""The oracle itself: Apache Kafka runs, restarts, survives a kill, and both Java clients talk to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.log.directory.meta_properties import read_meta_properties
from ottla.metadata.log.bootstrap_metadata import read_bootstrap
from ottla.runtime.disk import RealDisk
from tests.support import java, java_startup, kafka_libs
from tests.support.apache_kafka import ApacheKafka, ApacheKafkaError
from tests.support.java_driver import JavaDriver, JavaDriverError, Message

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.exhaustive
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


def test_a_node_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path, properties={"log.retention.ms": "soon"})
    with pytest.raises(ApacheKafkaError, match=r"log\.retention\.ms"):
        kafka.start()
    assert not kafka.running


def test_a_node_is_formatted_as_by_kafkas_tool(tmp_path: Path) -> None:
    def formatted(*, by_tool: bool) -> list[Any]:
        kafka = ApacheKafka(
            tmp_path / f"{by_tool}", log_dirs=("one", "two"), cluster_id="MkU3OEVBNTcwNTJENDM2Qg"
        )
        kafka.format(by_tool=by_tool)
        return [contents(each) for each in kafka.log_dirs]

    def contents(log_dir: Path) -> Any:
        properties = read_meta_properties(RealDisk(), str(log_dir))
        assert properties is not None
        names = sorted(each.name for each in log_dir.iterdir())
        return names, properties.cluster_id, properties.node_id, read_bootstrap(RealDisk(), str(log_dir))

    assert formatted(by_tool=False) == formatted(by_tool=True)


def test_classes_come_from_an_archive() -> None:
    options = java_startup.archive_options(kafka_libs.BROKER)
    if not options:
        pytest.skip("another process makes the archive")
    strict = [each for each in java.LIGHT_JVM if each != "-Xshare:auto"] + ["-Xshare:on", *options]
    assert java.run_tool("org.apache.kafka.tools.TopicCommand", "--version", jvm=strict).out.strip()


def test_an_archive_that_does_not_fit_is_ignored() -> None:
    # Of the broker's jars, while the classes are those of the client of an older age.
    options = java_startup.archive_options(kafka_libs.BROKER)
    with java.ResidentJvm(
        java_startup.DRIVER, kafka_libs.OLD_CLIENT, jvm=(*java.LIGHT_JVM, *options)
    ) as driver:
        assert driver.call("property", name="ottla.test", value="1") == {}


def test_a_failing_command_raises_with_javas_exception(java_driver: JavaDriver) -> None:
    with pytest.raises(JavaDriverError, match="no_such_codec") as caught:
        java_driver.producer("127.0.0.1:1", compression_type="no_such_codec")
    assert caught.value.kind == "ConfigException"
