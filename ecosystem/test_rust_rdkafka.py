"""rust-rdkafka produces in transactions, and consumes what is committed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ecosystem.frameworks import ENVIRONMENT

CARGO = shutil.which("cargo")
PROJECT = Path(__file__).parent / "rust_rdkafka"
pytestmark = pytest.mark.skipif(CARGO is None, reason="cargo is not installed (https://rustup.rs)")


@pytest.fixture(scope="module")
def program() -> Path:
    """The program, compiled with the crate's own librdkafka."""
    target = ENVIRONMENT / "rust"
    # Its lock file is not kept with the sources.
    shutil.copytree(PROJECT, target, dirs_exist_ok=True)
    assert CARGO is not None
    fetched = subprocess.run([CARGO, "fetch"], cwd=target, capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(f"the crate rdkafka cannot be had: {fetched.stderr.strip().splitlines()[-1]}")
    environment = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
    subprocess.run([CARGO, "build", "-q"], cwd=target, env=environment, check=True, timeout=1800)
    return target / "target" / "debug" / "rust-rdkafka-transactions"


def test_aborted_transactions_are_not_read(servers: str, program: Path) -> None:
    done = subprocess.run(
        [program, servers, "rust"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = [f"{round}.{number}" for round in range(0, 10, 2) for number in range(10)]
    assert sorted(done.stdout.split()) == sorted(expected)
