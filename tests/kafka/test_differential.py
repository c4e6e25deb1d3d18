"""Scripts of requests over every API and version: the answers are compared field by field.

Apache Kafka against Apache Kafka shows that the scripts are deterministic and that enough is hidden; a
difference anywhere else is then a difference of behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from ottla.testing.local_node import LocalNode
from tests.kafka.scripts import SCRIPTS
from tests.support.apache_kafka import ApacheKafka
from tests.support.differential import Entry, Script, compare, run_script
from tests.support.effort import THOROUGH
from tests.support.newer_apis import FIRST_OF_KAFKA_4_4

Transcript = Callable[[str], list[Entry]]

# One worker: the scripts leave groups and topics behind that later ones see on both brokers.
pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def second_apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("second-apache-kafka")) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def transcript(apache_kafka: ApacheKafka) -> Transcript:
    """What Apache Kafka answers to the script of a name, which it is asked once."""
    return cache(lambda name: run_script(SCRIPTS[name], apache_kafka.bootstrap))


TOPICS_GONE = ("an unknown topic", "with an unknown topic", "which it keeps", "go on after the deletion")
ALLOWED = [
    # Two-phase commits: decision 0030.
    "*.ApiVersionsResponse.api_keys[[]22[]].max_version",
    # What Kafka 4.4 has added.
    *(f"*.ApiVersionsResponse.api_keys[[]{key}[]]*" for key in FIRST_OF_KAFKA_4_4),
    "*.ApiVersionsResponse.supported_features[[]metadata.version[]].max_version",
    "*.ApiVersionsResponse.supported_features[[]share.version[]].max_version",
    "*.DescribeConfigsResponse.results*.configs[[]errors.deadletterqueue.*[]]*",
    "*.CreateTopicsResponse.topics*.configs[[]errors.deadletterqueue.*[]]*",
    # The scrubber, and retries that wait, are Ottla's own.
    "*.DescribeConfigsResponse.results*.configs[[]log.scrub.*[]]*",
    "*.DescribeConfigsResponse.results*.configs[[]share.retry.backoff.*[]]*",
    # So is durability on disk by its own name.
    "*.DescribeConfigsResponse.results*.configs[[]log.durability[]]*",
    # A topic that a request brings into being is there when the request is answered.
    "first v*.MetadataResponse.topics*",
    # A topic that is gone is an error of its partitions, not of the whole share fetch: decision 0085.
    *(f"{label} v*.ShareFetchResponse.*" for label in TOPICS_GONE),
    # With its last session the leader forgets a group, and loads it as it was persisted: then ranges of one
    # state are one range (decision 0085).
    "after the last is aborted v*.ShareFetchResponse.responses*.acquired_records*",
    # Whether Apache Kafka lists a partition for which no record was left depends on when it looks.
    "first begins v*.ShareFetchResponse.responses*.partitions[[]1[]]",
    # A node that is the whole quorum needs no listener for other controllers.
    "__cluster_metadata 0 v*.DescribeQuorumResponse.nodes[[]1[]].listeners[[]CONTROLLER[]]",
]


def every_script() -> list[object]:
    """All scripts; of the random walks one is a witness."""
    further = [name for name in SCRIPTS if name.startswith("random_walk_") and name != "random_walk_0"]
    return [
        pytest.param(name, each, id=name, marks=[pytest.mark.exhaustive] * (name in further))
        for name, each in SCRIPTS.items()
    ]


@pytest.mark.parametrize(("name", "script"), every_script())
def test_ottla_agrees_with_apache_kafka(
    name: str, script: Script, transcript: Transcript, ottla: LocalNode
) -> None:
    actual = run_script(script, ottla.bootstrap_servers)
    assert [str(each) for each in compare(transcript(name), actual, allowed=ALLOWED)] == []


if THOROUGH:  # for those who change the scripts

    @pytest.mark.parametrize(("name", "script"), SCRIPTS.items(), ids=SCRIPTS)
    def test_apache_kafka_agrees_with_itself(
        name: str, script: Script, transcript: Transcript, second_apache_kafka: ApacheKafka
    ) -> None:
        actual = run_script(script, second_apache_kafka.bootstrap)
        assert compare(transcript(name), actual) == []
