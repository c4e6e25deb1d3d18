"""Sessions of Spark on this machine, with the settings that a Python source and sink want.

`session()` is a plain local session, for programs and notebooks: nothing in it is needed to use
`format("ottla")`, it only starts sooner. `connect_session()` is the same behind Spark Connect, in one JVM
of this process: what declarative pipelines run on.

What is set, and why:
- JAVA_HOME: a Java that Spark can use, see `ottla.spark.java`.
- PYSPARK_PYTHON: this interpreter; else workers take the first `python3` of the PATH.
- SPARK_HOME: a directory of links to Spark's own, without its `python/`. Workers then import PySpark from
  site-packages, compiled, and not from a zip: half a second less for each of six kinds of worker.
- a checkpoint file manager that renames files instead of going through Hadoop's FileContext: a third of the
  cost of a small micro-batch. It is for file systems whose rename is atomic: local masters only.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from ottla.spark.cache import cache_dir, publish
from ottla.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["connect_session", "prepare_environment", "session"]

CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_LINKED: Final = ("bin", "jars", "sbin")
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
}


class NoSpark(Exception):
    """PySpark is not installed."""

    def __init__(self) -> None:
        super().__init__("PySpark is not installed; `pip install 'ottla[spark]'` brings it")


def prepare_environment(environment: MutableMapping[str, str] | None = None) -> Java:
    """Sets what Spark reads from the environment; what the user has set already counts more."""
    environment = os.environ if environment is None else environment
    java = find_java(environment)
    environment["JAVA_HOME"] = str(java.home)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", environment["PYSPARK_PYTHON"])
    if "SPARK_HOME" not in environment:
        environment["SPARK_HOME"] = str(_spark_home())
    return java


def settings_for(master: str) -> dict[str, str]:
    """The settings for this master, by Spark's names."""
    found = {"spark.master": master, **_QUIET}
    if master.startswith("local"):
        found |= _LOCAL
    return found


def session(
    master: str = "local[*]", *, name: str = "ottla", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session of Spark in this process, or the one that there is already.

    `conf` adds to the settings, and counts over them.
    """
    _check_installed()
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    for key, value in {**settings_for(master), **(conf or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def connect_session(
    master: str = "local[*]",
    *,
    name: str = "ottla",
    conf: Mapping[str, str] | None = None,
    log: IO[Any] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """A session of Spark Connect, and the context of Spark under it, in one JVM that ends with the block.

    It serves on a free port of the loopback interface, and only those who know its token. With `log`, what
    the JVM and its workers print goes there.
    """
    _check_installed()
    prepare_environment()
    os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", os.urandom(24).hex())
    with warnings.catch_warnings():  # of the versions of other packages: nothing for our users
        warnings.simplefilter("ignore", FutureWarning)
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.session import SparkSession as RemoteSession

    settings = {
        **settings_for(master),
        "spark.app.name": name,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
        "spark.sql.connect.serverStacktrace.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        **(conf or {}),
    }
    spark_conf = SparkConf(loadDefaults=False)
    spark_conf.setAll(list(settings.items()))
    output = {} if log is None else {"stdout": log, "stderr": log}
    gateway = launch_gateway(spark_conf, popen_kwargs=output)  # type: ignore[no-untyped-call]
    try:
        context = SparkContext(gateway=gateway, conf=spark_conf)
        SparkSession(context)  # Spark Connect looks for the session that it stands on
        service = getattr(context._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port = getattr(service, "MODULE$").localPort()
        with _remote_mode():
            remote = RemoteSession.builder.remote(f"sc://localhost:{port}").create()
            try:
                yield remote, context
            finally:
                remote.stop()
        context.stop()
    finally:
        gateway.shutdown()
        _end(gateway.proc)
        SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def _remote_mode() -> Iterator[None]:
    """While it lasts, PySpark's functions build plans for Spark Connect."""
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    try:
        yield
    finally:
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


def _end(process: Any) -> None:
    """The JVM ends when its standard input does."""
    from subprocess import TimeoutExpired

    process.stdin.close()
    try:
        process.wait(10)
    except TimeoutExpired:
        process.kill()
        process.wait()


def _check_installed() -> None:
    if find_spec("pyspark") is None:
        raise NoSpark


def _spark_home() -> Path:
    """Spark's directory without its copy of PySpark, so that workers import the installed one."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise NoSpark
    package = Path(spec.origin).parent
    if not (package / "jars").is_dir():
        return package
    name = "spark-" + sha256(str(package).encode()).hexdigest()[:12]
    ready = cache_dir() / name
    if all((ready / part).exists() for part in _LINKED):
        return ready

    def build(directory: Path) -> None:
        for part in _LINKED:
            (directory / part).symlink_to(package / part)

    return publish(name, build)
