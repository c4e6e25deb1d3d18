"""Three nodes under load, churn and slow readers for a while: `make soak`, or
`python -m bench.cluster_soak --minutes 24`.

All at once: an idempotent librdkafka producer with acks=all, whose every acknowledged record is compared at
the end; two processes that copy its topic in transactions, as a group; producers and members of a group that
come and go, with Ottla's clients; topics that are created and deleted; readers that fetch much and read few
bytes of it; clients that disconnect in the middle of a request; and some thousand partitions that no client
uses.

Each node reports its memory, files, tasks and the turns of its event loop (SIGUSR1). The soak fails if the
memory of a node grows after the warm-up, a turn takes too much CPU time or waits too long for the disk, a
background task failed, an error was logged, or an acknowledged record is missing.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.guarantees.transformer import DOOMED
from tests.support.acknowledged_workload import Load, read_all
from tests.support.process_status import process_status, waits_for_syncs
from tests.support.transform_workload import Copying, Worker, read

from bench import soak
from ottla import blocking
from ottla.protocol.errors import KafkaError
from ottla.testing.local_cluster import LocalCluster

SOURCE, TARGET, OURS, BIG, IDLE = "source", "target", "ours", "big", "idle"
PARTITIONS = 3
BIG_PARTITIONS = 60
PER_SECOND = 300
# The processes that copy have short sessions, as they are made to be killed.
SETTINGS = {"group.min.session.timeout.ms": 1_000}
# Of each node.
SLOW_READERS, VANISHING, CHATTING = 15, 4, 30
WARM_UP = 0.25
SAMPLE_S = 10.0
SETTLE_S = 120.0
# A wait for the loop covers the rest of one turn and may cover the next: twice the bound of the watchdog.
MAX_TURN_MS = 20.0
# A write or an `open` that meets a busy journal may take so long.
MAX_BLOCKED_MS = 50.0
# All waits of a loop for fsyncs, of 24 minutes: the few that docs/performance.md names wait there.
MAX_SYNCS_MS = 20.0
MAX_GROWTH = 0.15
MAX_GROWTH_MB = 25.0
ERRORS = ("level=error", "level=critical", "Traceback", "was never retrieved")


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    status: dict[str, Any]

    @property
    def memory_mb(self) -> float:
        return float(self.status["resident_bytes"]) / 1e6

    @property
    def turn_ms(self) -> float:
        return float(self.status["loop"]["recent_cpu_ms"])

    @property
    def blocked_ms(self) -> float:
        return float(self.status["loop"]["recent_blocked_ms"])


@dataclass
class Ours:
    """What Ottla's own clients did, and what they had acknowledged."""

    bootstrap: str
    over: threading.Event = field(default_factory=threading.Event)
    acknowledged: list[tuple[int, int, bytes]] = field(default_factory=list)
    consumed: int = 0
    topics: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def again_and_again(self, work: Callable[[], None]) -> None:
        while not self.over.is_set():
            try:
                work()
            except (KafkaError, OSError) as error:
                self.errors[f"{work.__name__}: {error!r}"[:200]] += 1
                self.over.wait(0.5)

    def produce(self) -> None:
        """The short life of a producer."""
        with blocking.Producer(self.bootstrap, acks="all") as producer:
            for number in range(50):
                if self.over.is_set():
                    return
                value = uuid4().hex.encode()
                done = producer.send(OURS, value, partition=number % PARTITIONS)
                self.acknowledged.append((done.partition, done.offset, value))
                self.over.wait(0.02)

    def consume(self) -> None:
        """The short life of a member of a group."""
        with blocking.Consumer(self.bootstrap, group_id="churn", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(OURS)
            end = time.monotonic() + 5
            while time.monotonic() < end and not self.over.is_set():
                self.consumed += len(consumer.poll(timeout_ms=500))

    def change_topics(self) -> None:
        """The short life of a topic."""
        with blocking.Admin(self.bootstrap) as admin:
            name = f"churn-{uuid4().hex[:8]}"
            admin.topics.create(name, partitions=20, replication_factor=3)
            with blocking.Producer(self.bootstrap, acks="all") as producer:
                producer.send(name, b"x")
            admin.topics.delete(name)
            self.topics += 1
        self.over.wait(1)


class Readers(soak.Soak):
    """Clients of one node, on partitions that it leads."""

    led: list[int]

    def somewhere(self) -> tuple[str, int]:
        return BIG, self.led[int.from_bytes(os.urandom(4), "big") % len(self.led)]


async def disturb(crowds: list[Readers], over: threading.Event) -> None:
    """Slow readers, clients that vanish, and clients that say little, until it is over."""
    lives = [*[soak.slow] * SLOW_READERS, *[soak.vanish] * VANISHING, *[soak.idle] * CHATTING]
    tasks = [asyncio.create_task(soak.again_and_again(life, crowd)) for crowd in crowds for life in lives]
    while not over.is_set():  # noqa: ASYNC110 - of another thread
        await asyncio.sleep(0.2)
    for crowd in crowds:
        crowd.over = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for crowd in crowds:
        for client in crowd.open:
            client.writer.transport.abort()


def prepare(cluster: LocalCluster, idle_partitions: int) -> list[Readers]:
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        for topic in (SOURCE, TARGET, OURS):
            admin.topics.create(topic, partitions=PARTITIONS, replication_factor=3)
        # Written to by readers that want something to read, so it must not grow without end.
        small = {"retention.bytes": "2000000", "segment.bytes": "1048576"}
        admin.topics.create(BIG, partitions=BIG_PARTITIONS, replication_factor=3, configs=small)
        for number in range(0, idle_partitions, 500):
            admin.topics.create(
                f"{IDLE}-{number}", partitions=min(500, idle_partitions - number), replication_factor=3
            )
    cluster.wait_in_sync()
    crowds = []
    for node in cluster.nodes:
        crowd = Readers(node.port, [BIG])
        crowd.led = [
            number for number in range(BIG_PARTITIONS) if cluster.partition(BIG, number).leader_id == node.id
        ]
        crowds.append(crowd)
    return crowds


def sample(cluster: LocalCluster, samples: dict[int, list[Sample]], began: float, words: str) -> None:
    texts = []
    for node in cluster.nodes:
        taken = Sample(time.monotonic() - began, process_status(node))
        samples[node.id].append(taken)
        texts.append(
            f"{taken.memory_mb:.0f} MB {taken.status['open_files']} files "
            f"{sum(taken.status['tasks'].values())} tasks {taken.turn_ms:.0f} ms "
            f"{taken.blocked_ms:.0f} ms"
        )
    print(f"{time.monotonic() - began:5.0f} s: {' | '.join(texts)}; {words}", flush=True)


def growth_mb(samples: list[Sample]) -> float:
    """By how much memory grew over the samples, by the line that fits them best."""
    mean_at = sum(each.at_s for each in samples) / len(samples)
    mean_mb = sum(each.memory_mb for each in samples) / len(samples)
    spread = sum((each.at_s - mean_at) ** 2 for each in samples)
    slope = sum((each.at_s - mean_at) * (each.memory_mb - mean_mb) for each in samples) / (spread or 1)
    return slope * (samples[-1].at_s - samples[0].at_s)


def problems_of(
    cluster: LocalCluster, samples: dict[int, list[Sample]], max_turn_ms: float, max_blocked_ms: float
) -> list[str]:
    found = []
    for node in cluster.nodes:
        warm = samples[node.id][int(len(samples[node.id]) * WARM_UP) :]
        grown, mean = growth_mb(warm), sum(each.memory_mb for each in warm) / len(warm)
        print(
            f"node {node.id}: memory {warm[0].memory_mb:.0f} to {warm[-1].memory_mb:.0f} MB, trend "
            f"{grown:+.0f} MB; longest turn {max(each.turn_ms for each in warm):.0f} ms of CPU, "
            f"{warm[-1].status['loop']['above_bound_cpu'] - warm[0].status['loop']['above_bound_cpu']} above "
            f"{warm[-1].status['loop']['bound_ms']:g} ms; longest wait for the disk "
            f"{max(each.blocked_ms for each in warm):.0f} ms, all {warm[-1].status['loop']['blocked_ms']}; "
            f"{warm[-1].status['loop']['histogram']}; "
            f"longest garbage collection {warm[-1].status['longest_collection_ms']:.0f} ms",
            flush=True,
        )
        if grown > max(MAX_GROWTH_MB, MAX_GROWTH * mean):
            found.append(f"node {node.id}: memory grew by {grown:.0f} MB of {mean:.0f}")
        worst = max(warm, key=lambda each: each.turn_ms)
        if worst.turn_ms > max_turn_ms:
            culprit = worst.status["loop"]["recent_cpu_culprit"]
            found.append(f"node {node.id}: a turn of {worst.turn_ms:.0f} ms of CPU: {culprit}")
        slowest = max(warm, key=lambda each: each.blocked_ms)
        if slowest.blocked_ms > max_blocked_ms:
            culprit = slowest.status["loop"]["recent_blocked_culprit"]
            found.append(f"node {node.id}: {slowest.blocked_ms:.0f} ms of waiting for the disk: {culprit}")
        syncs = waits_for_syncs(warm[-1].status)
        if sum(syncs.values()) > MAX_SYNCS_MS:
            found.append(f"node {node.id}: the event loop waited for a sync: {syncs}")
        found += [
            f"node {node.id}: {name}: {text}" for name, text in warm[-1].status["failing_tasks"].items()
        ]
        gone = warm[0].status["background_tasks"].keys() - warm[-1].status["background_tasks"].keys()
        found += [f"node {node.id}: the task {name!r} is gone" for name in sorted(gone)]
        lines = node.plan.log_file.read_text(errors="replace").splitlines()
        bad = [line for line in lines if any(mark in line for mark in ERRORS)]
        if bad:
            found.append(f"node {node.id}: {len(bad)} errors in its log, the first: {bad[0][:500]}")
    return found


def check_copies(copying: Copying, load: Load, workers: list[Worker]) -> None:
    """Every number is in the output of the transactions, once."""
    deadline = time.monotonic() + SETTLE_S
    committed = read(copying, "read_committed")
    while len(committed) < load.count and time.monotonic() < deadline:
        for worker in workers:
            worker.keep_alive()
        committed = read(copying, "read_committed")
    numbers = Counter(int(seen.value.split("|")[0]) for seen in committed)
    twice = [number for number, times in numbers.items() if times != 1]
    assert not twice, f"{len(twice)} numbers were copied twice, as {twice[:5]}"
    said = "\n".join(worker.last_words() for worker in workers)
    assert len(numbers) == load.count, f"{len(numbers)} of {load.count} numbers were copied\n{said}"
    assert not [seen for seen in committed if seen.value.endswith(DOOMED)], "an aborted record was read"


def check_ours(ours: Ours) -> None:
    found = {partition: read_all(ours.bootstrap, OURS, partition) for partition in range(PARTITIONS)}
    missing = [each for each in ours.acknowledged if found[each[0]].get(each[1]) != each[2]]
    assert not missing, f"{len(missing)} acknowledged records are missing, as {missing[0]}"


def run(
    minutes: float, idle_partitions: int, max_turn_ms: float, max_blocked_ms: float, directory: Path
) -> list[str]:
    samples: dict[int, list[Sample]] = {node: [] for node in (1, 2, 3)}
    with LocalCluster(nodes=3, settings=SETTINGS, data_dir=str(directory / "cluster")) as cluster:
        crowds = prepare(cluster, idle_partitions)
        bootstrap = cluster.bootstrap_servers
        ours = Ours(bootstrap)
        copying = Copying(bootstrap, SOURCE, TARGET, PARTITIONS)
        workers = [
            Worker("librdkafka", f"worker-{n}", copying, directory, protocol="classic") for n in (1, 2)
        ]
        lives = [ours.produce, ours.consume, ours.consume, ours.change_topics]
        threads = [threading.Thread(target=ours.again_and_again, args=(life,)) for life in lives]
        threads.append(threading.Thread(target=lambda: asyncio.run(disturb(crowds, ours.over))))
        load = Load(bootstrap, SOURCE, PARTITIONS, per_second=PER_SECOND, bare=True)
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            for worker in workers:
                worker.start()
                stack.callback(worker.kill)
            stack.callback(ours.over.set)
            for thread in threads:
                thread.start()
            with load:
                while time.monotonic() - began < minutes * 60:
                    time.sleep(min(SAMPLE_S, minutes * 6))
                    for worker in workers:
                        worker.keep_alive()
                    words = (
                        f"{load.count:,} acknowledged, {len(ours.acknowledged):,} ours, "
                        f"{ours.consumed:,} consumed, {ours.topics} topics made, "
                        f"{sum(crowd.vanished for crowd in crowds):,} clients vanished, "
                        f"{sum(crowd.cut_off for crowd in crowds):,} cut off"
                    )
                    sample(cluster, samples, began, words)
                load.finish()
            ours.over.set()
            for thread in threads:
                thread.join()
            for text, times in ours.errors.most_common(5):
                print(f"{times} times {text}", flush=True)
            problems = problems_of(cluster, samples, max_turn_ms, max_blocked_ms)
            for check in (
                lambda: load.check(bootstrap),
                lambda: check_ours(ours),
                lambda: check_copies(copying, load, workers),
            ):
                try:
                    check()
                except AssertionError as error:
                    problems.append(f"records: {str(error)[:5000]}")
        print(f"{load.count:,} and {len(ours.acknowledged):,} acknowledged records are compared", flush=True)
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster_soak", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=24)
    parser.add_argument("--idle-partitions", type=int, default=3_000)
    parser.add_argument(
        "--max-turn-ms", type=float, default=MAX_TURN_MS, help="CPU time (default: %(default)s)"
    )
    parser.add_argument(
        "--max-blocked-ms", type=float, default=MAX_BLOCKED_MS, help="waiting for the disk (%(default)s)"
    )
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="ottla-soak-") as name:
        problems = run(
            given.minutes, given.idle_partitions, given.max_turn_ms, given.max_blocked_ms, Path(name)
        )
    for problem in problems:
        print(f"FAILED: {problem}")
    print(f"the soak found {len(problems)} problems" if problems else "the soak found nothing")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
