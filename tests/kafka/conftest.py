"""Fixtures of the tests that read and write Apache Kafka's files."""

from __future__ import annotations

import pytest

from tests.support.java_driver import JavaDriver
from tests.support.kafka_corpus import KafkaCorpus, write_corpus


@pytest.fixture(scope="session")
def kafka_corpus(tmp_path_factory: pytest.TempPathFactory, java_driver: JavaDriver) -> KafkaCorpus:
    """Data directories that Apache Kafka wrote, with what its own client read from them."""
    return write_corpus(tmp_path_factory.mktemp("corpus"), java_driver)
