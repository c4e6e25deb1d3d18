"""Clients made of franz-go: the program in `franz_go/`, built once for a run by the Go of this machine.

Go keeps what it has compiled: the first build takes a minute or two, the next ones a second.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FRANZ_GO_SKIP = "franz-go tests skipped: "
_SOURCE = Path(__file__).parent / "franz_go"
_BUILD_SECONDS = 500
_RUN_SECONDS = 60


class NoFranzGo(Exception):
    """It cannot be had on this machine; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client read, or the error with Kafka's name for it, if it has one."""

    read: tuple[str, ...]
    error: str
    code: str


@dataclass(frozen=True, slots=True)
class FranzGo:
    program: Path

    def run(self, **settings: Any) -> Outcome:
        done = subprocess.run(
            [str(self.program)],
            input=json.dumps({"seconds": _RUN_SECONDS, **settings}),
            capture_output=True,
            text=True,
            timeout=2 * _RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        return Outcome(tuple(answer["read"] or ()), answer["error"], answer["code"])


def build(directory: Path, source: Path = _SOURCE) -> FranzGo:
    """Build a program in a directory; `NoFranzGo` if there is no Go, or no way to the module."""
    go = shutil.which("go")
    if go is None:
        raise NoFranzGo("no `go` on the PATH (install Go, 1.26 or newer)")
    shutil.copytree(source, directory, dirs_exist_ok=True)
    fetched = _run(go, directory, "mod", "download")
    if fetched.returncode != 0:
        raise NoFranzGo(f"Go could not fetch the module: {fetched.stderr.strip()[-300:]}")
    built = _run(go, directory, "build", "-o", "client", ".")
    assert built.returncode == 0, built.stderr
    return FranzGo(directory / "client")


def _run(go: str, directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [go, *args], cwd=directory, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
    )
