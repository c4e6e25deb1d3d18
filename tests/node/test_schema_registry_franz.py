"""The schema registry of a node, as the registry client of franz-go uses it."""

from __future__ import annotations

import subprocess

import pytest
from tests.support import franz_go

from ottla.testing.local_node import LocalNode


@pytest.mark.slow
def test_schemas_are_registered_found_checked_and_deleted_from_go() -> None:
    try:
        client = franz_go.program(franz_go.REGISTRY_SOURCE)
    except franz_go.NoFranzGo as error:
        pytest.skip(f"{franz_go.FRANZ_GO_SKIP}{error}")
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        assert node.schema_registry_url is not None
        command = [str(client.program), node.schema_registry_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    # A record's frame: the zero byte, the id, the place of the message.
    assert done.stdout.startswith("00")
    assert done.stdout.strip().endswith("0078")
