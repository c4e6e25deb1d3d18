"""The brokers that are measured: processes on loopback, and their cost as the system reports it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil
from tests.support.apache_kafka import SERVER_JVM, ApacheKafka

# One node, so one replica; otherwise the defaults of each broker.
SINGLE_NODE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
DEFAULTS = {
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "share.coordinator.state.topic.num.partitions": "50",
    "group.consumer.heartbeat.interval.ms": "5000",
    "group.consumer.min.heartbeat.interval.ms": "5000",
    "group.share.heartbeat.interval.ms": "5000",
    "group.share.min.heartbeat.interval.ms": "5000",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "log.initial.task.delay.ms": "30000",
}
READY_S = 300.0
STATUS = "ottla status: "
# With `--against`, the peer is not Apache Kafka but the Ottla of another checkout, this directory.
AGAINST = os.environ.get("BENCH_AGAINST")
PEER = "Apache Kafka 4.3.1" if AGAINST is None else f"Ottla of {Path(AGAINST).name}"


@contextlib.contextmanager
def other_checkout() -> Iterator[None]:
    """Let processes that are started inside import Ottla from the checkout of `--against`."""
    assert AGAINST is not None
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(AGAINST).resolve() / "src")
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


class Broker(ABC):
    """A broker with its own files, which can be restarted on them."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.ready_s = 0.0
        """Seconds from the last start of the process until it was ready."""

    @property
    @abstractmethod
    def bootstrap(self) -> str: ...

    @property
    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def resident_megabytes(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / 1e6


class Ottla(Broker):
    name = "Ottla"

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        super().__init__()
        self._command = [sys.executable, "-m", "ottla", "start", "--data-dir", str(directory)]
        self._command += ["--listen", "127.0.0.1:0"]
        for name, value in {**SINGLE_NODE, **settings}.items():
            self._command += ["--set", f"{name}={value}"]
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    @property
    def bootstrap(self) -> str:
        return self._address

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        begin = time.perf_counter()
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.ready_s = time.perf_counter() - begin
        self._address = next(word.strip(",") for word in line.split() if word.startswith("127.0.0.1:"))

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def longest_turn_ms(self) -> float:
        """The CPU time of the event loop's longest turn since the last call."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        process.send_signal(signal.SIGUSR1)
        while not (line := process.stdout.readline()).startswith(STATUS):
            assert line, "the node has ended"
        return float(json.loads(line.removeprefix(STATUS))["loop"]["recent_cpu_ms"])

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(120)
            assert process.stdout is not None
            process.stdout.close()


class OtherOttla(Ottla):
    name = "Ottla of another checkout"

    def start(self) -> None:
        with other_checkout():
            super().start()


class Kafka(Broker):
    name = "Apache Kafka"

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        super().__init__()
        self._kafka = ApacheKafka(
            directory, properties={**SINGLE_NODE, **DEFAULTS, **settings}, jvm=SERVER_JVM
        )

    @property
    def bootstrap(self) -> str:
        return self._kafka.bootstrap

    @property
    def pid(self) -> int:
        assert self._kafka._process is not None
        return self._kafka._process.pid

    def start(self) -> None:
        if not self._kafka.data_dir.exists():
            # Formatting is a separate step in Apache Kafka, so its first start is not measured.
            self._kafka.start(timeout_s=READY_S)
            self._kafka.stop()
        begin = time.perf_counter()
        self._kafka.start(timeout_s=READY_S)
        self.ready_s = time.perf_counter() - begin

    def stop(self) -> None:
        self._kafka.stop()

    def kill(self) -> None:
        self._kafka.kill()


@contextlib.contextmanager
def running(kind: type[Ottla] | type[OtherOttla] | type[Kafka], settings: dict[str, str]) -> Iterator[Broker]:
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
    broker = kind(directory, settings)
    try:
        broker.start()
        yield broker
        broker.stop()
    finally:
        broker.kill()
        shutil.rmtree(directory, ignore_errors=True)


def ottla(**settings: str) -> contextlib.AbstractContextManager[Broker]:
    return running(Ottla, {name.replace("_", "."): value for name, value in settings.items()})


def peer(**settings: str) -> contextlib.AbstractContextManager[Broker]:
    """Apache Kafka, or with `--against` the Ottla of another checkout."""
    kind = Kafka if AGAINST is None else OtherOttla
    return running(kind, {name.replace("_", "."): value for name, value in settings.items()})


def apache_kafka(**settings: str) -> contextlib.AbstractContextManager[Broker]:
    return running(Kafka, {name.replace("_", "."): value for name, value in settings.items()})
