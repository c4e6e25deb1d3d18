"""`ottla perf`: measurements on few records."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ottla.cli.perf import Latencies
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until


@pytest.mark.witness
def test_produce_and_consume_count_the_same_records(ottla: CommandLine, topic: str) -> None:
    sent = ottla.ok("perf", "produce", topic, "-n", "5000", "-s", "50", "-z", "lz4", "--json").json
    assert sent["records"] == 5000
    assert sent["records_per_second"] > 0
    assert sent["p50_ms"] <= sent["p99_ms"] <= sent["max_ms"]
    assert sum(row["records"] for row in ottla.ok("offsets", topic, "--json").json) == 5000
    read = ottla.ok("perf", "consume", topic, "--json").json
    assert read["records"] == 5000
    assert "records per second" in ottla.ok("perf", "consume", topic, "-n", "10").out


def test_a_rate_is_kept(ottla: CommandLine, topic: str) -> None:
    sent = ottla.ok("perf", "produce", topic, "-n", "300", "--throughput", "1000", "--json").json
    assert sent["seconds"] > 0.25


def test_every_record_makes_its_way_to_a_consumer(ottla: CommandLine, topic: str) -> None:
    measured = ottla.ok("perf", "latency", topic, "-n", "20", "--json").json
    assert measured["records"] == 20
    assert 0 < measured["p50_ms"] <= measured["max_ms"]


def test_a_topic_is_created_only_where_that_was_asked_for(ottla: CommandLine, topic: str) -> None:
    for command in (["produce"], ["latency"]):
        name = f"{topic}-{command[0]}"
        missing = ottla("perf", *command, name, "-n", "1")
        assert missing.status == 1
        assert missing.err.endswith("use --create to create it\n")
        ottla.ok("perf", *command, name, "-n", "1", "--create")
        assert ottla.ok("offsets", name).rows[0][4] == "1"


def test_settings_of_the_client_are_passed_on(ottla: CommandLine, topic: str) -> None:
    ottla.ok("perf", "produce", topic, "-n", "10", "--set", "linger.ms=0", "--set", "batch.size=1000")
    ended = ottla("perf", "produce", topic, "-n", "10", "--set", "no.such.setting=1")
    assert ended.status == 2
    empty = ottla("perf", "consume", topic, "--set", "no.such.setting=1")
    assert empty.status == 2


@pytest.mark.slow
def test_ctrl_c_shows_what_was_measured(node_for_commands: LocalNode) -> None:
    servers = node_for_commands.bootstrap_servers
    ottla = CommandLine(servers)
    ottla.ok("topics", "create", "until-ctrl-c")
    command = [sys.executable, "-m", "ottla", "perf", "produce", "until-ctrl-c", "--throughput", "200"]
    process = subprocess.Popen([*command, "-b", servers], stdout=subprocess.PIPE, text=True)
    wait_until(
        lambda: ottla.ok("offsets", "until-ctrl-c", "--json").json[0]["records"] > 20, "nothing is produced"
    )
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in out
    assert "p99 ms" in out


def test_percentiles_are_of_all_samples() -> None:
    latencies = Latencies()
    assert latencies.summary() == {}
    for milliseconds in range(1, 1001):
        latencies.add(milliseconds * 1_000_000)
    summary = latencies.summary()
    assert summary["p50_ms"] == 501
    assert summary["p99_ms"] == 991
    assert summary["max_ms"] == 1000
    assert summary["mean_ms"] == 500.5
