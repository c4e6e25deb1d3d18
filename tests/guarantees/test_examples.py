"""The examples in `examples/`: each loses, doubles or keeps what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.slow


def run(name: str, deaths: int = 2) -> dict[str, int]:
    """The account at the end of an example."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("a worker died") == deaths
    return {word: int(count) for word, count in re.findall(r"^(\w+) +(\d+)", done.stdout, re.MULTILINE)}


def test_at_most_once_loses_and_never_doubles() -> None:
    account = run("at_most_once")
    assert account["lost"] > 0
    assert account["doubled"] == 0


def test_at_least_once_doubles_and_never_loses() -> None:
    account = run("at_least_once")
    assert account["lost"] == 0
    assert account["doubled"] > 0


def test_exactly_once_does_neither() -> None:
    account = run("exactly_once")
    assert account["lost"] == account["doubled"] == 0
    assert account["aborted"] > 0


def test_a_task_queue_does_each_task_or_sets_it_aside() -> None:
    assert run("task_queue", deaths=0) == {"done": 98, "dead": 2, "left": 0}
