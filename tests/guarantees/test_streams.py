"""Kafka Streams with exactly_once_v2 on a node: every word is counted once, though the application dies."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.local_node import LocalNode
from tests.support import java, kafka_libs

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE = Path(java.__file__).parent / "java" / "WordCount.java"
LINES = "lines"
COUNTS = "counts"
PARTITIONS = 2
DEADLINE_S = 240.0
WORDS = ("log", "segment", "offset", "epoch", "leader", "quorum", "fetch")


@contextlib.contextmanager
def word_count(node: LocalNode, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The application as a process; it is killed at the end, if it was not before."""
    arguments = [node.bootstrap_servers, str(directory / "state"), LINES, COUNTS]
    with (directory / "word-count.log").open("ab") as log:
        process = subprocess.Popen(
            java.command(SOURCE, arguments, bundle=kafka_libs.STREAMS),
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=java.die_with_parent(),
        )
    try:
        yield process
    finally:
        java.kill_process(process)


class Output:
    """What a reader of committed records has seen of the counts so far."""

    def __init__(self, node: LocalNode, log: Path) -> None:
        self._log = log
        self._consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "group.id": "output",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(COUNTS, number, 0) for number in range(PARTITIONS)])
        self.seen: list[tuple[str, int]] = []

    def read_until(self, total: int, process: subprocess.Popen[bytes]) -> None:
        """Read until the last counts of all words add up to at least so many."""
        deadline = time.monotonic() + DEADLINE_S
        while sum(dict(self.seen).values()) < total:
            if time.monotonic() > deadline or process.poll() is not None:
                raise AssertionError(
                    f"{sum(dict(self.seen).values())} of {total} words were counted\n"
                    + self._log.read_text()[-6_000:]
                )
            for message in self._consumer.consume(500, 0.1):
                assert message.error() is None, message.error()
                self.seen.append((message.key().decode(), int(message.value())))

    def close(self) -> None:
        self._consumer.close()


def write(node: LocalNode, numbers: range) -> Counter[str]:
    """Lines of words, and how often each word is in them."""
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "linger.ms": 5})
    written: Counter[str] = Counter()
    for number in numbers:
        words = [WORDS[(number + step * step) % len(WORDS)] for step in range(number % 5 + 1)]
        written.update(words)
        producer.produce(LINES, " ".join(words), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return written


def test_words_are_counted_once_though_the_application_is_killed(tmp_path: Path) -> None:
    settings = {
        "group.min.session.timeout.ms": 1_000,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    }
    with LocalNode(settings) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        topics = [NewTopic(name, PARTITIONS, 1) for name in (LINES, COUNTS)]
        for done in admin.create_topics(topics).values():
            done.result(60)
        output = Output(node, tmp_path / "word-count.log")
        words = write(node, range(400))
        with word_count(node, tmp_path) as process:
            output.read_until(words.total(), process)
            # Killed in the middle of the next lines, with a transaction open.
            words += write(node, range(400, 1_200))
            output.read_until(words.total() // 2, process)
        with word_count(node, tmp_path) as process:
            words += write(node, range(1_200, 1_300))
            output.read_until(words.total(), process)
        output.close()
    assert Counter(dict(output.seen)) == words
    # Each occurrence of a word is one count more, so each word's counts are 1, 2, 3 and so on, each once.
    for word, total in words.items():
        assert [count for seen, count in output.seen if seen == word] == list(range(1, total + 1))
