"""kcat, where it is installed: the first thing many people point at a broker."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from ottla.testing.local_node import LocalNode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed"),
]

DEADLINE_SECONDS = 120


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode({"num.partitions": 2}) as node:
        yield node


def kcat(node: LocalNode, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", node.bootstrap_servers, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_written_is_read(node: LocalNode, codec: str) -> None:
    topic = f"kcat-{codec}"
    lines = [f"key{n}:value {n}" for n in range(50)]
    kcat(node, "-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, stdin="\n".join(lines) + "\n")
    output = kcat(node, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%k:%s\\n")
    assert output.splitlines() == lines


def test_headers_and_offsets_are_shown(node: LocalNode) -> None:
    kcat(node, "-P", "-t", "headers", "-p", "1", "-H", "colour=red", stdin="1\n2\n3\n")
    output = kcat(node, "-C", "-t", "headers", "-p", "1", "-o", "-1", "-e", "-q", "-f", "%o %h %s\\n")
    assert output == "2 colour=red 3\n"


def test_metadata_and_offsets_by_time(node: LocalNode) -> None:
    kcat(node, "-P", "-t", "listed", "-p", "0", stdin="1\n2\n")
    listed = json.loads(kcat(node, "-L", "-J", "-t", "listed"))
    (topic,) = listed["topics"]
    assert [(each["partition"], each["leader"]) for each in topic["partitions"]] == [(0, 1), (1, 1)]
    assert "offset 2" in kcat(node, "-Q", "-t", "listed:0:-1")
    assert "offset 0" in kcat(node, "-Q", "-t", "listed:0:-2")


def test_a_group_reads_on_where_it_stopped(node: LocalNode) -> None:
    kcat(node, "-P", "-t", "grouped", "-p", "0", stdin="1\n2\n")
    consume = ("-q", "-e", "-X", "auto.offset.reset=earliest", "-G", "kcat-group", "grouped")
    assert sorted(kcat(node, *consume).split()) == ["1", "2"]
    kcat(node, "-P", "-t", "grouped", "-p", "0", stdin="3\n")
    assert kcat(node, *consume).split() == ["3"]
