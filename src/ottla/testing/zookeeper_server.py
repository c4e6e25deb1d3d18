"""A ZooKeeper on this machine, for the legacy mode of a local cluster: `ottla cluster up --zookeeper`.

It is Apache ZooKeeper itself, from the jars that Maven fetches once into the user's cache, so it needs Java.
Its files lie beside those of the nodes:

    DIR/zookeeper/zoo.cfg         its settings
    DIR/zookeeper/data/           the znodes
    DIR/zookeeper/zookeeper.log   the output of its process
    DIR/zookeeper/process.json    its process

`OTTLA_ZOOKEEPER_LIBS=FOLDER` names a folder with the jars instead; Maven is not needed then.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final, TextIO

from ottla.testing.cluster_plan import is_free
from ottla.testing.cluster_process import ClusterError, inspect_process

ZOOKEEPER_VERSION: Final = "3.8.4"
LIBS_VARIABLE: Final = "OTTLA_ZOOKEEPER_LIBS"
_COORDINATES: Final = (
    ("org.apache.zookeeper", "zookeeper", ZOOKEEPER_VERSION),
    ("io.dropwizard.metrics", "metrics-core", "4.2.25"),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
    ("commons-cli", "commons-cli", "1.5.0"),  # for its shell
)
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# The process notes itself, too: the one that starts it may be killed before it does.
_NOTE_AND_RUN: Final = 'echo "{\\"pid\\": $$}" > "$0.$$" && mv -f "$0.$$" "$0" && exec "$@"'
_OR_ANOTHER: Final = "or run one, and name it: --zookeeper HOST:PORT"
_TICK_MS: Final = 500
_DOWNLOAD_SECONDS: Final = 900
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05

# The processes that this process has started, by pid: it has to wait for them when they end.
_children: dict[int, subprocess.Popen[bytes]] = {}


def missing_requirement() -> str | None:
    """What keeps ZooKeeper from running on this machine; None if nothing does."""
    if shutil.which("java") is None:
        return f"there is no `java` on the PATH: install a JRE, 17 or newer; {_OR_ANOTHER}"
    if LIBS_VARIABLE not in os.environ and not _is_fetched(_cache()) and shutil.which("mvn") is None:
        return (
            "there is no `mvn` on the PATH to fetch ZooKeeper's jars with: install Maven, or set "
            f"{LIBS_VARIABLE} to a folder that has them; {_OR_ANOTHER}"
        )
    return None


def pending_download() -> Path | None:
    """The folder into which Maven has to fetch the jars first; None if they are there."""
    return None if LIBS_VARIABLE in os.environ or _is_fetched(_cache()) else _cache()


class ZooKeeperServer:
    """The server in a folder, and the process that runs it, if there is one."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory: Final = directory
        self.port: Final = port
        self.log_file: Final = directory / "zookeeper.log"
        self._settings: Final = directory / "zoo.cfg"
        self._file: Final = directory / "process.json"

    @property
    def connect(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, if it does not run, and return when it answers. ClusterError says why it does not."""
        if self.pid() is not None:
            self._wait_until_answering()
            return
        missing = missing_requirement()
        if missing is not None:
            raise ClusterError(f"ZooKeeper cannot be started: {missing}")
        jars = _jars()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(
            f"dataDir={self.directory / 'data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            f"tickTime={_TICK_MS}\nadmin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n"
        )
        self._check_port()
        with self.log_file.open("ab") as log:
            java = ["java", "-Xmx256m", "-cp", f"{jars}/*", _MAIN, str(self._settings)]
            child = subprocess.Popen(
                ["sh", "-c", _NOTE_AND_RUN, str(self._file), *java],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _children[child.pid] = child
        unfinished = self._file.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"pid": child.pid}))
        unfinished.replace(self._file)
        self._wait_until_answering()

    def _check_port(self) -> None:
        """Say in one line what its log would say in many."""
        if not is_free(self.port):
            raise ClusterError(
                f"ZooKeeper cannot be started: port {self.port} is in use by another process; end that one, "
                "or make a new cluster, which may have another (--port)"
            )

    def _wait_until_answering(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self.pid() is None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as asked:
                asked.sendall(b"ruok")
                if asked.recv(16) == b"imok":
                    return
            time.sleep(_POLL_SECONDS)
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        raise ClusterError(
            f"ZooKeeper did not start: {lines[-1] if lines else 'no output'}; see {self.log_file}"
        )

    def pid(self) -> int | None:
        """Its process; None when it is down."""
        try:
            pid = int(json.loads(self._file.read_text())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if pid in _children:
            return None if _children[pid].poll() is not None else pid
        found = inspect_process(pid)
        return pid if found is not None and str(self._settings) in found.command else None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; ClusterError if it is down."""
        pid = self.pid()
        if pid is None:
            raise ClusterError("ZooKeeper is down")
        os.kill(pid, number)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> bool:
        """End it, and return when it has ended; False if it did not run."""
        if self.pid() is None:
            return False
        with contextlib.suppress(ClusterError, ProcessLookupError):
            self.send(how)
            self.send(signal.SIGCONT)
        deadline = time.monotonic() + _STOP_SECONDS
        while self.pid() is not None:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"ZooKeeper did not stop within {_STOP_SECONDS:.0f} s; see {self.log_file}"
                )
            time.sleep(_POLL_SECONDS)
        return True


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ottla" / f"zookeeper-{ZOOKEEPER_VERSION}"


def _is_fetched(folder: Path) -> bool:
    marker = folder / ".complete"
    return marker.exists() and marker.read_text() == str(_COORDINATES)


def _jars() -> Path:
    """The folder with the jars, which are fetched if they are not there yet."""
    prepared = os.environ.get(LIBS_VARIABLE)
    if prepared is not None:
        if not any(Path(prepared).glob("zookeeper-*.jar")):
            raise ClusterError(f"{LIBS_VARIABLE}={prepared} has no zookeeper-*.jar")
        return Path(prepared)
    folder = _cache()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        _hold(lock)
        if not _is_fetched(folder):
            _fetch(folder, lock.fileno())
    return folder


def _hold(lock: TextIO) -> None:
    """Lock the cache, once no other process fetches into it."""
    deadline = time.monotonic() + _DOWNLOAD_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"another process fetches ZooKeeper and does not end: {lock.name}"
                ) from None
            time.sleep(_POLL_SECONDS)


def _fetch(folder: Path, lock: int) -> None:
    """Have Maven fetch the jars. It inherits the lock: if this process is killed, the next one waits."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        "</dependency>"
        for group, artifact, version in _COORDINATES
    )
    pom = folder / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>ottla</groupId><artifactId>zookeeper</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
    command = [
        "mvn",
        "-q",
        "-B",
        "-f",
        str(pom),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}",
    ]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
            check=False,
            pass_fds=(lock,),
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"Maven did not fetch ZooKeeper within {_DOWNLOAD_SECONDS} s ({' '.join(command)})"
        ) from None
    if done.returncode != 0:
        raise ClusterError(f"Maven could not fetch ZooKeeper ({' '.join(command)}):\n{done.stdout[-2000:]}")
    for logback in folder.glob("logback-*.jar"):
        logback.unlink()  # one logger is enough, and it should write to the standard output
    (folder / ".complete").write_text(str(_COORDINATES))
