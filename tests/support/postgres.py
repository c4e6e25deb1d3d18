"""A PostgreSQL whose changes Debezium brings to topics: the server, and Kafka Connect with the connector.

Debian's package keeps the programs in a directory of their version. The server refuses to run as root, so
there it gets a user namespace in which it is another user. `PostgresServer.crash` ends it without a
checkpoint: the next start recovers from its log. Connect is killed with SIGKILL, and sends again what it has
not noted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self
from urllib.request import Request, urlopen

from ottla.testing.cluster_plan import free_ports
from tests.support import kafka_libs

POSTGRES_SKIP: Final = "Changes of a real PostgreSQL not tried: "
_USER: Final = "postgres"
_SECONDS: Final = 180.0
_AS_ANOTHER: Final = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


def missing_requirement() -> str | None:
    """What keeps a PostgreSQL with Debezium from running on this machine, or None if nothing does."""
    if (missing := kafka_libs.missing_requirement()) is not None:
        return missing
    if _programs() is None:
        return "no `initdb` (Debian: apt-get install postgresql)"
    if os.geteuid() == 0 and subprocess.run([*_AS_ANOTHER, "true"], check=False).returncode != 0:
        return "PostgreSQL does not run as root, and there are no user namespaces"
    return None


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda each: float(each.parts[-3]))
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return None if there is None else Path(there).parent


class PostgresServer:
    """A server with logical decoding, and a database `shop`, in a directory of its own."""

    def __enter__(self) -> Self:
        programs = _programs()
        assert programs is not None
        self._programs = programs
        self._directory = Path(tempfile.mkdtemp(prefix="ottla-postgres-"))
        (self.port,) = free_ports(1)
        self._run("initdb", "-D", f"{self._data}", "-U", _USER, "-A", "trust", "--no-sync", "-E", "UTF8")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = ''\n"
                "wal_level = logical\nfsync = off\n"
            )
        try:
            self.start()
            self._psql("postgres", "CREATE DATABASE shop")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        try:
            self.crash()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def start(self) -> None:
        log = f"{self._directory}/server.log"
        self._run("pg_ctl", "-D", f"{self._data}", "-l", log, "-w", "-t", f"{_SECONDS:.0f}", "start")

    def crash(self) -> None:
        """End all processes of the server at once, without a checkpoint."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", f"{self._data}", "-m", "immediate", "-w", "stop")

    def execute(self, *statements: str) -> list[list[str]]:
        """Run statements, in one transaction; returns the rows of the last."""
        return self._psql("shop", *statements)

    def _psql(self, database: str, *statements: str) -> list[list[str]]:
        address = f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"
        commands = [part for each in statements for part in ("-c", each)]
        single = ["-1"] * (len(statements) > 1)
        said = self._run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *single, *commands, address)
        return [line.split("|") for line in said.splitlines()]

    def _run(self, program: str, *arguments: str) -> str:
        prefix = _AS_ANOTHER if os.geteuid() == 0 else ()
        with tempfile.TemporaryFile("w+") as output:  # a server that goes on keeps what it inherits open
            ended = subprocess.run(
                [*prefix, f"{self._programs / program}", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self._directory,
                timeout=_SECONDS,
                check=False,
            )
            output.seek(0)
            said = str(output.read())
        assert ended.returncode == 0, f"{program} {arguments}: {said}"
        return said


class Connect:
    """Kafka Connect with Debezium's connector for a server: alone, and what it has sent is in a file beside;
    or a worker of a group, which notes it in a topic, by the transactions in which it sends (`exactly_once`).
    Such a worker has the connector once it was given to it (`is_configured`).
    """

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        server: PostgresServer,
        prefix: str,
        *,
        exactly_once: bool = False,
    ) -> None:
        self._directory = directory
        self._exactly_once = exactly_once
        (port,) = free_ports(1)
        self._address = f"http://127.0.0.1:{port}"
        directory.mkdir()
        worker = {
            "bootstrap.servers": bootstrap,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "offset.flush.interval.ms": "500",
            "listeners": self._address,
        }
        if exactly_once:
            worker |= {"group.id": f"{prefix}-connect", "exactly.once.source.support": "enabled"}
            for kind in ("config", "offset", "status"):
                worker[f"{kind}.storage.topic"] = f"{prefix}-connect-{kind}"
                worker[f"{kind}.storage.replication.factor"] = "1"
        else:
            worker["offset.storage.file.filename"] = f"{directory}/offsets"
        connector = {
            "name": prefix,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.hostname": "127.0.0.1",
            "database.port": f"{server.port}",
            "database.user": _USER,
            "database.password": "-",
            "database.dbname": "shop",
            "plugin.name": "pgoutput",
            "slot.name": "ottla",
            "publication.autocreate.mode": "filtered",
            "table.include.list": "public.customers",
            "topic.prefix": prefix,
        }
        self._write("worker.properties", worker)
        if exactly_once:
            connector["exactly.once.support"] = "required"
        else:
            self._write("connector.properties", connector)
        self._connector = connector
        (directory / "log4j2.json").write_text(json.dumps(_LOGGING))
        self._process: subprocess.Popen[bytes] | None = None

    def _write(self, name: str, settings: Mapping[str, str]) -> None:
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._directory / name).write_text(text)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        command = [kafka_libs.java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [f"-Dlog4j2.configurationFile={self._directory}/log4j2.json"]
        command += ["-cp", kafka_libs.classpath(kafka_libs.DEBEZIUM)]
        kind, files = (
            ("Distributed", ["worker"]) if self._exactly_once else ("Standalone", ["worker", "connector"])
        )
        command += [f"org.apache.kafka.connect.cli.Connect{kind}"]
        command += [f"{self._directory}/{name}.properties" for name in files]
        with (self._directory / "connect.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self._directory
            )

    def is_configured(self) -> bool:
        """Give the connector to the worker; False if that does not take it yet."""
        self.check()
        request = Request(
            f"{self._address}/connectors/{self._connector['name']}/config",
            json.dumps(self._connector).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        try:
            with urlopen(request, timeout=_SECONDS):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        return (self._directory / "connect.log").read_text()[-6_000:]

    def check(self) -> None:
        """Fail when it has ended by itself."""
        assert self._process is None or self._process.poll() is None, self.log()


_LOGGING: Final = {
    "configuration": {
        "appenders": {"Console": {"name": "out", "PatternLayout": {"pattern": "%d %p %m (%c)%n"}}},
        "loggers": {"Root": {"level": "warn", "AppenderRef": {"ref": "out"}}},
    }
}
