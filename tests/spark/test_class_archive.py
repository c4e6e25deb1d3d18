"""An archive of Spark's classes: made once, by one session, in the background; used when it is there."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.spark.class_archive import ClassArchive
from ottla.spark.java import Java, find_java
from tests.support.waiting import wait_until

DEADLINE_S = 120.0


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """The archive for this machine's Java and a Spark without jars."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OTTLA_SPARK_ARCHIVE", raising=False)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    # On a busy machine a process of the lowest priority would not be done in time.
    (programs := tmp_path / "programs").mkdir()
    (programs / "nice").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (programs / "nice").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return ClassArchive(find_java(), tmp_path / "spark")


def run_java(archive: ClassArchive, options: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [
        archive.java.home / "bin" / "java",
        "--add-modules=jdk.incubator.vector",
        *options.split(),
        *more,
    ]
    class_path = archive.spark_home / "jars"
    return subprocess.run(
        [*command, "-cp", class_path, "-version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


@pytest.mark.slow
def test_one_session_lists_its_classes_and_later_ones_use_the_archive(archive: ClassArchive) -> None:
    first = archive.options(may_make=True)
    assert "-XX:DumpLoadedClassList=" in first
    other = ClassArchive(archive.java, archive.spark_home)
    assert other.options(may_make=True) == ""
    assert run_java(archive, first).returncode == 0
    archive.note_class_path(str(archive.spark_home / "jars"))
    archive.make(complete=True)
    wait_until(archive.path.exists, "no archive was made", DEADLINE_S)
    options = other.options()
    assert f"-XX:SharedArchiveFile={archive.path}" in options
    # It fails where the archive cannot be mapped.
    ran = run_java(archive, options, "-Xshare:on")
    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.slow
def test_a_session_that_fails_leaves_it_to_the_next(archive: ClassArchive) -> None:
    assert run_java(archive, archive.options(may_make=True)).returncode == 0
    archive.note_class_path(str(archive.spark_home / "jars"))
    archive.make(complete=False)
    assert not archive.path.exists()
    assert "-XX:DumpLoadedClassList=" in ClassArchive(archive.java, archive.spark_home).options(may_make=True)


@pytest.mark.slow
def test_a_java_that_makes_no_archive_is_asked_once(archive: ClassArchive, tmp_path: Path) -> None:
    (home := tmp_path / "java" / "bin").mkdir(parents=True)
    (home / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "java").chmod(0o755)
    poor = ClassArchive(replace(archive.java, home=tmp_path / "java"), archive.spark_home)
    listed = poor.options(may_make=True).partition("-XX:DumpLoadedClassList=")[2].split()[0]
    Path(listed).write_text("java/lang/Object id: 0\n")
    poor.note_class_path("jars")
    poor.make(complete=True)
    wait_until(lambda: not Path(listed).exists(), "the list of classes is still there", DEADLINE_S)
    assert ClassArchive(poor.java, poor.spark_home).options(may_make=True) == ""


@pytest.mark.slow
def test_after_a_day_an_archive_is_tried_again(archive: ClassArchive) -> None:
    (failed := Path(f"{archive.path}.failed")).touch()
    assert archive.options(may_make=True) == ""
    day_before = time.time() - 24 * 3600 - 1
    os.utime(failed, (day_before, day_before))
    assert run_java(archive, archive.options(may_make=True)).returncode == 0
    archive.note_class_path(str(archive.spark_home / "jars"))
    archive.make(complete=True)
    wait_until(archive.path.exists, "no archive was made", DEADLINE_S)
    wait_until(lambda: not failed.exists(), "the mark of the failure is still there", DEADLINE_S)


def test_a_failure_from_the_future_does_not_count(archive: ClassArchive) -> None:
    """The clock was set back: this would last for longer than a day."""
    (failed := Path(f"{archive.path}.failed")).touch()
    next_week = time.time() + 7 * 24 * 3600
    os.utime(failed, (next_week, next_week))
    assert "-XX:DumpLoadedClassList=" in archive.options(may_make=True)


def test_another_java_or_spark_is_tried_at_once(archive: ClassArchive, tmp_path: Path) -> None:
    Path(f"{archive.path}.failed").touch()
    (archive.spark_home / "jars" / "spark-core_2.13-4.3.1.jar").write_bytes(b"of the next version")
    spark = ClassArchive(archive.java, archive.spark_home)
    assert "-XX:DumpLoadedClassList=" in spark.options(may_make=True)
    Path(f"{spark.path}.failed").touch()
    (tmp_path / "java").mkdir()
    java = replace(archive.java, home=tmp_path / "java")
    assert "-XX:DumpLoadedClassList=" in ClassArchive(java, archive.spark_home).options(may_make=True)


def test_it_can_be_turned_off(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_SPARK_ARCHIVE", "0")
    assert archive.options(may_make=True) == ""


@pytest.mark.parametrize("name", ["with space", "it's", 'a"b', "a\\b"])
def test_a_path_that_spark_would_split_or_unquote_has_no_archive(
    archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    assert ClassArchive(archive.java, archive.spark_home).options(may_make=True) == ""


def test_a_lock_that_cannot_be_had_leaves_the_session_without(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lock := Path(f"{archive.path}.lock")).mkdir()  # as one of another user, which root could open
    assert archive.options(may_make=True) == ""
    lock.rmdir()

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert archive.options(may_make=True) == ""


@pytest.mark.slow
def test_a_damaged_archive_is_ignored(archive: ClassArchive) -> None:
    assert run_java(archive, archive.options(may_make=True)).returncode == 0
    archive.note_class_path(str(archive.spark_home / "jars"))
    archive.make(complete=True)
    wait_until(archive.path.exists, "no archive was made", DEADLINE_S)
    data = bytearray(archive.path.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 65536] = bytes(65536)
    archive.path.unlink()
    archive.path.write_bytes(data)
    ran = run_java(archive, archive.options())
    assert (ran.returncode, ran.stdout) == (0, "")


def test_another_java_or_another_spark_has_an_archive_of_its_own(
    archive: ClassArchive, tmp_path: Path
) -> None:
    paths = {archive.path, ClassArchive(Java(tmp_path, 17, "PATH"), archive.spark_home).path}
    paths.add(ClassArchive(archive.java, tmp_path / "elsewhere").path)
    (archive.spark_home / "jars" / "more.jar").touch()
    paths.add(ClassArchive(archive.java, archive.spark_home).path)
    assert len(paths) == 4
