"""Start sessions of Spark on this machine, with settings that suit a Python source and sink.

`session()` is a plain local session, for programs and notebooks: `format("ottla")` does not need it, it only
starts sooner. `connect_session()` is the same behind Spark Connect, in one JVM of this process, as
declarative pipelines need it.

What is set, and why:
- JAVA_HOME: a Java that Spark can use, see `ottla.spark.java`.
- PYSPARK_PYTHON: this interpreter; otherwise workers take the first `python3` of the PATH.
- SPARK_HOME: a directory of links to Spark's own, without its `python/`. Workers then import PySpark from
  site-packages, compiled, and not from a zip: half a second less for each of six kinds of worker.
- Unix sockets between Spark and its Python workers: over TCP, Spark's second small write of a task waits for
  the acknowledgement of its first, which comes 40 ms later, in every task. For local masters only.
- Python processes that are forks of one that has imported PySpark, see `ottla.spark.worker.fork_server`. On
  Linux, for local masters only. OTTLA_SPARK_FORKS=0 turns it off.
- an archive of Spark's classes, see `ottla.spark.class_archive`.
- a checkpoint file manager that renames files instead of using Hadoop's FileContext: a third of the cost of a
  small micro-batch. It is for file systems whose rename is atomic: for local masters only.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from ottla.spark.cache import cache_dir, publish
from ottla.spark.class_archive import ClassArchive
from ottla.spark.java import Java, find_java
from ottla.spark.worker import launch
from ottla.spark.worker.launch import ADDRESS as FORK_SERVER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
START_SECONDS: Final = 120.0
END_SECONDS: Final = 10.0
# How long a JVM whose connections are broken may take to be gone.
ENDING_SECONDS: Final = 5.0
# Most work of the optimizing compiler in the first half minute never pays off: compile only code that runs
# ten times as often as the default.
_SHORT: Final = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# The path of a socket has at most 104 bytes on some systems, and Spark's names take 42 of them.
_MAX_SOCKET_DIR_BYTES: Final = 60
_FORKS: Final = "OTTLA_SPARK_FORKS"
_OF_FORKS: Final = {
    # As Spark has them for its workers.
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    # Arrow does not use jemalloc, and yet it would start a thread. What has threads cannot be forked.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_MAX_WAITING_FORKS: Final = 64
_LINKED_DIRECTORIES: Final = ("bin", "jars", "sbin")
_JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Spark puts these before the others, which may be those of the user's spark-defaults.conf.
_FIRST_JVM_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
}


_processes: Final[list[subprocess.Popen[bytes]]] = []
"""The JVMs of the sessions that are open."""


class NoSpark(Exception):
    """Spark is not installed, or does not start."""

    def __init__(
        self, text: str = "PySpark is not installed; `pip install 'ottla[spark]'` brings it"
    ) -> None:
        super().__init__(text)


class SparkEnded(NoSpark):
    """Spark's process has ended in the middle of its work."""

    def __init__(self, status: int) -> None:
        how = f"was killed by signal {-status}" if status < 0 else f"has ended with status {status}"
        memory = ", as the system does when memory runs out" if status == -signal.SIGKILL else ""
        super().__init__(f"the process of Spark (Java) {how}{memory}")


def prepare_environment(environment: MutableMapping[str, str] | None = None) -> Java:
    """Set the environment variables that Spark reads; values of the user take precedence."""
    environment = os.environ if environment is None else environment
    java = find_java(environment)
    environment["JAVA_HOME"] = str(java.home)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", environment["PYSPARK_PYTHON"])
    if "SPARK_HOME" not in environment:
        environment["SPARK_HOME"] = str(_spark_home())
    return java


def use_fork_server(master: str, environment: MutableMapping[str, str] | None = None) -> None:
    """Have Spark start its Python processes as forks of one that has imported what they need, on this machine
    and where the environment has what `prepare_environment` sets.
    """
    environment = os.environ if environment is None else environment
    pythons = {environment["PYSPARK_PYTHON"], environment["PYSPARK_DRIVER_PYTHON"]}
    if not pythons <= {sys.executable, str(_launcher_path())}:
        return
    environment.pop(FORK_SERVER, None)  # of the process that has started this one
    is_own = master.startswith("local") and environment["SPARK_HOME"] == str(_spark_home())
    address = _fork_server() if is_own else None
    python = sys.executable
    if address is not None:
        environment[FORK_SERVER] = address
        python = str(_launcher())
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = python


@cache
def _fork_server() -> str | None:
    """Start the server of this process, which ends with it; its address. Only Linux forks well after imports
    such as these.
    """
    directory = private_directory()
    if sys.platform != "linux" or os.environ.get(_FORKS) == "0" or directory is None:
        return None
    address = os.path.join(directory, "forks")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(_MAX_WAITING_FORKS)  # from now on: they wait until the server has imported
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla.spark.worker.fork_server", str(listener.fileno())],
            env={**_OF_FORKS, **os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
    atexit.register(process.communicate)  # it ends when its standard input does
    return address


def _launcher_path() -> Path:
    """The program that is the interpreter for Spark."""
    key = sha256(f"{sys.executable} {launch.__file__}".encode()).hexdigest()[:12]
    return cache_dir() / f"python-{key}" / "python"


def _launcher() -> Path:
    path = _launcher_path()
    if path.exists():
        return path
    python = shlex.quote(sys.executable)

    def build(directory: Path) -> None:
        program = directory / path.name
        program.write_text(f'#!/bin/sh\nexec {python} -I -S {shlex.quote(launch.__file__)} {python} "$@"\n')
        program.chmod(0o755)

    return publish(path.parent.name, build) / path.name


@cache
def private_directory() -> str | None:
    """A directory of this user only, as a process that connects to a socket in it is trusted. None where a
    path in it would be too long for a socket.
    """
    directory = tempfile.mkdtemp(prefix="ottla-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory if len(os.fsencode(directory)) <= _MAX_SOCKET_DIR_BYTES else None


def settings_for(master: str) -> dict[str, str]:
    """The settings for this master, by Spark's names."""
    found = {"spark.master": master, **_QUIET}
    if master.startswith("local"):
        found |= _LOCAL | socket_settings()
    return found


def socket_settings() -> dict[str, str]:
    """Settings for Unix sockets to Spark's Python workers. Empty where a path would be too long for one."""
    directory = private_directory()
    if directory is None:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": directory,
    }


def session(
    master: str = "local[*]", *, name: str = "ottla", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session of Spark in this process: a new one, or the one that exists.

    `conf` adds to the settings, and takes precedence over them.
    """
    _check_installed()
    java = prepare_environment()
    use_fork_server(master)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    settings = {**settings_for(master), **(conf or {})}
    if options := ClassArchive(java, Path(os.environ["SPARK_HOME"])).options():
        settings.setdefault(_FIRST_JVM_OPTIONS, options)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def connect_session(
    master: str = "local[*]",
    *,
    name: str = "ottla",
    conf: Mapping[str, str] | None = None,
    log: IO[Any] | None = None,
    short: bool = False,
    keep_open: Sequence[int] = (),
    on_step: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[Any, Any]]:
    """A session of Spark Connect, and the context of Spark under it, in one JVM that ends with the block.

    It listens on a free port of the loopback interface, and serves only clients with its token. The output
    of the JVM and its workers goes to `log`, if given. `short` is for a session that does not live long: the
    JVM is tuned to start fast. The JVM inherits the file descriptors in `keep_open`: a lock on one of them
    is held until it has ended, also if this process is killed before. `on_step` hears what the start waits
    for. Raises SparkEnded if the JVM ends before the block.
    """
    _check_installed()
    java = prepare_environment()
    use_fork_server(master)
    archive = ClassArchive(java, Path(os.environ["SPARK_HOME"]))
    os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", os.urandom(24).hex())
    own_options = {_JVM_OPTIONS, _FIRST_JVM_OPTIONS} & (conf or {}).keys()
    options = "" if own_options else archive.options(may_make=True)
    settings = {
        **settings_for(master),
        "spark.app.name": name,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
        "spark.sql.connect.serverStacktrace.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        **({_FIRST_JVM_OPTIONS: options} if options else {}),
        **({_JVM_OPTIONS: _SHORT} if short and master.startswith("local") else {}),
        **(conf or {}),
    }
    on_step("Java")
    with _archiving(archive), _jvm(settings, log, keep_open) as (gateway, process):
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.session import SparkSession as RemoteSession

        on_step("the cluster" if not master.startswith("local") else "Spark")
        spark_conf = SparkConf(loadDefaults=False)
        spark_conf.setAll(list(settings.items()))
        context = SparkContext(gateway=gateway, conf=spark_conf)
        java_system = gateway.jvm.java.lang.System
        archive.note_class_path(java_system.getProperty("java.class.path"))
        try:
            SparkSession(context)  # Spark Connect looks for a session of this process
            service = getattr(context._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
            port = getattr(service, "MODULE$").localPort()
            on_step("Spark Connect")
            with _remote_mode():
                remote = RemoteSession.builder.remote(f"sc://localhost:{port}").create()
                _retry_while_alive(remote.client, process)
                try:
                    yield remote, context
                finally:
                    if process.poll() is None:
                        remote.stop()
        finally:
            with warnings.catch_warnings():  # that the JVM is gone, which is reported as an error
                warnings.simplefilter("ignore", RuntimeWarning)
                context.stop()


@contextmanager
def _archiving(archive: ClassArchive) -> Iterator[None]:
    """Have the classes of the session in this block archived when its JVM has ended."""
    complete = False
    try:
        yield
        complete = True
    finally:
        archive.make(complete=complete)


@contextmanager
def _jvm(
    settings: Mapping[str, str], log: IO[Any] | None, keep_open: Sequence[int]
) -> Iterator[tuple[Any, subprocess.Popen[bytes]]]:
    """A JVM with Spark, and the gateway to it, as PySpark's own `launch_gateway` creates them.

    That one waits for the JVM; here the time is used to import what is needed next, which takes as long.
    """
    with tempfile.TemporaryDirectory(prefix="ottla-spark-") as directory:
        address_file = Path(directory) / "gateway"
        environment = {
            **os.environ,
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address_file),
        }
        command = [os.path.join(os.environ["SPARK_HOME"], "bin", "spark-submit")]
        command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        # In its own session: Ctrl-C is for this process. The JVM ends when its standard input does.
        process = subprocess.Popen(
            [*command, "pyspark-shell"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=keep_open,
        )
        try:
            with warnings.catch_warnings():  # about versions of other packages: of no use to our users
                warnings.simplefilter("ignore", FutureWarning)
                import pyspark.pipelines.cli  # noqa: F401
            gateway = _gateway(*_address(process, address_file))
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with children that its script may just have started
            _end(process)
            raise
        root = logging.getLogger()
        root.addFilter(_is_not_of_py4j)
        _processes.append(process)
        try:
            yield gateway, process
        except Exception as error:
            if _has_ended(process, error):
                raise SparkEnded(process.returncode) from error
            raise
        finally:
            root.removeFilter(_is_not_of_py4j)
            _processes.remove(process)
            _end(process)


def kill_spark() -> None:
    """Kill the JVM of each session that is open, from any thread: it must not write any more. The session
    ends with SparkEnded.
    """
    for process in _processes.copy():
        process.kill()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Drop what Py4J logs of a call that broke off, with its stack: the call raises that as well."""
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def _has_ended(process: subprocess.Popen[bytes], error: BaseException) -> bool:
    """Whether the JVM ended before an error was raised. Its connections break a moment before it is gone."""
    from py4j.protocol import Py4JError

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Py4JError | ConnectionError) or "UNAVAILABLE" in str(seen):
            with suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_SECONDS)
            break
        seen = seen.__context__
    return process.poll() is not None


def _retry_while_alive(client: Any, process: subprocess.Popen[bytes]) -> None:
    """Keep a client of Spark Connect from trying for ten minutes to reach a JVM that has ended."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    class WhileAlive(DefaultPolicy):
        def can_retry(self, e: BaseException) -> bool:
            return process.poll() is None and super().can_retry(e)

    client.set_retry_policies([WhileAlive()])


def _address(process: subprocess.Popen[bytes], address_file: Path) -> tuple[int, str]:
    """The port and the secret that the JVM writes to the file when it is ready."""
    deadline = time.monotonic() + START_SECONDS
    while not address_file.exists():
        if process.poll() is not None:
            raise NoSpark(f"Java ended with status {process.returncode} before Spark was ready; see its log")
        if time.monotonic() > deadline:
            raise NoSpark(f"Spark was not ready within {START_SECONDS:.0f} s; see its log")
        time.sleep(0.02)
    data = address_file.read_bytes()
    port, size = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + size].decode()


def _gateway(port: int, secret: str) -> Any:
    from pyspark.java_gateway import launch_gateway

    variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(variables)
    try:
        return launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in variables:
            del os.environ[name]


@contextmanager
def _remote_mode() -> Iterator[None]:
    """Make PySpark's functions build plans for Spark Connect during the block."""
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    try:
        yield
    finally:
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the JVM, and make PySpark forget it."""
    from pyspark import SparkContext

    # Objects that are collected later try to release theirs in the JVM, and would log that it is gone.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)

    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
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
    if all((ready / part).exists() for part in _LINKED_DIRECTORIES):
        return ready

    def build(directory: Path) -> None:
        for part in _LINKED_DIRECTORIES:
            (directory / part).symlink_to(package / part)

    return publish(name, build)
