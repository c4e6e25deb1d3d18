"""A process that copies one topic into another in transactions, to be killed and paused at will.

Each round reads some records of the group's partitions, writes one record for each of them to a partition of
the output that the input's value decides, puts the offsets into the same transaction and commits. Now and
then a round is doomed: its records say so and it is aborted on purpose. The process writes every step and its
result to a journal, line by line, so that the test knows how far it came when it was killed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from typing import Any, Final, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

DOOMED: Final = "|doomed"
DOOMED_EVERY: Final = 5
ROUND_SIZE: Final = 40
ROUND_SECONDS: Final = 0.2
TIMEOUT_S: Final = 10.0
# A librdkafka that bootstraps again while its only broker is away, or hears that a broker has left its
# cluster, drops that broker, but not from its cache of coordinators: `send_offsets_to_transaction` then waits
# without end for one that is never connected to, whatever the timeout. The first is avoided; in the second
# the process ends, to be started again.
KEEP_BROKERS: Final = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 500}
STUCK_S: Final = TIMEOUT_S * 1.5
# Lines of `name=value`, such as how to log in.
SETTINGS: Final = dict(
    line.split("=", 1) for line in os.environ.get("TRANSFORMER_SETTINGS", "").splitlines() if line
)


class Journal:
    """Lines of JSON that are with the kernel before the next step is taken."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, **entry: Any) -> None:
        self._file.write(json.dumps({**entry, "at": time.time()}) + "\n")
        self._file.flush()


class Transformer:
    def __init__(self, bootstrap: str, source: str, target: str, partitions: int, name: str) -> None:
        self._target = target
        self._partitions = partitions
        self._name = name
        # A name of its own for each life, so that no two transactions share one.
        self._life = f"{name}-{os.getpid()}-{time.time_ns()}"
        self._number = 0
        self._journal = Journal(sys.stdout)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{source}-to-{target}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 3_000,
                "heartbeat.interval.ms": 300,
                **KEEP_BROKERS,
                **SETTINGS,
            }
        )
        self._consumer.subscribe([source])
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 5_000,
                "linger.ms": 1,
                **KEEP_BROKERS,
                **SETTINGS,
            }
        )

    def run(self) -> None:
        self._journal.write(life=self._life)
        self._initialise()
        while True:
            records = self._read()
            if records:
                self._round(records)

    def _initialise(self) -> None:
        while True:
            try:
                self._producer.init_transactions(TIMEOUT_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _read(self) -> list[Message]:
        messages = self._consumer.consume(ROUND_SIZE, ROUND_SECONDS)
        return [message for message in messages if message.error() is None]

    def _round(self, records: list[Message]) -> None:
        self._number += 1
        doomed = self._number % DOOMED_EVERY == 2
        values = [record.value().decode() for record in records]
        ending = f"|{self._life}/{self._number}" + (DOOMED if doomed else "")
        appends = [(int(value) % self._partitions, value + ending) for value in values]
        self._journal.write(begin=self._number, appends=appends)
        self._producer.begin_transaction()
        try:
            for partition, value in appends:
                self._producer.produce(self._target, value, partition=partition)
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            self._producer.send_offsets_to_transaction(
                _positions(records), self._consumer.consumer_group_metadata(), TIMEOUT_S
            )
            faulthandler.cancel_dump_traceback_later()
            if doomed:
                self._abort()
            else:
                self._journal.write(commit_asked=self._number)
                self._commit()
        except KafkaException as error:
            faulthandler.cancel_dump_traceback_later()
            failure: KafkaError = error.args[0]
            self._journal.write(error=failure.name(), text=failure.str(), number=self._number)
            if failure.txn_requires_abort() or (failure.retriable() and not failure.fatal()):
                self._abort()
            else:
                raise

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction(TIMEOUT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                self._journal.write(committed=self._number)
                return

    def _abort(self) -> None:
        while True:
            try:
                self._producer.abort_transaction(TIMEOUT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                break
        self._journal.write(aborted=self._number)
        self._rewind()

    def _rewind(self) -> None:
        """Back to what is committed: the records of an aborted round are to be read again."""
        owned = self._consumer.assignment()
        if not owned:
            return
        while True:
            try:
                committed = self._consumer.committed(owned, timeout=TIMEOUT_S)
                break
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        for place in committed:
            start = place.offset if place.offset >= 0 else 0
            self._consumer.seek(TopicPartition(place.topic, place.partition, start))


def _positions(records: list[Message]) -> list[TopicPartition]:
    ends = {(record.topic(), record.partition()): record.offset() + 1 for record in records}
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # prints the stack on request
    bootstrap, source, target, partitions, name = sys.argv[1:]
    Transformer(bootstrap, source, target, int(partitions), name).run()
