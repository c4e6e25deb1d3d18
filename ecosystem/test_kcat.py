"""kcat produces, consumes and lists."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed (Debian: kcat)")


def kcat(servers: str, *options: str, given: str | None = None) -> str:
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", servers, *options], input=given, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_produced_is_consumed_with_keys_and_headers(servers: str) -> None:
    kcat(servers, "-P", "-t", "lines", "-K", ":", "-H", "source=test", "-z", "zstd", given="a:1\nb:2\nc:3\n")
    read = kcat(servers, "-C", "-t", "lines", "-o", "beginning", "-e", "-q", "-f", "%k=%s %h\n")
    assert sorted(read.splitlines()) == ["a=1 source=test", "b=2 source=test", "c=3 source=test"]


def test_a_group_goes_on_where_it_was(servers: str) -> None:
    kcat(servers, "-P", "-t", "groups", given="1\n2\n")
    options = ("-X", "auto.offset.reset=earliest", "-G", "kcat-group", "-e", "-q", "groups")
    assert sorted(kcat(servers, *options).split()) == ["1", "2"]
    kcat(servers, "-P", "-t", "groups", given="3\n")
    assert kcat(servers, *options).split() == ["3"]


def test_the_metadata_of_the_cluster_are_listed(servers: str) -> None:
    kcat(servers, "-P", "-t", "listed", given="1\n")
    listed = json.loads(kcat(servers, "-L", "-J"))
    assert "listed" in {topic["topic"] for topic in listed["topics"]}
