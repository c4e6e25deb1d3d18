"""`ottla transactions`: listing them, and aborting a hanging one."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tests.support.command_line import CommandLine

WAIT_S = 60.0


def transactional(ottla: CommandLine, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": ottla.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(WAIT_S)
    return producer


@pytest.mark.witness
def test_an_open_transaction_is_listed_described_and_gone_when_it_ends(
    ottla: CommandLine, topic: str
) -> None:
    name = f"writer-{topic}"
    producer = transactional(ottla, name)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=1)
    assert producer.flush(WAIT_S) == 0
    listed = {t["transactional_id"]: t for t in ottla.ok("transactions", "list", "--json").json}
    assert listed[name]["state"] == "Ongoing"
    info = ottla.ok("transactions", "describe", name, "--json").json
    assert info["partitions"] == [{"topic": topic, "partition": 1}]
    assert info["producer_id"] == listed[name]["producer_id"]
    # Its coordinator knows it, so it does not hang, however long it takes.
    assert ottla.ok("transactions", "find-hanging", topic, "--longer-than", "0", "--json").json == []
    producer.commit_transaction(WAIT_S)
    assert name not in ottla.ok("transactions", "list", "--state", "Ongoing").out
    assert name in ottla.ok("transactions", "list", "--pattern", f"writer-{topic}").out


def test_a_transaction_is_aborted_in_its_partition(ottla: CommandLine, topic: str) -> None:
    ottla.ok("produce", topic, "before", "-p", "0")
    producer = transactional(ottla, f"stuck-{topic}")
    producer.begin_transaction()
    producer.produce(topic, b"never seen", partition=0)
    assert producer.flush(WAIT_S) == 0
    read = ("consume", topic, "--from-beginning", "--exit", "--read-committed")
    assert ottla.ok("offsets", topic, "-p", "0", "--read-committed", "--json").json[0]["end"] == 1
    assert ottla("transactions", "abort", f"{topic}:0", "--start-offset", "1").status == 1
    ottla.ok("transactions", "abort", f"{topic}:0", "--start-offset", "1", "--yes")
    assert ottla.ok("offsets", topic, "-p", "0", "--read-committed", "--json").json[0]["end"] == 3
    assert ottla.ok(*read).out == "before\n"
    again = ottla("transactions", "abort", f"{topic}:0", "--start-offset", "1", "--yes")
    assert again.status == 1
    assert "no open transaction begins at offset 1" in again.err


def test_a_mistyped_transactional_id_is_answered_with_a_suggestion(ottla: CommandLine, topic: str) -> None:
    name = f"known-{topic}"
    transactional(ottla, name)
    ended = ottla("transactions", "describe", name[:-1])
    assert ended.status == 1
    assert f"did you mean {name}" in ended.err


def test_a_partition_is_written_as_topic_and_number(offline: CommandLine) -> None:
    ended = offline("transactions", "abort", "orders-0", "--start-offset", "1", "--yes")
    assert ended.status == 2
    assert "TOPIC:PARTITION" in ended.err
