"""`make steady` finds a test whose result depends on the machine, and touches nothing but its own run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ottla.testing import cluster_process
from tests.support.steady import plugin
from tests.support.steady.processes import RUN_VARIABLE, RunProcesses, lives
from tests.support.steady.torments import Confinement, Pause
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SLEEPS = [sys.executable, "-c", "import time; time.sleep(1000)"]
# Notes each time that it goes on after a pause.
NOTICES_PAUSES = """
import signal, sys, time
signal.signal(signal.SIGCONT, lambda *_: open(sys.argv[1], "a").write("paused "))
open(sys.argv[1], "w").write("ready ")
time.sleep(1000)
"""
# It fails as soon as it stands still, which it would not do for a long time on a quiet machine.
RACY = """
import time

def test_racy():
    print("it races")
    deadline = time.monotonic() + 200
    while (now := time.monotonic()) < deadline:
        time.sleep(0.01)
        assert time.monotonic() - now < 0.09, "too slow"

def test_steady():
    time.sleep(0.1)
"""
STEADY = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_steady(n): pass
"""
# It starts a process, and leaves it behind: only its environment says then where it comes from.
STARTER = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""
STARTS_OTHERS = """
import os, pathlib, subprocess, sys, time

def test_it():
    sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
    own = subprocess.Popen(sleeper)
    starter = [sys.executable, "-c", os.environ["STARTER"], *sleeper]
    orphan = subprocess.run(starter, stdout=subprocess.PIPE, text=True, check=True).stdout
    pathlib.Path(os.environ["PIDS"]).write_text(f"{os.getpid()} {own.pid} {orphan}")
    time.sleep(1000)
"""


def steady(
    directory: Path, suite: str, *options: str, workers: str = "0", **environment: str
) -> subprocess.Popen[str]:
    (directory / "test_it.py").write_text(textwrap.dedent(suite))
    command = [sys.executable, "-m", "tests.support.steady", str(directory), "--intensity", "high"]
    command += ["--out", str(directory / "out"), "--workers", workers]
    return subprocess.Popen(
        [*command, *options, "--", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output(tool: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = tool.communicate(timeout=240)
    return tool.returncode, out


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    with subprocess.Popen(SLEEPS) as process:
        yield psutil.Process(process.pid)
        process.kill()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run."""
    (tmp_path / plugin.NOTES).mkdir()
    return tmp_path


@contextlib.contextmanager
def in_a_test(run: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", os.kill)
        patch.setattr(cluster_process, "inspect_process", cluster_process.inspect_process)
        plugin.note_pauses(run)
        plugin.hide_other_pauses(run)
        yield


def stands_still(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def wait_until_still(process: psutil.Process) -> None:
    wait_until(lambda: stands_still(process), f"{process} does not stand still")


def wait_until_it_runs(process: psutil.Process) -> None:
    wait_until(lambda: not stands_still(process), f"{process} stands still")


def state_in_a_test(run: Path, process: psutil.Process) -> str:
    with in_a_test(run):
        found = cluster_process.inspect_process(process.pid)
    assert found is not None
    return found.status


@pytest.mark.exhaustive
def test_a_test_that_depends_on_the_machine_is_found_and_shown(tmp_path: Path) -> None:
    status, out = output(steady(tmp_path, RACY, "--runs", "2", "--seed", "7", workers="2"))
    assert status == 1, out
    assert "test_it.py::test_racy failed in 2 of 2 rounds: 1, 2" in out
    assert "AssertionError: too slow" in out
    assert "it races" in out
    assert "test_steady" not in out
    assert "2 rounds of 2 tests" in out
    (report,) = tmp_path.glob("out/*-seed-7/report.txt")
    assert report.read_text() in out


@pytest.mark.exhaustive
def test_a_steady_test_passes_as_often_as_it_is_asked_for(tmp_path: Path) -> None:
    status, out = output(steady(tmp_path, STEADY, "--runs", "1", "--count", "20"))
    assert status == 0, out
    assert "1 rounds of 2 tests" in out
    assert "all were steady" in out
    (reports,) = tmp_path.glob("out/*/round-1/reports.jsonl")
    assert len(reports.read_text().splitlines()) == 40


@pytest.mark.exhaustive
def test_a_run_that_fails_without_a_test_is_shown(tmp_path: Path) -> None:
    status, out = output(steady(tmp_path, "import no_such_module", "--runs", "1"))
    assert status == 1, out
    assert "No module named 'no_such_module'" in out
    status, out = output(steady(tmp_path, "", "--runs", "1"))
    assert status == 1, out
    assert "there is no such test" in out


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_tool_that_is_ended_leaves_nothing_behind_and_touched_nothing_else(
    tmp_path: Path, number: signal.Signals
) -> None:
    notices, pids = tmp_path / "notices", tmp_path / "pids"
    other = subprocess.Popen([sys.executable, "-c", NOTICES_PAUSES, str(notices)])
    tool = steady(tmp_path, STARTS_OTHERS, "--runs", "1", PIDS=str(pids), STARTER=STARTER)
    try:
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3, "the test does not run", 120)
        started = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        children = psutil.Process(tool.pid).children(recursive=True)
        (torments,) = tmp_path.glob("out/*/round-1/torments.jsonl")

        def struck() -> set[int]:
            done = [json.loads(line) for line in torments.read_text().splitlines()]
            return {pid for each in done if each["torment"].startswith("pause") for pid in each["pids"]}

        # Also the one that says by its environment alone that it belongs to the run.
        wait_until(lambda: {each.pid for each in started} <= struck(), "not all were paused", 200)
        tool.send_signal(number)
        status, out = output(tool)
        assert status == (-number if number == signal.SIGKILL else 128 + number), out

        def left() -> list[psutil.Process]:
            return [each for each in (*started, *children) if lives(each)]

        # What ends by itself once the tool has been killed needs some time for it.
        wait_until(lambda: number != signal.SIGKILL or not left(), "processes are left")
        assert number == signal.SIGKILL or "the last round was cut short" in out
        assert left() == [], out
        assert notices.read_text() == "ready "
        assert other.pid not in struck()
        assert tool.pid not in struck()
    finally:
        for each in (tool, other):
            each.kill()
            each.wait()


def test_processes_of_other_runs_are_not_of_this_one(child: psutil.Process) -> None:
    with subprocess.Popen(SLEEPS, env=os.environ | {RUN_VARIABLE: "/one"}) as one:
        try:
            ours = [child, psutil.Process(one.pid)]
            wait_until(
                lambda: RunProcesses(child, "/one").find() == sorted(ours, key=lambda each: each.pid), ""
            )
            assert RunProcesses(child, "/o").find() == [child]
            assert RunProcesses(child, "/one/two").find() == [child]
        finally:
            one.kill()


class TestPauses:
    def test_a_pause_begins_and_ends_and_a_test_does_not_see_it(
        self, run: Path, child: psutil.Process
    ) -> None:
        pause = Pause(run, [child])
        assert pause.begin() == [child.pid]
        wait_until_still(child)
        assert state_in_a_test(run, child) == "S"
        pause.end()
        wait_until_it_runs(child)

    def test_what_a_test_has_paused_is_left_alone(self, run: Path, child: psutil.Process) -> None:
        with in_a_test(run):
            child.suspend()
        wait_until_still(child)
        assert Pause(run, [child]).begin() == []
        assert state_in_a_test(run, child) == "T"
        child.resume()  # not noted, as in another process of the run
        assert Pause(run, [child]).begin() == []

    def test_what_a_test_pauses_meanwhile_stays_so(self, run: Path, child: psutil.Process) -> None:
        pause = Pause(run, [child])
        pause.begin()
        with in_a_test(run):
            child.suspend()
            pause.end()
            wait_until_still(child)
            child.resume()
        wait_until_it_runs(child)

    def test_what_a_test_resumes_meanwhile_goes_on(self, run: Path, child: psutil.Process) -> None:
        pause = Pause(run, [child])
        pause.begin()
        with in_a_test(run):
            child.suspend()
            child.resume()
        pause.end()
        wait_until_it_runs(child)

    def test_what_has_ended_meanwhile_does_no_harm(self, run: Path, child: psutil.Process) -> None:
        pause = Pause(run, [child])
        pause.begin()
        child.kill()
        child.wait(60)
        pause.end()
        assert Pause(run, [child]).begin() == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a single core")
def test_a_run_gets_its_cores_back_also_what_began_meanwhile(tmp_path: Path) -> None:
    forks = "import subprocess, sys; subprocess.run(sys.argv[1:]) if sys.stdin.readline() else None"
    cores = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", forks, *SLEEPS], stdin=subprocess.PIPE) as first:
        assert first.stdin is not None
        processes = RunProcesses(psutil.Process(first.pid), "/one")
        try:
            confinement = Confinement(processes, min(cores))
            assert confinement.begin() == [first.pid]
            first.stdin.write(b"go\n")
            first.stdin.flush()
            wait_until(lambda: len(processes.find()) == 2, "no second process")
            pids = [each.pid for each in processes.find()]
            assert [os.sched_getaffinity(pid) for pid in pids] == [{min(cores)}] * 2
            confinement.end()
            assert [os.sched_getaffinity(pid) for pid in pids] == [cores] * 2
            assert os.sched_getaffinity(0) == cores
        finally:
            processes.end()
