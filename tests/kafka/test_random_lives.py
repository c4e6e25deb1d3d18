"""Random lives of partitions under our log layer, judged by Apache Kafka.

Each life appends with every kind of producer, rolls, flushes, truncates, deletes, compacts, and is closed and
opened again or crashes now and then, all from a seed. In the end Kafka's tool must find the files sound, and
Kafka's broker must serve from them exactly what our own log read.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from ottla.log.cleaner.cleaner import LogCleaner
from ottla.log.log_manager import LogManager
from ottla.log.unified_log import UnifiedLog
from ottla.records.batch import Codec
from ottla.runtime.clock import SystemClock
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from tests.support import kafka_corpus, our_logs
from tests.support.apache_kafka import ApacheKafka
from tests.support.dump_log import check_directory
from tests.support.effort import THOROUGH
from tests.support.java_driver import ConsumedRecord, JavaDriver, Message
from tests.support.our_logs import OurProducer, log_manager, log_of, visible_records

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SEEDS = tuple(range(16 if THOROUGH else 8))
ROUNDS = 4
STEPS = 25
NAMES = tuple(f"life-{seed}" for seed in SEEDS)


def _settings(seed: int, dirty_ratio: str) -> dict[str, str]:
    chance = random.Random(seed)
    settings = {
        "internal.segment.bytes": str(chance.choice((700, 1500, 4000))),
        "index.interval.bytes": str(chance.choice((1, 100, 500))),
        "retention.ms": "-1",
    }
    if seed % 2:
        settings |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": dirty_ratio}
        settings["delete.retention.ms"] = str(chance.choice((0, 86_400_000)))
    return settings


@dataclass(slots=True)
class Life:
    log: UnifiedLog
    chance: random.Random
    cleaner: LogCleaner
    now_ms: int

    async def step(self, manager: LogManager) -> None:
        weights = {
            self.append: 60,
            self.end_transaction: 12,
            self.roll: 3,
            self.truncate: 3,
            self.delete_front: 3,
            self.remove_segments: 2,
        }
        self.now_ms += self.chance.randrange(50)
        if self.chance.randrange(12) == 0:
            await manager.flush(self.log)
            if self.chance.randrange(2):
                await self.cleaner.clean_filthiest_log()
                assert self.cleaner.uncleanable == {}
        self.chance.choices(list(weights), list(weights.values()))[0]()

    def _producer(self, producer_id: int) -> OurProducer:
        entry = self.log.producer_state_manager.last_entry(producer_id)
        return OurProducer(
            self.log,
            producer_id,
            codec=self.chance.choice(list(Codec)),
            transactional=producer_id >= 200,
            transaction_version=1 + producer_id % 2,
            epoch=0 if entry is None else entry.producer_epoch,
            sequence=0 if entry is None else entry.last_sequence + 1,
        )

    def append(self) -> None:
        producer = self._producer(self.chance.choice((-1, 100, 101, 200, 201, 202)))
        messages = [
            Message(
                "",
                None if self.chance.randrange(6) == 0 else f"v{self.chance.randrange(10**6)}".encode() * 3,
                key=f"k{self.chance.randrange(8)}".encode(),
                timestamp=self.now_ms - self.chance.randrange(1000),
                headers=(("h", b"x"),) if self.chance.randrange(3) == 0 else (),
            )
            for _ in range(self.chance.randrange(1, 6))
        ]
        producer.send(messages, self.now_ms)
        self._replicated()

    def end_transaction(self) -> None:
        for producer_id in (200, 201, 202):
            entry = self.log.producer_state_manager.last_entry(producer_id)
            if entry is not None and entry.current_txn_first_offset is not None:
                self._producer(producer_id).end(commit=self.chance.randrange(2) == 0, now_ms=self.now_ms)
                self._replicated()
                return

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def truncate(self) -> None:
        span = self.log.log_end_offset - self.log.log_start_offset
        self.log.truncate_to(self.log.log_end_offset - self.chance.randrange(min(span, 10) + 1))

    def delete_front(self) -> None:
        span = self.log.high_watermark - self.log.log_start_offset
        self.log.maybe_increment_log_start_offset(
            self.log.log_start_offset + self.chance.randrange(min(span, 10) + 1), "a random life"
        )

    def remove_segments(self) -> None:
        self.log.delete_old_segments(self.now_ms)

    def _replicated(self) -> None:
        self.log.update_high_watermark(self.log.log_end_offset)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What our log says of a partition in the end."""

    uncommitted: tuple[ConsumedRecord, ...]
    committed: tuple[ConsumedRecord, ...]
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Lives:
    """The directory as it was shut down, as it was in the middle of everything, and what must be in both."""

    clean: Path
    crashed: Path
    cluster_id: str
    outcomes: dict[str, Outcome]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory, java_driver: JavaDriver) -> Iterator[Lives]:
    home = tmp_path_factory.mktemp("lives")
    with pytest.MonkeyPatch.context() as patched:
        # We compact whenever we can, and Kafka never, so that it serves what we left.
        for module, dirty_ratio in ((our_logs, "0.0"), (kafka_corpus, "1.0")):
            topics = {name: _settings(seed, dirty_ratio) for seed, name in zip(SEEDS, NAMES)}
            patched.setattr(module, "TOPICS", topics)
        with ApacheKafka(home / "node", properties=kafka_corpus.NODE_PROPERTIES) as kafka:
            kafka_corpus.create_topics(kafka)
        clean, crashed, outcomes = asyncio.run(_live(kafka.data_dir, home))
        yield Lives(clean, crashed, kafka.cluster_id, outcomes)


async def _live(directory: Path, home: Path) -> tuple[Path, Path, dict[str, Outcome]]:
    """All lives side by side, as they share a directory and its fate."""
    chance = {name: random.Random(1000 + seed) for seed, name in zip(SEEDS, NAMES)}
    now_ms = int(time.time() * 1000)
    outcomes: dict[str, Outcome] = {}
    for round_number in range(ROUNDS):
        image = home / f"crash-{round_number}"
        async with log_manager(directory) as manager:
            assert manager.failed == {}
            for name in NAMES:
                log = log_of(manager, name)
                cleaner = LogCleaner(SystemClock(), SeededRandom(1), InlinePool(), partial(list, (log,)))
                life = Life(log, chance[name], cleaner, now_ms + 10_000 * round_number)
                for _ in range(STEPS):
                    await life.step(manager)
            outcomes = {name: _outcome(log_of(manager, name)) for name in NAMES}
            # A log start that is in no checkpoint is lost in a crash, as it is with Kafka.
            await manager.checkpoint_log_start_offsets()
            shutil.copytree(directory, image)
        if round_number % 2 == 1 and round_number < ROUNDS - 1:
            directory = image
    return directory, image, outcomes


def _outcome(log: UnifiedLog) -> Outcome:
    return Outcome(
        visible_records(log, committed=False),
        visible_records(log, committed=True),
        log.log_start_offset,
        log.last_stable_offset,
        log.log_end_offset,
    )


@pytest.mark.parametrize("name", NAMES)
def test_kafkas_tool_finds_the_files_sound(name: str, lives: Lives, java_driver: JavaDriver) -> None:
    # Offsets have gaps where a log was compacted, and before a log start that has moved past its segments.
    check_directory(java_driver, lives.clean / f"{name}-0", compacted=True)


@pytest.fixture(scope="module", params=[pytest.param("clean", marks=pytest.mark.exhaustive), "crashed"])
def served(
    request: pytest.FixtureRequest,
    lives: Lives,
    java_driver: JavaDriver,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, kafka_corpus.Truth]:
    """What Kafka's broker serves from the files, after it took them over or recovered them."""
    kafka = ApacheKafka(
        tmp_path_factory.mktemp("served"),
        properties=kafka_corpus.NODE_PROPERTIES,
        cluster_id=lives.cluster_id,
    )
    shutil.copytree(getattr(lives, request.param), kafka.data_dir)
    with kafka:
        return kafka_corpus.read_truth(kafka, java_driver)


@pytest.mark.parametrize("name", NAMES)
def test_kafka_serves_what_we_read(name: str, lives: Lives, served: dict[str, kafka_corpus.Truth]) -> None:
    outcome, truth = lives.outcomes[name], served[name]
    assert truth.uncommitted.beginning_offset == outcome.log_start_offset
    assert truth.uncommitted.end_offset == outcome.log_end_offset
    # A transaction may begin before the log start, which Kafka forgets to mind when it loads a log.
    assert max(truth.committed.end_offset, outcome.log_start_offset) == outcome.last_stable_offset
    assert truth.uncommitted.records == outcome.uncommitted
    assert truth.committed.records == outcome.committed
    assert len(outcome.uncommitted) > 3, "a life with next to nothing in it shows nothing"
