"""ZooKeeper, and Apache Kafka 3.9 or older on it, as processes in a folder on loopback: the oracle of znodes.

Sessions are short, so that a killed broker is forgotten after seconds. Leaving a context ends the process
that was started; a failed start shows the end of its log.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.testing.cluster_plan import free_ports
from tests.support import java, kafka_libs
from tests.support.apache_kafka import listed_brokers
from tests.support.waiting import wait_until

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
TICK_MS = 500
# Long enough for a busy machine, short enough to wait for.
SESSION_TIMEOUT_MS = 5_000

ONE_BROKER = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": "3600000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
}


class JavaProcess:
    """A Java program that runs until it is stopped or killed."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    def launch(
        self, main: str, arguments: Sequence[str], bundle: kafka_libs.Bundle, jvm: Sequence[str] = ()
    ) -> None:
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                java.command(main, arguments, bundle=bundle, jvm=(*java.LIGHT_JVM, *jvm)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=java.die_with_parent(),
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def await_port(self, port: int) -> None:
        """Wait until something listens at the port."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.running, f"it ended while starting:\n{self.log_tail()}"
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5):
                    return
            except OSError:
                time.sleep(POLL_INTERVAL_S)
        raise AssertionError(f"not ready after {START_TIMEOUT_S} s:\n{self.log_tail()}")

    def stop(self) -> None:
        """End it as an operator does."""
        if self._process is not None:
            java.end_process(self._process, timeout_s=STOP_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            java.kill_process(self._process)
            self._process = None

    def log_tail(self, size: int = 6000) -> str:
        return self._log_file.read_text(errors="replace")[-size:] if self._log_file.exists() else "(no log)"


_DIGEST_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
# What a server needs to take logins by SASL.
SASL_SETTINGS = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}


def jaas_option(file: Path, text: str) -> str:
    """Write a JAAS file, and return the option of Java for it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return f"-Djava.security.auth.login.config={file}"


def server_jaas(user: str, password: str) -> str:
    """The one user that a ZooKeeper knows."""
    return f'Server {{ {_DIGEST_MODULE} required user_{user}="{password}"; }};\n'


def client_jaas(user: str, password: str) -> str:
    """The login of a broker."""
    return f'Client {{ {_DIGEST_MODULE} required username="{user}" password="{password}"; }};\n'


class ApacheZooKeeper:
    """One ZooKeeper server; `connect` is its address, `tls_connect` the one for TLS with a `tls_port`."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (),
        tls_port: int | None = None,
        bundle: kafka_libs.Bundle = kafka_libs.ZOOKEEPER_KAFKA,
    ) -> None:
        self._directory = directory
        self._bundle = bundle
        self._settings = dict(settings or {})
        self._jvm = tuple(jvm)
        self.tls_port = tls_port
        if tls_port is not None:
            self._settings["secureClientPort"] = str(tls_port)
        self.port = 0
        self._java = JavaProcess(directory / "zookeeper.log")

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def tls_connect(self) -> str:
        return f"localhost:{self.tls_port}"

    @property
    def pid(self) -> int:
        return self._java.pid

    def start(self) -> Self:
        """Start it, on the same port and data as before."""
        self._directory.mkdir(parents=True, exist_ok=True)
        if self.port == 0:
            (self.port,) = free_ports(1)
        file = self._directory / "zookeeper.cfg"
        file.write_text(
            f"dataDir={self._directory / 'zookeeper-data'}\nclientPort={self.port}\n"
            f"clientPortAddress=127.0.0.1\nadmin.enableServer=false\ntickTime={TICK_MS}\n"
            "maxClientCnxns=0\n4lw.commands.whitelist=*\n"
            + "".join(f"{name}={value}\n" for name, value in self._settings.items())
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._java.launch(main, [str(file)], self._bundle, self._jvm)
        self._java.await_port(self.port)
        if self.tls_port is not None:
            self._java.await_port(self.tls_port)
        return self

    def stop(self) -> None:
        self._java.stop()

    def kill(self) -> None:
        self._java.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._java.kill()


class ZooKeeperKafka:
    """A broker of Apache Kafka on ZooKeeper. It is ready when it lists itself."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *,
        broker_id: int = 1,
        log_dirs: Sequence[str] = ("data",),
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (),
        bundle: kafka_libs.Bundle = kafka_libs.ZOOKEEPER_KAFKA,
    ) -> None:
        self._bundle = bundle
        self.directory = directory
        self.broker_id = broker_id
        self.port = port if port is not None else free_ports(1)[0]
        self.log_dirs = [directory / name for name in log_dirs]
        self.file = directory / "server.properties"
        self._java = JavaProcess(directory / "server.log")
        self._jvm = tuple(jvm)
        self.settings = {
            "broker.id": str(broker_id),
            "zookeeper.connect": zookeeper,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": ",".join(map(str, self.log_dirs)),
            **ONE_BROKER,
            **(properties or {}),
        }

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Begin to start it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.file.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        self._java.launch("kafka.Kafka", [str(self.file)], self._bundle, self._jvm)

    def await_ready(self) -> None:
        self._java.await_port(self.port)
        wait_until(
            lambda: self.broker_id in listed_brokers(self.port),
            "the broker does not list itself",
            START_TIMEOUT_S,
        )

    def start(self) -> Self:
        self.launch()
        self.await_ready()
        return self

    def stop(self) -> None:
        self._java.stop()

    def kill(self) -> None:
        self._java.kill()

    def log_tail(self) -> str:
        return self._java.log_tail()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._java.kill()
