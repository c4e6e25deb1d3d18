"""A run of the tests that hangs where pytest-timeout does not reach ends all the same, and names the test."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CONFTEST = """
from tests.support import limits

limits.GRACE_SECONDS = 2
{more}

def pytest_configure(config):
    config.pluginmanager.register(limits.RunLimits(config))

from tests.conftest import pytest_testnodedown
"""

HANGS_BEHIND_A_FAILURE = """
import time, pytest

@pytest.fixture(scope="session")
def spark():
    yield
    time.sleep(1000)

def test_before(): pass

def test_culprit(spark):
    time.sleep(1000)
"""

HANGS_ON_THE_WAY_OUT = """
import threading, time

def test_culprit():
    threading.Thread(target=time.sleep, args=[1000]).start()
"""

TAKES_LONG = """
import pytest, time

@pytest.mark.parametrize("n", range(4))
def test_culprit(n):
    time.sleep(1000)
"""

ENDS_AT_DIFFERENT_TIMES = """
import pytest, time

@pytest.mark.parametrize("seconds", [0, 50])
def test_it(seconds):
    time.sleep(seconds)
"""


def run(directory: Path, suite: str, *options: str, more: str = "") -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text(CONFTEST.format(more=more))
    (directory / "test_it.py").write_text(textwrap.dedent(suite))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:ottla", *options]
    return subprocess.run(
        [*command, str(directory)],
        cwd=directory,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "options", "more", "told"),
    [
        (
            HANGS_BEHIND_A_FAILURE,
            ["-n", "2", "--timeout", "2"],
            "",
            ["in spark", "crashed while running", "1 passed"],
        ),
        (HANGS_ON_THE_WAY_OUT, ["--timeout", "200"], "limits.LEAVE_SECONDS = 2", ["_shutdown", "1 passed"]),
        (
            TAKES_LONG,
            ["-n", "2", "--timeout", "200"],
            "limits.RUN_SECONDS = 25",
            ["running: test_it.py::test_culprit", "2 failed", "in test_culprit"],
        ),
    ],
    ids=["behind-a-failure", "on-the-way-out", "as-a-whole"],
)
def test_a_run_ends_and_says_where_it_stood(
    tmp_path: Path, suite: str, options: list[str], more: str, told: list[str]
) -> None:
    done = run(tmp_path, suite, *options, more=more)
    shown = done.stdout + done.stderr
    assert done.returncode != 0, shown
    for each in told:
        assert each in shown, shown


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_worker_that_has_no_tests_left_waits_for_the_others(tmp_path: Path) -> None:
    done = run(
        tmp_path, ENDS_AT_DIFFERENT_TIMES, "-n", "2", "--timeout", "200", more="limits.LEAVE_SECONDS = 30"
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert "2 passed" in shown
    assert "Timeout" not in shown
