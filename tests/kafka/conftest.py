"""Fixtures of the tests that read and write Apache Kafka's files."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.testing.local_node import LocalNode
from tests.support.apache_kafka import TWIN_SETTINGS, ApacheKafka
from tests.support.java_driver import JavaDriver
from tests.support.kafka_corpus import NODE_PROPERTIES, KafkaCorpus, create_topics, write_corpus
from tests.support.our_logs import OurTopic, log_manager, write_our_logs


@pytest.fixture(scope="session")
def ottla() -> Iterator[LocalNode]:
    """A node of the same settings as `apache_kafka`, for the comparisons of this directory."""
    with LocalNode(TWIN_SETTINGS) as node:
        yield node


@pytest.fixture(scope="session")
def kafka_corpus(tmp_path_factory: pytest.TempPathFactory, java_driver: JavaDriver) -> KafkaCorpus:
    """Data directories that Apache Kafka wrote, with what its own client read from them."""
    return write_corpus(tmp_path_factory.mktemp("corpus"), java_driver)


@dataclass(frozen=True, slots=True)
class OurLogs:
    """A data directory that Apache Kafka began and Ottla's log layer filled, in three states."""

    clean: Path
    crashed: Path
    recovered: Path
    cluster_id: str
    topics: dict[str, OurTopic]


@pytest.fixture(scope="session")
def our_logs(tmp_path_factory: pytest.TempPathFactory, java_driver: JavaDriver) -> OurLogs:
    """`clean` was shut down; `crashed` is a copy of the files of a running log layer, with a torn batch at
    the end of every log; `recovered` is what our own recovery made of that.
    """
    directory = tmp_path_factory.mktemp("our-logs")
    with ApacheKafka(directory / "node", properties=NODE_PROPERTIES) as kafka:
        create_topics(kafka)
    clean, crashed, recovered = (directory / name for name in ("clean", "crashed", "recovered"))
    shutil.copytree(kafka.data_dir, clean)

    async def write() -> dict[str, OurTopic]:
        async with log_manager(clean) as manager:
            topics = await write_our_logs(manager, int(time.time() * 1000))
            # A log start that is in no checkpoint is lost in a crash, as it is with Kafka.
            await manager.checkpoint_log_start_offsets()
            shutil.copytree(clean, crashed)
        return topics

    topics = asyncio.run(write())
    for topic in topics:
        last = max((crashed / f"{topic}-0").glob("*.log"))
        # The first half of a batch whose write was interrupted.
        last.write_bytes(last.read_bytes() + last.read_bytes()[:50])
    shutil.copytree(crashed, recovered)

    async def recover() -> None:
        async with log_manager(recovered):
            pass

    asyncio.run(recover())
    return OurLogs(clean, crashed, recovered, kafka.cluster_id, topics)
