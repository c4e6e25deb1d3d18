"""`ottla storage scrub`: names every file of a stopped node that has rotted, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla import blocking
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data directory of a stopped node with some records."""
    with (
        LocalNode(data_dir=str(tmp_path)) as node,
        blocking.Producer(node.bootstrap_servers) as producer,
    ):
        for number in range(20):
            producer.send("orders", b"%02d" % number)
    return tmp_path


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 4
    file.write_bytes(data)


def test_rotten_files_are_named(stopped: Path, offline: CommandLine) -> None:
    directory = str(stopped)
    sound = offline.ok("storage", "scrub", directory, "--json").json
    assert sound["findings"] == []
    assert sound["bytes"] > 1000
    rotten = {
        "segment": (stopped / "orders-0" / f"{0:020}.log", 100),
        "leader epochs": (stopped / "orders-0" / "leader-epoch-checkpoint", 0),
        "quorum state": (stopped / "__cluster_metadata-0" / "quorum-state", 0),
        "checkpoint": (stopped / "recovery-point-offset-checkpoint", 0),
    }
    for file, position in rotten.values():
        flip(file, position)
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    done = offline("storage", "scrub", directory, "--json")
    assert done.status == 1
    found = {each["kind"]: each["path"] for each in done.json["findings"]}
    assert {kind: Path(path) for kind, path in found.items()} == {
        kind: file for kind, (file, _) in rotten.items()
    }
    assert "offset 1) are damaged" in offline("storage", "scrub", directory).out
    assert {file: file.read_bytes() for file in before} == before
