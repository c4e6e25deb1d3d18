"""Exactly once: records that are read, transformed and written in transactions appear once despite failures.

Two processes copy a topic into another, offsets and output in one transaction, while they and the node are
killed, paused and started again at random: once with librdkafka and the classic protocol of groups, once with
Kafka's Java clients and the consumer protocol. Then the output is compared with the input, and the checker of
transactions checks the history. `OTTLA_CHAOS_SECONDS` sets the duration, `OTTLA_CHAOS_SEED` repeats a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.cluster_plan import free_ports
from tests.guarantees.transformer import DOOMED
from tests.support.node_process import NodeProcess
from tests.support.transaction_checker import TransactionOutcome, check
from tests.support.transform_workload import Copying, Worker, read

SECONDS = float(os.environ.get("OTTLA_CHAOS_SECONDS", "10"))
SEED = int(os.environ.get("OTTLA_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SETTLE_S = 150.0
SOURCE, TARGET, PARTITIONS = "source", "target", 3
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 3_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


class Chaos:
    """A node and two workers to which bad things happen, by a seed."""

    def __init__(self, client: str, directory: Path) -> None:
        self._random = random.Random(SEED)
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
        self.node = NodeProcess(directory / "data", *settings, listen=listen)
        self.copying = Copying(listen, SOURCE, TARGET, PARTITIONS)
        self.workers = [Worker(client, f"worker-{number}", self.copying, directory) for number in (1, 2)]
        self.bootstrap = listen
        self.deeds: Counter[str] = Counter()
        self._paused: dict[Worker, float] = {}

    def strike(self) -> None:
        """One bad thing, or none."""
        deed = self._random.choice(
            ["kill worker", "kill worker", "pause worker", "kill node", "stop node", "-"]
        )
        worker = self._random.choice(self.workers)
        self.deeds[deed] += 1
        if deed == "kill worker":
            self._paused.pop(worker, None)
            worker.kill()
            worker.start()
        elif deed == "pause worker" and worker not in self._paused:
            worker.signal(signal.SIGSTOP)
            # Sometimes so long that the group goes on without it.
            self._paused[worker] = time.monotonic() + self._random.choice([0.5, 4.0])
        elif deed == "kill node":
            self.node.kill()
            self.node.start()
        elif deed == "stop node":
            self.node.terminate()
            self.node.start()

    def tend(self) -> None:
        """Wake who was paused long enough, and start who gave up."""
        for worker, until in list(self._paused.items()):
            if time.monotonic() >= until:
                del self._paused[worker]
                worker.signal(signal.SIGCONT)
        for worker in self.workers:
            worker.keep_alive()

    def calm(self) -> None:
        for worker in self._paused:
            worker.signal(signal.SIGCONT)
        self._paused.clear()


@contextlib.contextmanager
def chaos_in(client: str, directory: Path) -> Iterator[Chaos]:
    chaos = Chaos(client, directory)
    with chaos.node:
        try:
            yield chaos
        finally:
            for worker in chaos.workers:
                worker.kill()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 500)
@pytest.mark.parametrize(
    "client", ["librdkafka", pytest.param("java", marks=[pytest.mark.kafka, pytest.mark.exhaustive])]
)
def test_every_input_is_in_the_output_once_whoever_dies(client: str, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    with chaos_in(client, tmp_path) as chaos:
        admin = AdminClient({"bootstrap.servers": chaos.bootstrap})
        for done in admin.create_topics(
            [NewTopic(SOURCE, PARTITIONS, 1), NewTopic(TARGET, PARTITIONS, 1)]
        ).values():
            done.result(60)
        for worker in chaos.workers:
            worker.start()
        producer = Producer(
            {
                "bootstrap.servers": chaos.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
            }
        )
        refused: list[str] = []
        count = 0
        end = time.monotonic() + SECONDS
        next_strike = time.monotonic() + 3.0
        while time.monotonic() < end:
            for _ in range(10):
                producer.produce(
                    SOURCE,
                    str(count),
                    partition=count % PARTITIONS,
                    on_delivery=lambda error, _: refused.append(str(error)) if error else None,
                )
                count += 1
            producer.poll(0)
            time.sleep(0.02)
            chaos.tend()
            if time.monotonic() >= next_strike:
                chaos.strike()
                next_strike = time.monotonic() + 0.8
        chaos.calm()
        assert producer.flush(120) == 0
        assert refused == []

        copied, deadline = 0, time.monotonic() + SETTLE_S
        while (now := len(read(chaos.copying, "read_committed"))) < count:
            if now > copied:  # a busy machine takes its time to catch up
                copied, deadline = now, time.monotonic() + SETTLE_S
            assert time.monotonic() < deadline, (
                f"seed {SEED}: the output is not complete; {chaos.deeds}\n"
                + "\n".join(worker.last_words() for worker in chaos.workers)
                + chaos.node.stderr()[-4_000:]
            )
            chaos.tend()
        for worker in chaos.workers:
            worker.kill()
        committed = read(chaos.copying, "read_committed")
        uncommitted = read(chaos.copying, "read_uncommitted")
        history = [each for worker in chaos.workers for each in worker.transactions()]

    report = f"seed {SEED}, {chaos.deeds}, {count} inputs, {len(history)} transactions"
    print(report)
    outputs = Counter(int(seen.value.split("|")[0]) for seen in committed)
    assert [number for number in range(count) if outputs[number] != 1] == [], report
    assert sum(outputs.values()) == count, report
    assert not [seen for seen in committed if seen.value.endswith(DOOMED)], report
    assert [seen for seen in uncommitted if seen.value.endswith(DOOMED)], report
    assert {seen.value for seen in committed} < {seen.value for seen in uncommitted}
    assert [str(anomaly) for anomaly in check(history, committed, [committed])] == [], report
    assert sum(each.outcome is TransactionOutcome.COMMITTED for each in history) > 5, report
