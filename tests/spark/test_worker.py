"""The Python processes of Spark: what a worker freezes, and those that are forks of a server."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from ottla.spark.session import prepare_environment, use_fork_server
from ottla.spark.worker.launch import ADDRESS
from tests.support.waiting import wait_until

PROGRAM = """
import gc, weakref
from ottla.spark.worker.garbage_collection import begin_task

class Node: pass

def cycle():
    a, b = Node(), Node()
    a.other, b.other = b, a
    return weakref.ref(a)

for task in range(4):
    begin_task()
    print(gc.get_freeze_count() > 0, end=" ")
    of_task = cycle()
    gc.collect()
    print(of_task() is None)
"""


@pytest.mark.slow
def test_what_the_first_task_leaves_is_frozen_and_garbage_of_all_tasks_is_collected() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["False True", "True True", "True True", "True True"]


OF_TASKS = ("-m", "pyspark.daemon", "pyspark.worker")


@pytest.fixture(scope="module")
def forking() -> dict[str, str]:
    """The environment of a Spark whose Python processes are forks of a server that this process has."""
    if sys.platform != "linux":
        pytest.skip("processes are forked so on Linux only")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment.pop("SPARK_HOME", None)
    prepare_environment(environment)
    assert environment["PYSPARK_PYTHON"] == sys.executable
    use_fork_server("spark://elsewhere:7077", environment)
    assert environment["PYSPARK_PYTHON"] == sys.executable
    use_fork_server("local[2]", environment)
    assert environment["PYSPARK_PYTHON"] != sys.executable
    back = dict(environment)
    use_fork_server("spark://elsewhere:7077", back)
    assert back["PYSPARK_PYTHON"] == sys.executable
    return environment


@dataclass(frozen=True)
class Daemon:
    """A process that Spark has started for its tasks, and one of its workers."""

    process: subprocess.Popen[bytes]
    worker: psutil.Process

    @property
    def is_fork(self) -> bool:
        return any("fork_server" in part for part in self.worker.cmdline())

    def gone(self) -> bool:
        return not self.worker.is_running() or self.worker.status() == psutil.STATUS_ZOMBIE


@contextmanager
def daemon(environment: dict[str, str], **more: str) -> Iterator[Daemon]:
    """Start it as Spark does, and talk to it as Spark does."""
    with TemporaryDirectory() as directory:  # a short path, as those of sockets have to be
        yield from _daemon(environment, directory, more)


def _daemon(environment: dict[str, str], directory: str, more: dict[str, str]) -> Iterator[Daemon]:
    given = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": directory}
    given |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "YES", **more}
    process = subprocess.Popen(
        [environment["PYSPARK_PYTHON"], *OF_TASKS],
        env={**environment, **given},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        assert process.stdout is not None
        assert process.stdin is not None
        size = struct.unpack(">i", process.stdout.read(4))[0]
        connection.connect(process.stdout.read(size))
        worker = psutil.Process(struct.unpack(">i", connection.recv(4))[0])
        yield Daemon(process, worker)
        connection.close()
        with suppress(BrokenPipeError):
            process.stdin.close()


@pytest.mark.slow
def test_processes_of_spark_are_forks_and_end_as_others_do(forking: dict[str, str]) -> None:
    with daemon(forking) as forked:
        assert forked.is_fork
        assert forked.process.poll() is None
    with daemon({**forking, "PYSPARK_PYTHON": sys.executable}) as started:
        assert not started.is_fork
    assert forked.process.returncode == started.process.returncode
    wait_until(lambda: forked.gone() and started.gone())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_ends_the_launcher_ends_the_fork(forking: dict[str, str], number: signal.Signals) -> None:
    with daemon(forking) as forked:
        manager = forked.worker.parent()
        assert manager is not None
        forked.process.send_signal(number)
        wait_until(lambda: not manager.is_running() or manager.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow
def test_what_a_fork_cannot_be_is_started_as_before(forking: dict[str, str], tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    with daemon(forking) as own:
        server = own.worker.parents()[1]
    assert any("fork_server" in part for part in server.cmdline())
    files = server.num_fds()
    path = os.environ.get("PYTHONPATH", "")
    for differs in (
        {"PYTHONHASHSEED": "7"},
        {"OMP_NUM_THREADS": "2"},
        {"PYTHONPATH": f"{other}{os.pathsep}{path}"},
        {ADDRESS: str(tmp_path / "nowhere")},
    ):
        with daemon(forking, **differs) as own:
            assert not own.is_fork, differs
    wait_until(lambda: server.num_fds() <= files)  # the server keeps nothing of what it has refused
    archives = f"{tmp_path / 'pyspark.zip'}{os.pathsep}{path}"
    with daemon(forking, PYTHONPATH=archives) as own:
        assert own.is_fork
    said = subprocess.run(
        [forking["PYSPARK_PYTHON"], "-c", "import sys; print(sys.argv[1:]); sys.exit(3)", "a b", "c"],
        env=forking,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.stdout, said.returncode) == ("['a b', 'c']\n", 3)


@pytest.mark.slow
def test_the_server_ends_with_the_process_that_has_started_it() -> None:
    with (
        TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        listener.bind(str(Path(directory) / "forks"))
        command = [sys.executable, "-m", "ottla.spark.worker.fork_server", str(listener.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    with process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.spark
@pytest.mark.exhaustive
def test_tasks_run_in_forks_with_random_numbers_of_their_own() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", TASKS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({pid for pid, _, _ in found}) > 1
    assert all(is_fork for _, _, is_fork in found)
    assert len({number for _, number, _ in found}) == len(found)


TASKS = """
import json
from ottla.spark.session import session

def of_task(_):
    import os, time
    import numpy.random
    with open("/proc/self/cmdline") as file:
        is_fork = "fork_server" in file.read()
    number = numpy.random.random()
    time.sleep(1)  # so that both tasks have a worker
    yield os.getpid(), number, is_fork

spark = session("local[2]", conf={"spark.driver.memory": "512m", "spark.log.level": "ERROR"})
for row in spark.sparkContext.parallelize(range(2), 2).mapPartitions(of_task).collect():
    print(json.dumps(row))
spark.stop()
"""
