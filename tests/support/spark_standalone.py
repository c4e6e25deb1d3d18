"""A cluster of Spark's standalone mode on one machine: a master, and two workers that look like two hosts.

Spark starts no second attempt of a task on a host that runs the first, and none at all in its local modes; so
the workers live at different addresses of the loopback network.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.spark.class_archive import ClassArchive
from ottla.spark.session import prepare_environment
from ottla.testing.cluster_plan import free_ports

# For JVMs of Spark that live for one test: its optimizing compiler would never pay off.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

START_SECONDS = 120
CORES = 2
HOSTS = ("127.0.0.1", "127.0.0.2")


def driver_options() -> str:
    """Options for a short-lived JVM of Spark here, with the archive of its classes if there is one."""
    environment = dict(os.environ)
    java = prepare_environment(environment)
    return f"{SHORT_LIVED} {ClassArchive(java, Path(environment['SPARK_HOME'])).options()}"


class StandaloneCluster:
    """`url` is the master's, during the `with` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            # Spark would take the next port if it is in use, and only log that.
            port, of_ui = free_ports(2)
            self.url = f"spark://{HOSTS[0]}:{port}"
            where = ("--host", HOSTS[0], "--port", str(port), "--webui-port", str(of_ui))
            self._daemon("master.Master", HOSTS[0], *where)
            self._await("master.Master", "I have been elected leader", 1)
            for host in HOSTS:
                limits = ("--cores", str(CORES), "--memory", "1g", "--webui-port", "0")
                place = ("--host", host, "--work-dir", str(self.work_of(host)))
                self._daemon("worker.Worker", host, *place, *limits, self.url)
            self._await("worker.Worker", "Successfully registered with master", len(HOSTS))
            return self
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """The process ids of the master and the workers; executors are children of the workers."""
        return [process.pid for process in self._processes]

    def work_of(self, host: str) -> Path:
        """The directory in which the worker of a host keeps the output of its executors."""
        return self._directory / f"work-{host}"

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _daemon(self, name: str, host: str, *arguments: str) -> None:
        environment = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED}
        prepare_environment(environment)
        program = Path(environment["SPARK_HOME"]) / "bin" / "spark-class"
        with self._log(name).open("ab") as log:
            command = [str(program), f"org.apache.spark.deploy.{name}", *arguments]
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _await(self, name: str, text: str, times: int) -> None:
        log = self._log(name)
        deadline = time.monotonic() + START_SECONDS
        while log.read_text().count(text) < times:
            said = log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"{name} did not say {text!r}:\n{said}"
            assert all(process.poll() is None for process in self._processes), said
            time.sleep(0.1)
