"""Keep Spark's classes in an archive that Java maps, rather than read and verify thousands of them from jars.

A JVM that starts Spark spends most of its first seconds on loading classes. Java can keep loaded classes in a
file (class data sharing), and a session with it starts in about half the time. The file depends on the Java
and on Spark's jars, so it cannot be shipped: the first session on a machine that ends well lists the classes
that it loads, and a process of low priority, which outlives that session, makes the archive for later ones.
It takes some 200 MB of the cache and half a minute of one core, once; if that fails, a session of the next
day, or of another Java or Spark, tries again. OTTLA_SPARK_ARCHIVE=0 turns it off.

Java ignores an archive that does not fit the classes it finds, and one whose checksums are wrong: those have
to be asked for, as it crashes on one that is damaged otherwise. So an archive is never wrong, only of no use.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from ottla.spark.cache import cache_dir
from ottla.spark.java import Java

_SWITCH: Final = "OTTLA_SPARK_ARCHIVE"
_NEEDED_BYTES: Final = 1 << 30
# How long no archive is made after one could not be: it may have been for lack of memory or disk.
_RETRY_S: Final = 24 * 3600.0
# Archives of other virtual environments are kept as well, the newest ones.
_MOST_ARCHIVES: Final = 3
_QUIET: Final = "-Xshare:auto -Xlog:cds*=off -Xlog:class+path=off"
# In a path, Spark takes these for the end of an option or for quotes.
_SPLITS_OPTIONS: Final = re.compile(r"[\s'\"\\]")
# What Spark starts Java with: the modules of the archive have to be the same.
_MODULES: Final = "--add-modules=jdk.incubator.vector"
# In the background: the shell returns at once, and the archive is made by a process of its own.
_MAKE: Final = """\
(
if "$1" "$5" -Xshare:dump -XX:SharedClassListFile="$2" -XX:SharedArchiveFile="$3.part" -cp "$4" \\
  > "$3.log" 2>&1
then sync "$3.part"; mv -f "$3.part" "$3" && rm -f "$3.log" "$3.failed"
else touch "$3.failed"
fi
rm -f "$2" "$3.part"
) &
"""


@dataclass(slots=True)
class ClassArchive:
    """The archive for one Java and one Spark.

    A session whose `options` say that it may make one calls `note_class_path` while its JVM runs, and `make`
    when that has ended.
    """

    java: Java
    spark_home: Path
    _lock: int | None = None
    _class_path: str = ""
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        key = sha256(f"{self.java.home} {self.spark_home}\n".encode())
        jars = self.spark_home / "jars"
        for described in (self.java.home / "release", *(sorted(jars.iterdir()) if jars.is_dir() else ())):
            with suppress(OSError):
                stat = described.stat()
                key.update(f"{described.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        self.path = cache_dir() / f"spark-classes-{key.hexdigest()[:12]}.jsa"

    @property
    def _classes(self) -> Path:
        """The list of classes that a session writes."""
        return self.path.with_suffix(".classes")

    def options(self, *, may_make: bool = False) -> str:
        """Options for the JVM of a session; none if there is no archive, and none can be made after it."""
        if os.environ.get(_SWITCH) == "0" or _SPLITS_OPTIONS.search(str(self.path)):
            return ""
        if self.path.exists():
            return f"-XX:SharedArchiveFile={self.path} -XX:+VerifySharedSpaces {_QUIET}"
        if may_make and self._may_make():
            return f"-XX:DumpLoadedClassList={self._classes} {_QUIET}"
        return ""

    def _may_make(self) -> bool:
        """Whether this session is the one whose classes are listed; it then holds the lock."""
        with suppress(OSError):
            age_s = time.time() - Path(f"{self.path}.failed").stat().st_mtime
            if 0 <= age_s < _RETRY_S:
                return False
        try:
            if shutil.disk_usage(self.path.parent).free < _NEEDED_BYTES:
                return False
            lock = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:  # of another user, or the disk is full
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # held, or the file system has no locks
            os.close(lock)
            return False
        self._lock = lock
        return True

    def note_class_path(self, class_path: str) -> None:
        """Note where the JVM found its classes, in its order."""
        self._class_path = class_path

    def make(self, *, complete: bool) -> None:
        """Begin to make the archive if this session listed its classes; its process goes on alone. The list
        of a session that failed is not `complete`: another session makes a better one.
        """
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            if complete and self._class_path and self._classes.exists() and not self.path.exists():
                self._forget_old_archives()
                java = str(self.java.home / "bin" / "java")
                arguments = [java, str(self._classes), str(self.path), self._class_path, _MODULES]
                subprocess.run(
                    ["nice", "-n", "19", "sh", "-c", _MAKE, "sh", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=self.path.parent,
                    start_new_session=True,
                    pass_fds=(lock,),  # held until the archive is there
                    check=False,
                )
        except OSError:
            pass  # an archive only saves time
        finally:
            os.close(lock)

    def _forget_old_archives(self) -> None:
        archives = sorted(
            self.path.parent.glob("spark-classes-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True
        )
        for archive in archives[_MOST_ARCHIVES - 1 :]:
            archive.unlink(missing_ok=True)
