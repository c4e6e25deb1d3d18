"""Exactly once under faults: a query from topic to topic, whose driver, workers and node are killed.

One kill runs always, a handful with all tests. `make test-faults` runs many more (SPARK_KILLS,
SPARK_KILLS_SEED), also on a standalone cluster, whose executors are killed too.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ottla.client.blocking import Admin, Producer
from tests.support.spark_killing import Kill, Killing, Target, chosen_kills, random_kills
from tests.support.spark_query import QuerySpec
from tests.support.spark_sink_harness import committed_values
from tests.support.spark_sink_stops import StopPoint
from tests.support.spark_standalone import StandaloneCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark]

KILLS = int(os.environ.get("SPARK_KILLS", "0"))
SEED = int(os.environ.get("SPARK_KILLS_SEED", "1"))
PARTITIONS = 3
ROWS_PER_BATCH = 60
FAST = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
ON_A_CLUSTER = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "600m"}


def prepare(bootstrap: str, directory: Path, **more: object) -> QuerySpec:
    with Admin(bootstrap) as admin:
        for name in ("in", "out"):
            admin.topics.create(name, partitions=PARTITIONS)
    return QuerySpec(
        bootstrap,
        "in",
        "out",
        str(directory / "checkpoint"),
        tasks=3,
        rows_per_batch=ROWS_PER_BATCH,
        **more,  # type: ignore[arg-type]
    )


def feed(bootstrap: str, first: int, batches: int) -> int:
    """Write numbers from `first` on, enough for this many batches; returns the next number."""
    end = first + batches * ROWS_PER_BATCH
    with Producer(bootstrap) as producer:
        producer.send_many("in", [str(n).encode() for n in range(first, end)])
    return end


def check(bootstrap: str, rows: int) -> None:
    with Admin(bootstrap) as admin:
        # The driver ends the transactions of killed processes and superseded attempts, without a timeout.
        assert admin.transactions.list(states=["Ongoing"]) == []
    found: Counter[bytes] = committed_values(bootstrap, "out", PARTITIONS)
    missing = [n for n in range(rows) if not found[str(n).encode()]]
    doubled = {value: count for value, count in found.items() if count > 1}
    assert (missing, doubled) == ([], {})
    assert sum(found.values()) == rows


@pytest.mark.timeout(900)
@pytest.mark.skipif(KILLS > 0, reason="SPARK_KILLS asks for the long run")
@pytest.mark.parametrize(
    ("kills", "batches"),
    [
        pytest.param([Kill(Target.DRIVER, StopPoint.BETWEEN_COMMITS)], 3, id="one"),
        pytest.param(chosen_kills(), 12, id="a handful", marks=pytest.mark.exhaustive),
    ],
)
def test_kills_at_chosen_places_lose_and_double_nothing(
    tmp_path: Path, kills: list[Kill], batches: int
) -> None:
    with Killing(tmp_path, FAST) as killing:
        spec = prepare(killing.node.bootstrap, tmp_path)
        rows = feed(killing.node.bootstrap, 0, batches)
        for kill in kills:
            assert killing.kill(kill, spec), f"the query was done before {kill}:\n{killing.output()[-4000:]}"
        killing.run_to_the_end(spec)
        check(killing.node.bootstrap, rows)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.skipif(KILLS > 0, reason="SPARK_KILLS asks for the long run")
def test_a_speculative_attempt_beside_one_that_hangs_loses_and_doubles_nothing(
    tmp_path: Path, standalone: StandaloneCluster
) -> None:
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "200ms",
    }
    with Killing(tmp_path / "life", FAST) as killing:
        conf = {**speculation, **ON_A_CLUSTER}
        spec = prepare(killing.node.bootstrap, tmp_path, conf=conf, master=standalone.url)
        rows = feed(killing.node.bootstrap, 0, 4)
        # A task hangs after its flush: only another attempt of it can finish the batch.
        hanging = killing.hang(StopPoint.TRANSACTION_PREPARED, spec)
        killing.run_to_the_end(spec, attempts=1)
        check(killing.node.bootstrap, rows)
        wait_until(lambda: not psutil.pid_exists(hanging), "the attempt that has lost is still there", 120)


@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.skipif(KILLS == 0, reason="runs by `make test-faults`, or with SPARK_KILLS=60")
@pytest.mark.parametrize("two_phase", [False, True], ids=["ordinary", "two-phase"])
@pytest.mark.parametrize("place", ["local", "cluster"])
def test_many_kills_lose_and_double_nothing(tmp_path: Path, place: str, two_phase: bool) -> None:
    settings = {**FAST, "transaction.two.phase.commit.enable": str(two_phase).lower()}
    every_target = [Target.DRIVER, Target.NODE, Target.WORKER]
    with ExitStack() as stack:
        if place == "local":
            cluster, more = None, {}
            kills = [*chosen_kills(), *random_kills(KILLS, SEED, every_target)][:KILLS]
        else:
            # A master and two workers that outlive the drivers; executors of a dead one end a little later.
            cluster = stack.enter_context(StandaloneCluster(tmp_path))
            more = {"master": cluster.url, "conf": ON_A_CLUSTER}
            kills = list(random_kills(KILLS, SEED, [*every_target, *[Target.EXECUTOR] * 4]))
        killing = stack.enter_context(Killing(tmp_path, settings, seed=SEED, cluster=cluster))
        spec = prepare(killing.node.bootstrap, tmp_path, **more)
        rows = 0
        for kill in kills:
            while not rows or not killing.kill(kill, spec):
                rows = feed(killing.node.bootstrap, rows, 20)
        happened = dict(sorted(killing.done.items()))
        print(
            f"\n{sum(happened.values())} kills, {killing.starts} starts of the query, {rows} rows: {happened}"
        )
        killing.run_to_the_end(spec)
        check(killing.node.bootstrap, rows)
        assert sum(happened.values()) == KILLS
