"""Processes that copy a topic into another in transactions, and what became of what they did.

A `Worker` runs `tests/guarantees/transformer.py` or its twin in Java, to be killed, paused and started again;
its journal tells afterwards which transactions it began, committed and aborted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support import java, kafka_libs
from tests.support.transaction_checker import ObservedRecord, ObservedTransaction, TransactionOutcome

TRANSFORMER: Final = Path(java.__file__).parent / "java" / "Transformer.java"
READ_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Copying:
    """From where to where: the topics have the same number of partitions. The group is named by both.

    `librdkafka` and `java` are further settings of the clients, such as how to log in.
    """

    bootstrap: str
    source: str
    target: str
    partitions: int
    librdkafka: Mapping[str, str] = field(default_factory=dict)
    java: Mapping[str, str] = field(default_factory=dict)


class Worker:
    """A transformer and its successors, each with the same transactional id."""

    def __init__(
        self, client: str, name: str, copying: Copying, directory: Path, *, protocol: str = "consumer"
    ) -> None:
        self.name = name
        self._target = copying.target
        arguments = [copying.bootstrap, copying.source, copying.target, str(copying.partitions), name]
        self._command = (
            java.command(TRANSFORMER, [*arguments, protocol], bundle=kafka_libs.BROKER)
            if client == "java"
            else [sys.executable, "-m", "tests.guarantees.transformer", *arguments]
        )
        settings = copying.java if client == "java" else copying.librdkafka
        self._environment = {
            **os.environ,
            "TRANSFORMER_SETTINGS": "".join(f"{key}={value}\n" for key, value in settings.items()),
        }
        self._shows_where_it_stands = client != "java"
        self.journal = directory / f"{name}.journal"
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.journal.open("ab") as journal, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=journal,
                stderr=log,
                env=self._environment,
                preexec_fn=java.die_with_parent(),
            )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def keep_alive(self) -> None:
        """Start it again if it gave up, as a supervisor would."""
        assert self._process is not None
        if self._process.poll() is not None:
            self.start()

    def last_words(self) -> str:
        """Where it stands, the last that it did, and what it logged."""
        if self._shows_where_it_stands and self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGUSR1)
            time.sleep(0.5)
        steps = [line[:200] for line in self.journal.read_text().splitlines()[-8:]]
        return "\n".join(
            [f"--- {self.name}: its last steps, and its log", *steps, self._log.read_text()[-2_000:]]
        )

    def transactions(self) -> list[ObservedTransaction]:
        """What its journal tells; its lives are writers of their own, in the order of their times."""
        found: list[ObservedTransaction] = []
        current: dict[int, ObservedTransaction] = {}
        life = ""
        for line in self.journal.read_text().splitlines():
            if not line.startswith("{"):
                continue  # Java's logger writes errors, such as that of a fenced producer, to the same stream
            entry = json.loads(line)
            if "life" in entry:
                life, current = entry["life"], {}
            elif "begin" in entry:
                appends = [(f"{self._target}-{partition}", value) for partition, value in entry["appends"]]
                transaction = ObservedTransaction(life, entry["begin"], appends)
                current[entry["begin"]] = transaction
                found.append(transaction)
            elif "commit_asked" in entry:
                current[entry["commit_asked"]].commit_asked_at = entry["at"]
            elif "committed" in entry:
                current[entry["committed"]].outcome = TransactionOutcome.COMMITTED
            elif "aborted" in entry:
                current[entry["aborted"]].outcome = TransactionOutcome.ABORTED
        return found


def read(copying: Copying, isolation: str) -> list[ObservedRecord]:
    """All of the output that a reader of this isolation level is shown, to the end as it is now."""
    consumer = Consumer(
        {
            "bootstrap.servers": copying.bootstrap,
            "group.id": f"reader-{isolation}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            **copying.librdkafka,
        }
    )
    seen: list[ObservedRecord] = []
    left = set(range(copying.partitions))
    consumer.assign([TopicPartition(copying.target, partition, 0) for partition in left])
    deadline = time.monotonic() + READ_S
    while left:
        assert time.monotonic() < deadline, f"partitions {left} have no end for a reader of {isolation}"
        for message in consumer.consume(500, 0.1):
            error, offset, value = message.error(), message.offset(), message.value()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                continue
            assert offset is not None
            assert isinstance(value, bytes)
            seen.append(
                ObservedRecord(f"{copying.target}-{message.partition()}", offset, value.decode(), time.time())
            )
    consumer.close()
    return seen
