"""The brokers that are measured: processes of their own on loopback, with what the system says they cost."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.apache_kafka import SERVER_JVM, ApacheKafka

# One node, so one replica; the rest is what each broker does by default.
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
    "num.network.threads": "3",
    "num.io.threads": "8",
    "log.initial.task.delay.ms": "30000",
}


@dataclass
class Broker:
    """A running broker: where it listens, and its process."""

    name: str
    bootstrap: str
    process: psutil.Process
    ready_s: float

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def resident_megabytes(self) -> float:
        return self.process.memory_info().rss / 1e6


@contextlib.contextmanager
def ottla(**settings: str) -> Iterator[Broker]:
    directory = tempfile.mkdtemp(prefix="ottla-bench-")
    command = [sys.executable, "-m", "ottla", "start", "--data-dir", directory, "--listen", "127.0.0.1:0"]
    for name, value in {**SINGLE_NODE, **settings}.items():
        command += ["--set", f"{name.replace('_', '.')}={value}"]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready_s = time.perf_counter() - begin
            address = next(word.strip(",") for word in line.split() if word.startswith("127.0.0.1:"))
            yield Broker("Ottla", address, psutil.Process(process.pid), ready_s)
        finally:
            process.terminate()
            process.wait(60)
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def apache_kafka(**settings: str) -> Iterator[Broker]:
    directory = Path(tempfile.mkdtemp(prefix="kafka-bench-"))
    properties = {**SINGLE_NODE, **DEFAULTS, **{n.replace("_", "."): v for n, v in settings.items()}}
    kafka = ApacheKafka(directory, properties=properties, jvm=SERVER_JVM)
    # Formatting is a step of its own in Apache Kafka, so the start is timed the second time.
    kafka.start()
    kafka.stop()
    begin = time.perf_counter()
    with kafka:
        ready_s = time.perf_counter() - begin
        assert kafka._process is not None
        yield Broker("Apache Kafka", kafka.bootstrap, psutil.Process(kafka._process.pid), ready_s)
    shutil.rmtree(directory, ignore_errors=True)
