"""One run of a project at a time, also across machines that share its directory.

A run holds a file lock for as long as it lives, and with it its JVM, which may outlive a killed run for a
moment and still write. The file names the run: the host, the process, the user and when it began.

Some shared file systems have no locks, or none between machines. So the file says who holds it as well, by a
token that is drawn for each run:

* a run touches the file every few seconds. One that finds the name of another run waits: for the next touch,
  and steps back, or until the touch is so old that the other run must have been killed;
* where the lock may not reach other machines, a run that has written its token waits, longer than another
  one takes from its look at the file to its own token, and reads again: of two that start together, the one
  whose token is there goes on;
* with each touch a run looks whether the token is still its own. If not, it was taken for dead, as after a
  pause of its machine, and must not go on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from ottla.spark.pipelines.project import ProjectError

FILE: Final = "run.lock"
TOUCH_SECONDS: Final = 5.0
STALE_SECONDS: Final = 30.0
# How long a run waits before it reads its token again; network file systems cache for up to three seconds.
CONFIRM_SECONDS: Final = 4.0
# How long the JVM of a killed run may take to end.
ENDING_SECONDS: Final = 60.0
_FILE_BYTES: Final = 1024
_NAMING_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.2
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
# File systems that no second machine writes to: a lock there is a lock.
_LOCAL: Final = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "overlay")
)
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class AlreadyRunning(ProjectError):
    """Another run of the project is alive."""

    def __init__(self, file: Path, run: dict[str, Any], remark: str = "") -> None:
        where = f"process {run.get('pid', '?')} of {run.get('user', '?')} on {run.get('host', '?')}"
        super().__init__(
            f"this pipeline is running already: {where}, since {run.get('since', '?')}{remark}. Wait for its "
            f"end, or end it; two runs at once would write the same tables ({file})"
        )


@dataclass(slots=True)
class RunLock:
    """The lock that a run holds."""

    files: list[int]
    """The file descriptors: a process that inherits them holds the locks with this one."""
    taken_by: AlreadyRunning | None = None
    """The run that has taken this one for dead, and has the lock now."""

    def check(self) -> None:
        """Raise AlreadyRunning if another run has the lock now."""
        if self.taken_by is not None:
            raise self.taken_by


@contextmanager
def run_lock(
    directories: Sequence[Path],
    waiting: Callable[[str], None],
    on_lost: Callable[[], None] = lambda: None,
) -> Iterator[RunLock]:
    """Hold the lock of a project, which is in each of these directories, during the block.

    `waiting` is called with a reason before a wait for what a killed run has left. `on_lost` is called from
    another thread if another run has taken the lock; it ends what writes, and `check` then raises.
    """
    with ExitStack() as stack:
        unique = dict.fromkeys(map(Path.resolve, directories))
        run = _this_run()
        claims = [stack.enter_context(_locked(each, run, waiting)) for each in unique]
        held = RunLock([claim.file.fileno() for claim in claims])
        stop = threading.Event()
        watch = threading.Thread(
            target=_watch, args=(claims, held, on_lost, stop), name="run lock", daemon=True
        )
        watch.start()
        try:
            yield held
        finally:
            stop.set()
            watch.join()


def is_running(directory: Path) -> bool:
    """Whether a run of the project is alive. The lock is left alone: a run that starts now needs it."""
    path = directory / FILE
    try:
        run = _read(path)
        if _is_of_this_machine(run):
            return not _is_dead_here(run)
        return bool(run) and time.time() - path.stat().st_mtime < STALE_SECONDS
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Claim:
    """A file that names a run."""

    file: IO[str]
    path: Path
    run: dict[str, Any]

    def holder(self) -> dict[str, Any] | None:
        """The run that the file names now; None if it cannot be read at the moment. It is opened again, as
        network file systems show the writes of others only then.
        """
        try:
            return _read(self.path)
        except FileNotFoundError:
            return {}
        except OSError:
            return None


@contextmanager
def _locked(directory: Path, run: dict[str, Any], waiting: Callable[[str], None]) -> Iterator[_Claim]:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE
    path.touch()
    with path.open("r+") as file:
        has_lock = _lock(file, path, waiting)
        _wait_for_others(path, waiting, trusts_lock=has_lock)
        # In one write of one size: of two at the same moment, the whole of one is left.
        os.pwrite(file.fileno(), json.dumps(run).ljust(_FILE_BYTES).encode(), 0)
        claim = _Claim(file, path, run)
        if not (has_lock and _is_local(directory)):
            time.sleep(CONFIRM_SECONDS)
            if (holder := claim.holder()) != run:
                raise AlreadyRunning(path, holder or {}, " (it has started at the same moment)")
        try:
            yield claim
        finally:
            if claim.holder() == run:
                file.truncate(0)  # not on a kill: then the content says which run it was


def _lock(file: IO[str], path: Path, waiting: Callable[[str], None]) -> bool:
    """Take the lock; False if the file system has none."""
    began = time.monotonic()
    waits = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            run = _read(path)
            waited = time.monotonic() - began
            if not run and waited < _NAMING_SECONDS:
                time.sleep(_POLL_SECONDS)  # the other run has just begun, and is about to write its name
                continue
            if not _is_dead_here(run):
                raise AlreadyRunning(path, run) from None
            if waited > ENDING_SECONDS:
                remark = " (it was killed, but its Spark, a process of Java, is still there; end that)"
                raise AlreadyRunning(path, run, remark) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
        if not waits:
            waits = True
            waiting("the Spark of a run that was killed is still ending")
        time.sleep(_POLL_SECONDS)


def _wait_for_others(path: Path, waiting: Callable[[str], None], *, trusts_lock: bool) -> None:
    """Wait until the run that the file names must have been killed. One of this machine cannot be alive if
    this one has got the lock.
    """
    run = _read(path)
    if not run or (trusts_lock and _is_of_this_machine(run)):
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


def _is_local(directory: Path) -> bool:
    """Whether the directory is on a disk of this machine, by the file system that is mounted there. Without
    the list of mounts, as on macOS, it may not be.
    """
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return False
    best, found = -1, ""
    for line in lines:
        fields, _, kind = line.partition(" - ")
        mounted = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields.split()[4]))
        if directory.is_relative_to(mounted) and len(mounted.parts) >= best:  # the last one covers others
            best, found = len(mounted.parts), kind.split()[0]
    return found in _LOCAL


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _machine() -> str:
    """This machine, or this container: where process ids mean the same. Containers may share a host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _is_of_this_machine(run: dict[str, Any]) -> bool:
    return run.get("host") == socket.gethostname() and run.get("machine", "") in ("", _machine())


def _is_dead_here(run: dict[str, Any]) -> bool:
    """Whether the run was on this machine and its process has ended."""
    if not _is_of_this_machine(run) or not isinstance(run.get("pid"), int):
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
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "user": user,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "token": os.urandom(8).hex(),
    }


def _watch(
    claims: Sequence[_Claim], held: RunLock, on_lost: Callable[[], None], stop: threading.Event
) -> None:
    """Touch the files, and look whose they are, until the run ends or has lost one of them."""
    while not stop.wait(TOUCH_SECONDS):
        for claim in claims:
            holder = claim.holder()
            if holder is None or holder == claim.run:
                with contextlib.suppress(OSError):
                    os.utime(claim.file.fileno())
                continue
            remark = " (this one was paused for so long that it was taken for dead)"
            if not holder:
                remark = " (the file that names it was removed or damaged)"
            held.taken_by = AlreadyRunning(claim.path, holder, remark)
            on_lost()
            return
