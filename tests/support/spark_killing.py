"""Kill drivers, executors, workers and nodes under a streaming query, at chosen points and at random.

The query runs in separate processes. A stop point of the sink is armed by a file (see `spark_sink_stops`):
the process that reaches it stops and waits, and then it, or another one, is killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import psutil

from ottla.testing.cluster_plan import free_ports
from tests.support import java
from tests.support.node_process import NodeProcess
from tests.support.spark_query import DONE, QuerySpec
from tests.support.spark_sink_stops import VARIABLE, StopPoint
from tests.support.spark_standalone import StandaloneCluster

POINT_SECONDS = 600
POLL_SECONDS = 0.05


class Target(Enum):
    DRIVER = "driver"
    WORKER = "Python worker"
    EXECUTOR = "executor"
    NODE = "node"


@dataclass(frozen=True)
class Kill:
    """The target, and the stop point of the sink; without a point, after `after_s` seconds of work."""

    target: Target
    point: StopPoint | None = None
    after_s: float = 0.0

    def __str__(self) -> str:
        where = self.point.value if self.point is not None else "at random"
        return f"{self.target.value}, {where}"


def chosen_kills() -> list[Kill]:
    """Kills at the most critical points, each with the target that is worst there."""
    return [
        Kill(Target.WORKER, StopPoint.TRANSACTION_PREPARED),
        Kill(Target.DRIVER, StopPoint.TRANSACTION_PREPARED),
        Kill(Target.NODE, StopPoint.BATCH_DECIDED),
        Kill(Target.DRIVER, StopPoint.BETWEEN_COMMITS),
        Kill(Target.WORKER, StopPoint.ROWS_SENT),
        Kill(Target.DRIVER, StopPoint.BATCH_COMMITTED),
    ]


def random_kills(count: int, seed: int, targets: list[Target]) -> Iterator[Kill]:
    dice = random.Random(seed)
    points = {
        Target.DRIVER: list(StopPoint),
        Target.NODE: list(StopPoint),
        Target.WORKER: [StopPoint.TRANSACTION_OPENED, StopPoint.ROWS_SENT, StopPoint.TRANSACTION_PREPARED],
        Target.EXECUTOR: [StopPoint.TRANSACTION_OPENED, StopPoint.ROWS_SENT, StopPoint.TRANSACTION_PREPARED],
    }
    for _ in range(count):
        target = dice.choice(targets)
        if dice.random() < 0.35:
            yield Kill(target, after_s=dice.uniform(0.1, 6.0))
        else:
            yield Kill(target, dice.choice(points[target]))


@dataclass
class Killing:
    """A query and its node. `with` starts the node; the query is started as needed."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    cluster: StandaloneCluster | None = None
    """The cluster with the query's executors, if they are not its own children."""
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.stops = self.directory / "stops"
        self.stops.mkdir(parents=True)
        # A port that is not reused while the node is dead.
        self.node = self._new_node(f"127.0.0.1:{free_ports(1)[0]}")
        self._query: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._dice = random.Random(self.seed)
        self.starts = 0

    def _new_node(self, listen: str) -> NodeProcess:
        options = [text for name, value in self.settings.items() for text in ("--set", f"{name}={value}")]
        return NodeProcess(self.directory / "data", *options, listen=listen)

    def __enter__(self) -> Killing:
        self.node.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_query()
        self.node.__exit__(None, None, None)
        self._output.close()

    # The query.

    def start(self, spec: QuerySpec) -> None:
        assert self._query is None
        self.starts += 1
        tasks = self._dice.randint(2, 5)
        environment = {**os.environ, VARIABLE: str(self.stops), "SPARK_LOCAL_IP": "127.0.0.1"}
        conf = {**spec.conf, f"spark.executorEnv.{VARIABLE}": str(self.stops)}
        self._query = subprocess.Popen(
            replace(spec, tasks=tasks, conf=conf).arguments(),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=java.die_with_parent(),
        )

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._query is not None and self._query.poll() is None

    def kill_query(self) -> None:
        """Kill the driver and all its children with SIGKILL."""
        if self._query is None:
            return
        family = _family(self._query.pid)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._query.wait()
        psutil.wait_procs(family, timeout=30)
        self._query = None

    def run_to_the_end(self, spec: QuerySpec, *, attempts: int = 3) -> None:
        """Run the query to its end; start it again if it failed, as an operator would."""
        for _ in range(attempts):
            if self._query is None:
                self.start(spec)
            assert self._query is not None
            status = self._query.wait(POINT_SECONDS)
            self.kill_query()
            if status == 0 and DONE in self.output():
                return
        raise AssertionError(f"the query does not come to its end:\n{self.output()[-6000:]}")

    # Kills.

    def kill(self, kill: Kill, spec: QuerySpec) -> bool:
        """Kill the target; whether that happened: a query may be done before it reaches the point."""
        if kill.point is None:
            self._ensure_running(spec)
            self._await_work(kill.after_s)
            pid = None
        else:
            (self.stops / kill.point.value).touch()
            pid = self._await_stop(kill.point, spec)
            if pid is None:
                (self.stops / kill.point.value).unlink(missing_ok=True)
                self.kill_query()
                return False
        happened = self._strike(kill.target, pid)
        for left in self.stops.iterdir():
            left.unlink(missing_ok=True)
        self.done[str(kill)] += happened
        if happened:
            print(f"{sum(self.done.values())}. {kill}", flush=True)
        return happened

    def hang(self, point: StopPoint, spec: QuerySpec) -> int:
        """Make the next process that reaches the point hang there; its process id."""
        (self.stops / point.value).touch()
        pid = self._await_stop(point, spec)
        assert pid is not None, f"the query was done before {point.value}"
        return pid

    def _strike(self, target: Target, pid: int | None) -> bool:
        match target:
            case Target.DRIVER:
                self.kill_query()
                return True
            case Target.NODE:
                self.node.kill()
                port = self.node.port
                self.node.__exit__(None, None, None)
                self.node = self._new_node(f"127.0.0.1:{port}")
                self.node.__enter__()
                return True
            case Target.WORKER:
                victims = (
                    [pid] if pid is not None else self._processes(r"pyspark\.(daemon|worker)|fork_server")
                )
            case Target.EXECUTOR:
                victims = self._processes("CoarseGrainedExecutorBackend")
        if victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(self._dice.choice(victims)).kill()
        return bool(victims)

    def _processes(self, pattern: str) -> list[int]:
        if self._query is None:
            return []
        heads = [self._query.pid, *(self.cluster.pids if self.cluster is not None else ())]
        found = []
        for process in (process for head in heads for process in _family(head)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if re.search(pattern, " ".join(process.cmdline())):
                    found.append(process.pid)
        return found

    def _ensure_running(self, spec: QuerySpec) -> None:
        if self._query is not None and not self.is_running:
            self.kill_query()
        if self._query is None:
            self.start(spec)

    def _await_stop(self, point: StopPoint, spec: QuerySpec) -> int | None:
        """The process that waits at the point, None if the query is done. A failed query is started again."""
        deadline = time.monotonic() + POINT_SECONDS
        while time.monotonic() < deadline:
            for stopped in self.stops.glob(f"{point.value}.*"):
                return int(stopped.suffix[1:])
            if self._query is not None and not self.is_running and self.output().rstrip().endswith(DONE):
                return None
            self._ensure_running(spec)
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"no process reached {point.value}:\n{self.output()[-6000:]}")

    def _await_work(self, seconds: float) -> None:
        """Wait for this long after the query's Python workers have started."""
        deadline = time.monotonic() + POINT_SECONDS
        while time.monotonic() < deadline and self.is_running and not self._processes(r"pyspark\.daemon"):
            time.sleep(POLL_SECONDS)
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.is_running:
            time.sleep(POLL_SECONDS)


def _family(pid: int) -> list[psutil.Process]:
    try:
        head = psutil.Process(pid)
        return [*head.children(recursive=True), head]
    except psutil.NoSuchProcess:
        return []
