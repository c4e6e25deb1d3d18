"""Members of a group in processes of their own, to be killed, paused and brought back.

The Java members are Kafka's own VerifiableConsumer; the others are `member`. The records that each of them
read are in its journal, however it ended; the coordinator says which member owns which partition.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from tests.guarantees.member import HEARTBEAT_INTERVAL_MS, session_timeout_ms
from tests.support import java, kafka_libs

VERIFIABLE_CONSUMER: Final = "org.apache.kafka.tools.VerifiableConsumer"
JAVA: Final = {"java": "CLASSIC", "java-modern": "CONSUMER"}
DEADLINE_S: Final = 120.0
# What a coordinator answers until it has loaded the group.
NOT_YET = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR)

Owned = dict[str, set[tuple[str, int]]]


class Member:
    """One process in the group; `restart` gives it a successor with the same journal."""

    def __init__(
        self,
        client: str,
        bootstrap: str,
        group: str,
        topic: str,
        directory: Path,
        instance: str | None = None,
    ) -> None:
        self.client = client
        self._arguments = (bootstrap, group, topic, instance)
        name = f"{client}-{instance}" if instance else client
        self._journal = directory / f"{name}.journal"
        self._errors = directory / f"{name}.log"
        self._settings = directory / f"{name}.properties"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._journal.open("ab") as journal, self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command(),
                stdout=journal,
                stderr=errors,
                start_new_session=True,
                preexec_fn=java.die_with_parent(),
            )

    def _command(self) -> list[str]:
        bootstrap, group, topic, instance = self._arguments
        if self.client not in JAVA:
            plain = [bootstrap, group, topic, *([instance] if instance else [])]
            return [sys.executable, "-m", "tests.guarantees.member", self.client, *plain]
        protocol = JAVA[self.client]
        options = ["--bootstrap-server", bootstrap, "--group-id", group, "--topic", topic, "--verbose"]
        options += ["--group-protocol", protocol]
        if protocol == "CLASSIC":
            self._settings.write_text(f"heartbeat.interval.ms={HEARTBEAT_INTERVAL_MS}\n")
            options += ["--session-timeout", str(session_timeout_ms(instance))]
            options += ["--command-config", str(self._settings)]
        if instance:
            options += ["--group-instance-id", instance]
        return java.command(VERIFIABLE_CONSUMER, options, bundle=kafka_libs.BROKER)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            java.kill_process(self._process)

    def check(self) -> None:
        """Fails the test if the process ended by itself."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self.client} ended:\n{self._errors.read_text()[-3_000:]}"

    def read(self) -> Iterator[tuple[int, int, str]]:
        """Everything that this member and its predecessors were given; a torn last line is no line."""
        for line in self._journal.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                entry = json.loads(line)
                if isinstance(entry, list):
                    yield from ((partition, offset, value) for partition, offset, value in entry)
                elif entry.get("name") == "record_data":
                    yield entry["partition"], entry["offset"], entry["value"]


class GroupWorkload:
    """A group, its members, and a producer that writes to its topic all the time."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._topic = topic
        self.subscription = topic
        self.places = {(topic, number) for number in range(partitions)}
        self._partitions = partitions
        self._directory = directory
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._writing = threading.Event()
        self._writer = threading.Thread(target=self._write, name="writer")
        self.members: list[Member] = []
        self.written = 0

    def __enter__(self) -> Self:
        self._writing.set()
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_writing()
        for member in self.members:
            member.kill()

    def join(self, client: str, instance: str | None = None) -> Member:
        member = Member(client, self._bootstrap, self._group, self.subscription, self._directory, instance)
        member.start()
        self.members.append(member)
        return member

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5})
        while self._writing.is_set():
            producer.produce(self._topic, str(self.written), partition=self.written % self._partitions)
            self.written += 1
            producer.poll(0)
            time.sleep(0.01)
        assert producer.flush(60) == 0

    def stop_writing(self) -> None:
        self._writing.clear()
        self._writer.join()

    # What the coordinator says

    def describe(self) -> ConsumerGroupDescription:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self._admin.describe_consumer_groups([self._group])[self._group].result(60)
            except KafkaException as error:
                # librdkafka tries again only what failed as a whole, not one group of an answer.
                if error.args[0].code() not in NOT_YET:
                    raise
                assert time.monotonic() < deadline, "the coordinator of the group is never loaded"
            time.sleep(0.1)

    def owned(self) -> Owned:
        """Partitions by member id, as the coordinator has them."""
        return {
            member.member_id: {(place.topic, place.partition) for place in member.assignment.topic_partitions}
            for member in self.describe().members
        }

    def committed(self) -> int:
        """The sum of the group's offsets: how many records it has done with."""
        asked = ConsumerGroupTopicPartitions(
            self._group, [TopicPartition(self._topic, number) for number in range(self._partitions)]
        )
        found = self._admin.list_consumer_group_offsets([asked])[self._group].result(60)
        return sum(max(place.offset, 0) for place in found.topic_partitions)

    def settle(self, members: int, what: str, *, unlike: Iterable[str] = ()) -> Owned:
        """Wait until so many members, and others than `unlike`, own all `places` once between them."""
        before = set(unlike)

        def settled(owned: Owned) -> bool:
            shares = list(owned.values())
            return (
                len(shares) == members
                and set(owned) != before
                and all(shares)
                and sum(map(len, shares)) == len(self.places)
                and set().union(*shares) == self.places
            )

        return self.until(self.owned, settled, what)

    def until(self, look: Callable[[], Owned], good: Callable[[Owned], bool], what: str) -> Owned:
        deadline = time.monotonic() + DEADLINE_S
        while not good(seen := look()):
            assert time.monotonic() < deadline, f"not within {DEADLINE_S:.0f} s: {what}; {seen}"
            for member in self.members:
                member.check()
            time.sleep(0.1)
        return seen

    def finish(self) -> None:
        """Stop writing; wait until the group has committed the end of every partition."""
        self.stop_writing()
        deadline = time.monotonic() + DEADLINE_S
        while (committed := self.committed()) < self.written:
            assert time.monotonic() < deadline, f"the group stays at {committed} of {self.written}"
            for member in self.members:
                member.check()
            time.sleep(0.1)
        assert committed == self.written
        read = {int(value) for member in self.members for _, _, value in member.read()}
        assert read == set(range(self.written))
