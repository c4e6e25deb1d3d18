"""Scripts of requests over every API and version: the answers are compared field by field.

Apache Kafka against Apache Kafka shows that the scripts are deterministic and that enough is hidden; a
difference anywhere else is then a difference of behaviour.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.scripts import SCRIPTS
from tests.support.apache_kafka import ApacheKafka
from tests.support.differential import Entry, Script, compare, run_script

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def second_apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("second-apache-kafka")) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def transcripts(apache_kafka: ApacheKafka) -> dict[str, list[Entry]]:
    """What Apache Kafka answered, by the name of the script."""
    return {name: run_script(script, apache_kafka.bootstrap) for name, script in SCRIPTS.items()}


@pytest.mark.parametrize(("name", "script"), SCRIPTS.items(), ids=SCRIPTS)
def test_apache_kafka_agrees_with_itself(
    name: str, script: Script, transcripts: dict[str, list[Entry]], second_apache_kafka: ApacheKafka
) -> None:
    actual = run_script(script, second_apache_kafka.bootstrap)
    assert compare(transcripts[name], actual) == []
