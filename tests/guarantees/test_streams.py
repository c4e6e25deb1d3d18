"""Kafka Streams with exactly_once_v2 on a node: every word is counted once, though the application dies, or
the node. The application is a classic group with an assignor of its own, or a streams group.
"""

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
from tests.support.java_driver import JavaDriver
from tests.support.node_process import NodeProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE = Path(java.__file__).parent / "java" / "WordCount.java"
GROUP = "word-count"
LINES = "lines"
COUNTS = "counts"
PARTITIONS = 2
DEADLINE_S = 240.0
STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
SETTINGS = {
    "group.min.session.timeout.ms": 1_000,
    "group.streams.min.session.timeout.ms": 1_000,
    "group.streams.session.timeout.ms": 3_000,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 300,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
WORDS = ("log", "segment", "offset", "epoch", "leader", "quorum", "fetch")


@contextlib.contextmanager
def word_count(
    bootstrap: str, directory: Path, protocol: str = "streams", state: str = "state"
) -> Iterator[subprocess.Popen[bytes]]:
    """The application as a process; it is killed at the end, if it was not before."""
    arguments = [bootstrap, str(directory / state), LINES, COUNTS, protocol]
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

    def __init__(self, bootstrap: str, log: Path) -> None:
        self._log = log
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
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
                error = message.error()
                if error is not None:
                    assert error.retriable(), error  # the node may be away
                    continue
                self.seen.append((message.key().decode(), int(message.value())))

    def close(self) -> None:
        self._consumer.close()


def write(bootstrap: str, numbers: range) -> Counter[str]:
    """Lines of words, and how often each word is in them."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
    written: Counter[str] = Counter()
    for number in numbers:
        words = [WORDS[(number + step * step) % len(WORDS)] for step in range(number % 5 + 1)]
        written.update(words)
        producer.produce(LINES, " ".join(words), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return written


def create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, PARTITIONS, 1) for name in (LINES, COUNTS)]
    for done in admin.create_topics(topics).values():
        done.result(60)


def check(output: Output, words: Counter[str]) -> None:
    assert Counter(dict(output.seen)) == words
    # Each occurrence of a word is one count more, so each word's counts are 1, 2, 3 and so on, each once.
    for word, total in words.items():
        assert [count for seen, count in output.seen if seen == word] == list(range(1, total + 1))


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.exhaustive), "streams"])
def test_words_are_counted_once_though_the_application_is_killed(tmp_path: Path, protocol: str) -> None:
    with LocalNode(SETTINGS) as node:
        bootstrap = node.bootstrap_servers
        create_topics(bootstrap)
        output = Output(bootstrap, tmp_path / "word-count.log")
        words = write(bootstrap, range(400))
        with word_count(bootstrap, tmp_path, protocol) as process:
            output.read_until(words.total(), process)
            # Killed in the middle of the next lines, with a transaction open.
            words += write(bootstrap, range(400, 1_200))
            output.read_until(words.total() // 2, process)
        with word_count(bootstrap, tmp_path, protocol) as process:
            words += write(bootstrap, range(1_200, 1_300))
            output.read_until(words.total(), process)
        output.close()
    check(output, words)


@pytest.mark.exhaustive
def test_a_second_process_takes_over_the_tasks_of_the_one_that_is_killed(
    tmp_path: Path, java_driver: JavaDriver
) -> None:
    with LocalNode(SETTINGS) as node:
        bootstrap = node.bootstrap_servers

        def groups(*args: str) -> str:
            return java_driver.tool(STREAMS_GROUPS, "--bootstrap-server", bootstrap, *args).text

        create_topics(bootstrap)
        output = Output(bootstrap, tmp_path / "word-count.log")
        words = write(bootstrap, range(400))
        with word_count(bootstrap, tmp_path, state="first") as first:
            output.read_until(words.total(), first)
            with word_count(bootstrap, tmp_path, state="second") as second:
                wait_until(
                    lambda: members(groups("--describe", "--group", GROUP, "--members")) == 2,
                    "the second process has not joined",
                    DEADLINE_S,
                )
                words += write(bootstrap, range(400, 800))
                output.read_until(words.total(), second)
                assert GROUP in groups("--list")
                # The words are counted, and tasks may still be on their way to the second process.
                wait_until(
                    lambda: "Stable" in groups("--describe", "--group", GROUP, "--state"),
                    "the group is not stable",
                    DEADLINE_S,
                )
                java.kill_process(first)
                words += write(bootstrap, range(800, 1_200))
                output.read_until(words.total(), second)
                wait_until(
                    lambda: members(groups("--describe", "--group", GROUP, "--members", "--verbose")) == 1,
                    "the group has other members than the second process",
                    DEADLINE_S,
                )
                offsets = groups("--describe", "--group", GROUP, "--offsets")
                assert LINES in offsets, offsets
        output.close()
        wait_until(
            lambda: "Empty" in groups("--describe", "--group", GROUP, "--state"),
            "the group still has members",
            DEADLINE_S,
        )
        deleted = groups("--delete", "--group", GROUP)
        assert "successful" in deleted, deleted
    check(output, words)


@pytest.mark.exhaustive
def test_words_are_counted_once_though_the_node_is_killed(tmp_path: Path) -> None:
    settings = [argument for name, value in SETTINGS.items() for argument in ("--set", f"{name}={value}")]
    data = tmp_path / "data"
    with NodeProcess(data, *settings) as node:
        bootstrap = node.bootstrap
        create_topics(bootstrap)
        output = Output(bootstrap, tmp_path / "word-count.log")
        words = write(bootstrap, range(400))
        with word_count(bootstrap, tmp_path) as process:
            output.read_until(words.total(), process)
            words += write(bootstrap, range(400, 1_200))
            output.read_until(words.total() // 2, process)
            node.kill()
            with NodeProcess(data, *settings, listen=bootstrap):
                words += write(bootstrap, range(1_200, 1_300))
                output.read_until(words.total(), process)
                output.close()
    check(output, words)


def members(described: str) -> int:
    """How many lines of a description are of members."""
    return sum(line.split()[:1] == [GROUP] for line in described.splitlines())
