"""The Makefile builds .venv once, also for makes that start at once, as two demos in two terminals."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

MAKEFILE = Path(__file__).parents[2] / "Makefile"
# In place of Python: it notes what it is asked for, and does nothing of it but `-c`, and a .venv of itself.
PYTHON = """#!/bin/sh
echo "$*" >> "{log}"
case "$*" in
-c*) exec "{python}" "$@" ;;
"-m venv --clear .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
"""


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


def checkout(directory: Path) -> tuple[list[str], Path]:
    """A directory that `make setup` runs in; the command, and what Python was asked for."""
    shutil.copy(MAKEFILE, directory)
    log, python = directory / "log", directory / "python"
    python.write_text(PYTHON.format(log=log, python=sys.executable))
    python.chmod(0o755)
    for name in (
        *("pyproject.toml", "packaging/constraints.txt", "setup.py"),
        "src/ottla/records/_kernel.pyx",
    ):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    return ["make", "setup", f"PYTHON={python}"], log


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="no `make` on the PATH")
def test_several_makes_at_once_build_one_environment(tmp_path: Path) -> None:
    command, log = checkout(tmp_path)

    def asked(what: str) -> int:
        return sum(what in line for line in log.read_text().splitlines()) if log.exists() else 0

    with (tmp_path / "Makefile").open() as lock:
        # None goes on before all have found that there is no .venv.
        fcntl.flock(lock, fcntl.LOCK_EX)
        makes = [subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT) for _ in range(3)]
        try:
            wait_until(lambda: asked("-c import fcntl") == 3, "the makes do not wait", 60)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            statuses = [make.wait(60) for make in makes]
    assert statuses == [0, 0, 0]
    assert asked("-m venv") == asked("--editable") == 1
    assert (tmp_path / ".venv" / ".installed").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="no `make` on the PATH")
def test_a_half_built_environment_is_built_again(tmp_path: Path) -> None:
    """A first run that was killed leaves a Python whose pip cannot be imported."""
    command, log = checkout(tmp_path)
    half_built = tmp_path / ".venv" / "bin" / "python"
    half_built.parent.mkdir(parents=True)
    half_built.write_text("#!/bin/sh\nexit 1\n")
    half_built.chmod(0o755)
    assert subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, check=False, timeout=60).returncode == 0
    assert "-m venv --clear .venv" in log.read_text().splitlines()
