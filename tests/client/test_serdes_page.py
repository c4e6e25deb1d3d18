"""The example of the page docs/clients/serdes.md runs as it stands, but for the addresses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.testing.local_node import LocalNode

PAGE = Path(__file__).parents[2] / "docs" / "clients" / "serdes.md"


@pytest.mark.slow
def test_the_example_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        assert node.schema_registry_url is not None
        code = code.replace("localhost:9092", node.bootstrap_servers)
        code = code.replace("http://127.0.0.1:9644/schema-registry", node.schema_registry_url)
        command = [sys.executable, "-W", "error::ResourceWarning", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert done.stdout.startswith("1 20")
