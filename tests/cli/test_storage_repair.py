"""`ottla storage repair`: shows what would be lost with a damaged log, and ends it there when asked to."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from ottla import blocking
from ottla.protocol.names import TopicPartition
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine

RECORDS = 20


def read_all(node: LocalNode, count: int) -> list[bytes | None]:
    with blocking.Consumer(node.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        return [record.value for record in itertools.islice(consumer, count)]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The data directory of a stopped node whose log is damaged at offset 10 of 20."""
    with (
        LocalNode(data_dir=str(tmp_path)) as node,
        blocking.Producer(node.bootstrap_servers) as producer,
    ):
        for number in range(RECORDS):
            producer.send("orders", b"%02d" % number)
    log = tmp_path / "orders-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2 + 30] ^= 0xFF
    log.write_bytes(data)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    return tmp_path


def test_what_would_be_lost_is_shown_first_and_then_lost(damaged: Path, offline: CommandLine) -> None:
    directory = str(damaged)
    before = (damaged / "orders-0" / f"{0:020}.log").read_bytes()
    # Until the node has met the damage it is known only to those who look for it.
    assert "no damaged log was found" in offline.ok("storage", "repair", directory).out
    with LocalNode(data_dir=directory):
        info = offline.ok("storage", "info", directory, "--json").json[0]
        assert info["damaged"] == ["orders-0"]
        assert "is in use: stop its node" in offline("storage", "repair", directory, "--apply").err
    assert offline.ok("storage", "info", directory, "--json").json[0]["clean_shutdown"] is True

    (shown,) = offline.ok("storage", "repair", directory, "--json").json
    assert shown["partition"] == "orders-0"
    assert (shown["log_end_offset"], shown["lost_offsets"]) == (10, "10 to 19")
    assert (shown["whole_batches_lost"], shown["repaired"]) == (9, False)
    assert shown["first_timestamp"] is not None
    assert "nothing was changed" in offline.ok("storage", "repair", directory, "--topic", "orders").err
    assert (damaged / "orders-0" / f"{0:020}.log").read_bytes() == before

    (done,) = offline.ok("storage", "repair", directory, "--apply", "--json").json
    assert done["repaired"] is True
    assert (Path(done["kept_in"]) / f"{0:020}.log").read_bytes() == before
    assert "no damaged log was found" in offline.ok("storage", "repair", directory, "--apply").out
    with LocalNode(data_dir=directory) as node:
        assert read_all(node, 10) == [b"%02d" % number for number in range(10)]
        with blocking.Producer(node.bootstrap_servers) as producer:
            assert producer.send("orders", b"goes on").offset == 10
    info = offline.ok("storage", "info", directory, "--json").json[0]
    assert (info["damaged"], len(info["set_aside"])) == ([], 1)


def test_a_directory_that_is_not_a_node_s_is_not_touched(tmp_path: Path, offline: CommandLine) -> None:
    assert "no meta.properties" in offline("storage", "repair", str(tmp_path)).err
    assert list(tmp_path.iterdir()) == []
