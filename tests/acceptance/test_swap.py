"""A data directory changes hands: Apache Kafka takes over Ottla's, and Ottla takes over Apache Kafka's.

The next node on the directory must show all that the previous one showed: every record with its offset,
timestamp and headers, settled and open transactions, topics with their ids, settings, committed offsets,
features. Then it goes on writing, and the directory goes back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.changing_hands import Lives, every_exchange, life
from tests.support.java_driver import JavaDriver
from tests.support.kafka_corpus import TOPICS, Broker, Truth, read_truth, write_more, write_topics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

GROUP = "moving"


@dataclass(frozen=True, slots=True)
class Seen:
    """All that the tools and clients of Apache Kafka show of a broker."""

    records: dict[str, Truth]
    topics: list[list[str]]
    configs: list[list[str]]
    group: list[list[str]]
    transactions: list[list[str]]
    features: list[list[str]]


def finalized(features: str) -> list[list[str]]:
    """Each feature with its level: which levels a broker supports is its own affair, as is the epoch."""
    lines = re.findall(r"Feature: (\S+).*FinalizedVersionLevel: (\S+)", features)
    assert lines, features
    return sorted(map(list, lines))


def see(broker: Broker, driver: JavaDriver) -> Seen:
    def tool(main: str, *args: str) -> str:
        return driver.tool(main, "--bootstrap-server", broker.bootstrap, *args).out

    def words(text: str) -> list[list[str]]:
        # Settings come in any order.
        return sorted(sorted(re.split(r"[\s,]+", line.strip())) for line in text.splitlines() if line.strip())

    names = "|".join(map(re.escape, TOPICS))
    configs = "kafka.admin.ConfigCommand"
    return Seen(
        read_truth(broker, driver),
        words(tool("org.apache.kafka.tools.TopicCommand", "--describe", "--topic", names)),
        [
            *words(tool(configs, "--describe", "--entity-type", "topics", "--entity-name", "compacted")),
            *words(tool(configs, "--describe", "--entity-type", "brokers", "--entity-default")),
            *words(tool(configs, "--describe", "--entity-type", "brokers", "--entity-name", "1")),
        ],
        words(
            tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe", "--group", GROUP)
        ),
        words(tool("org.apache.kafka.tools.TransactionsCommand", "list")),
        finalized(tool("org.apache.kafka.tools.FeatureCommand", "describe")),
    )


def differences(now: Seen, before: Seen, end: str) -> str:
    """What one shows and the other does not."""
    # A log start that was in no checkpoint yet is lost with a kill, in both brokers.
    topics = [topic for topic in TOPICS if end == "stop" or topic != "deleted-front"]
    found = [f"records of {topic}" for topic in topics if now.records[topic] != before.records[topic]]
    for name in ("topics", "configs", "group", "transactions", "features"):
        mine, theirs = getattr(now, name), getattr(before, name)
        found += [f"{name}: new: {' '.join(line)}" for line in mine if line not in theirs]
        found += [f"{name}: gone: {' '.join(line)}" for line in theirs if line not in mine]
    return "\n".join(found)


def set_up(broker: Broker, driver: JavaDriver) -> None:
    """Topics of every kind, settings of topics and brokers, committed offsets."""

    def tool(main: str, *args: str) -> None:
        driver.tool(main, "--bootstrap-server", broker.bootstrap, *args)

    configs = "kafka.admin.ConfigCommand"
    write_topics(broker, driver)
    entity = ("--entity-type", "brokers")
    tool(configs, "--alter", *entity, "--entity-name", "1", "--add-config", "log.retention.ms=7777777777")
    tool(configs, "--alter", *entity, "--entity-default", "--add-config", "background.threads=7")
    commit(broker, driver, 3)


def commit(broker: Broker, driver: JavaDriver, offset: int) -> None:
    driver.tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", broker.bootstrap, "--reset-offsets", "--group", GROUP),
        *("--topic", "codec-lz4", "--topic", "segments", "--to-offset", str(offset), "--execute"),
    )


@every_exchange
def test_a_data_directory_changes_hands(tmp_path: Path, java_driver: JavaDriver, lives: Lives) -> None:
    before: Seen | None = None
    last_end = "stop"
    for number, (who, end) in enumerate(lives):
        with life(tmp_path / "data", who, end, {}) as broker:
            if before is None:
                set_up(broker, java_driver)
            else:
                assert differences(see(broker, java_driver), before, last_end) == "", f"life {number}"
                write_more(broker, java_driver)
                commit(broker, java_driver, 3 + number)
            before, last_end = see(broker, java_driver), end
