"""The guide's examples run as they stand, but for the address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing.local_node import LocalNode

GUIDE = Path(__file__).parents[2] / "docs" / "clients" / "guide.md"
EXAMPLES = re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python\n(.*?)^```", GUIDE.read_text(), re.S | re.M)


def test_the_guide_has_examples() -> None:
    assert len(EXAMPLES) >= 7


@pytest.mark.slow
@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_runs(title: str, code: str, ottla_for_clients: LocalNode) -> None:
    assert "localhost:9092" in code
    code = code.replace("localhost:9092", ottla_for_clients.bootstrap_servers)
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
