"""One run of a project at a time, also across machines that share its directory.

A run holds a file lock for as long as it lives, and with it its JVM, which may outlive a killed run for a
moment and still write. The file names the run: the host, the process, the user and when it began. Some shared
file systems have no locks between machines; so the run also touches the file every few seconds. A run on
another machine that finds a fresh touch waits: for the next one, and steps back, or until the touch is so old
that the other run must have been killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from ottla.spark.pipelines.project import ProjectError

__all__ = ["AlreadyRunning", "run_lock"]

FILE: Final = "run.lock"
TOUCH_SECONDS: Final = 5.0
STALE_SECONDS: Final = 30.0
# How long the JVM of a killed run may take to end.
ENDING_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class AlreadyRunning(ProjectError):
    """Another run of the project is alive."""

    def __init__(self, file: Path, run: dict[str, Any], remark: str = "") -> None:
        where = f"process {run.get('pid', '?')} of {run.get('user', '?')} on {run.get('host', '?')}"
        super().__init__(
            f"this pipeline is running already: {where}, since {run.get('since', '?')}{remark}. Wait for its "
            f"end, or end it; two runs at once would write the same tables ({file})"
        )


@contextmanager
def run_lock(directories: Sequence[Path], waiting: Callable[[str], None]) -> Iterator[list[int]]:
    """Hold the lock of a project, which is in each of these directories, during the block. Yields the file
    descriptors of the locks: a process that inherits them holds the locks with this one. `waiting` is called
    with a reason before a wait for what a killed run has left.
    """
    with ExitStack() as stack:
        unique = dict.fromkeys(map(Path.resolve, directories))
        files = [stack.enter_context(_locked(each, waiting)) for each in unique]
        stop = threading.Event()
        toucher = threading.Thread(target=_touch, args=(files, stop), name="run lock", daemon=True)
        toucher.start()
        try:
            yield [file.fileno() for file in files]
        finally:
            stop.set()
            toucher.join()
            for file in files:
                file.truncate(0)  # not on a kill: then the content says which run it was


def is_running(directory: Path) -> bool:
    """Whether a run of the project is alive. The lock is left alone: a run that starts now needs it."""
    path = directory / FILE
    try:
        with path.open() as file:
            run = _read(file)
        if run.get("host") == socket.gethostname():
            return not _is_dead_here(run)
        return bool(run) and time.time() - path.stat().st_mtime < STALE_SECONDS
    except OSError:
        return False


@contextmanager
def _locked(directory: Path, waiting: Callable[[str], None]) -> Iterator[IO[str]]:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE
    with path.open("a+") as file:
        _lock(file, path, waiting)
        _check_other_hosts(file, path, waiting)
        file.seek(0)
        file.truncate(0)
        file.write(json.dumps(_this_run()))
        file.flush()
        yield file


def _lock(file: IO[str], path: Path, waiting: Callable[[str], None]) -> None:
    """Take the lock. If the file system has none, only the touches tell."""
    deadline = time.monotonic() + ENDING_SECONDS
    waits = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            run = _read(file)
            if not _is_dead_here(run):
                raise AlreadyRunning(path, run) from None
            if time.monotonic() > deadline:
                remark = " (it was killed, but its Spark, a process of Java, is still there; end that)"
                raise AlreadyRunning(path, run, remark) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return
        if not waits:
            waits = True
            waiting("the Spark of a run that was killed is still ending")
        time.sleep(_POLL_SECONDS)


def _check_other_hosts(file: IO[str], path: Path, waiting: Callable[[str], None]) -> None:
    run = _read(file)
    if not run or run.get("host") == socket.gethostname():
        return
    seen: float | None = None
    while (age := _age(path)) < STALE_SECONDS:
        touched = path.stat().st_mtime
        if seen is None:
            seen = touched
            waiting(
                f"a run on {run.get('host')} has shown a sign of life {age:.0f} s ago; if it was killed, "
                f"this one goes on in {STALE_SECONDS - age:.0f} s"
            )
        elif touched != seen:
            raise AlreadyRunning(path, run, f" (its last sign of life was {age:.0f} s ago)")
        time.sleep(_POLL_SECONDS)


def _age(path: Path) -> float:
    """The seconds since the file was touched, by the clock of the file system."""
    probe = path.with_name(f".{FILE}.{os.getpid()}")
    try:
        probe.touch()
        return max(probe.stat().st_mtime - path.stat().st_mtime, 0.0)
    finally:
        probe.unlink(missing_ok=True)


def _read(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        found = json.loads(file.read())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_dead_here(run: dict[str, Any]) -> bool:
    """Whether the run was on this machine and its process has ended."""
    if run.get("host") != socket.gethostname() or not isinstance(run.get("pid"), int):
        return False
    try:
        os.kill(run["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _this_run() -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in a container
        user = str(os.getuid())
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "pid": os.getpid(), "user": user, "since": since}


def _touch(files: Sequence[IO[str]], stop: threading.Event) -> None:
    while not stop.wait(TOUCH_SECONDS):
        for file in files:
            with contextlib.suppress(OSError):
                os.utime(file.fileno())
