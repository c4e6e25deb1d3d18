"""Data are for the user who runs the node: other users of the machine cannot read them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.cli.main import main
from ottla.client.blocking import Producer
from ottla.node.config.node_config import NodeConfig
from ottla.node.server.storage import open_storage
from ottla.runtime.runtime import Runtime
from ottla.testing.local_node import LocalNode


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def readable_by_others(root: Path) -> list[str]:
    return [str(path) for path in (root, *root.rglob("*")) if path.lstat().st_mode & 0o077]


def test_what_a_node_makes_is_for_its_user(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LocalNode({"log.dirs": str(data)}) as node, Producer(node.bootstrap_servers) as producer:
        producer.send("orders", b"iban=DE89")
    assert any(path.suffix == ".log" for path in data.rglob("*"))
    assert readable_by_others(data) == []


def test_what_is_formatted_is_for_its_user(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (tmp_path / "server.properties").write_text(f"log.dirs={data}\n")
    arguments = ["storage", "format", "-c", str(tmp_path / "server.properties"), "--add-scram"]
    assert main([*arguments, "SCRAM-SHA-512=[name=alice,password=open-sesame]"]) == 0
    assert list(data.iterdir())
    assert readable_by_others(data) == []


def test_a_directory_that_others_may_read_stays_and_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    public, private = tmp_path / "public", tmp_path / "private"
    public.mkdir(mode=0o755)
    private.mkdir(mode=0o750)
    with contextlib.closing(Runtime.real(pool_workers=1)) as runtime, caplog.at_level(logging.WARNING):
        open_storage(runtime, NodeConfig({"log.dirs": f"{public},{private}"})).release()
    assert [str(public) in record.getMessage() for record in caplog.records] == [True]
    assert public.stat().st_mode & 0o777 == 0o755
