"""Clients made of franz-go: the programs in `franz_go/` and `franz_go_registry/`, built once per checkout by
the Go of this machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FRANZ_GO_SKIP = "franz-go tests skipped: "
SOURCE = Path(__file__).parent / "franz_go"
REGISTRY_SOURCE = Path(__file__).parent / "franz_go_registry"
_BUILD = Path(__file__).resolve().parents[2] / "build"
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


def program(source: Path = SOURCE) -> FranzGo:
    """A program, which is built if it is not there yet; `NoFranzGo` where it cannot be."""
    go = shutil.which("go")
    if go is None:
        raise NoFranzGo("no `go` on the PATH (install Go, 1.26 or newer)")
    sources = sorted(source.iterdir())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    directory = _BUILD / f"franz-go-{digest}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not (directory / "client").exists():
            _build(go, source, directory)
    return FranzGo(directory / "client")


def _build(go: str, source: Path, directory: Path) -> None:
    shutil.copytree(source, directory, dirs_exist_ok=True)
    fetched = _run(go, directory, "mod", "download")
    if fetched.returncode != 0:
        raise NoFranzGo(f"Go could not fetch the module: {fetched.stderr.strip()[-300:]}")
    built = _run(go, directory, "build", "-o", "staged", ".")
    assert built.returncode == 0, built.stderr
    (directory / "staged").rename(directory / "client")


def _run(go: str, directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [go, *args], cwd=directory, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
    )
