"""`ottla log dump` and `ottla storage`: on files, without a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.testing.local_node import LocalNode
from tests.support.apache_kafka import ApacheKafka
from tests.support.command_line import CommandLine
from tests.support.committing import commit_offsets


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped node with a little of everything."""
    directory = tmp_path_factory.mktemp("data")
    with LocalNode(data_dir=str(directory)) as node:
        online = CommandLine(node.bootstrap_servers)
        online.ok("topics", "create", "orders", "-p", "1", "-c", "retention.ms=1000000000")
        online.ok("produce", "orders", "first", "-k", "key", "-H", "source=test", "-z", "zstd")
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, "transactional.id": "writer"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("orders", b"aborted")
        assert producer.flush(60) == 0
        producer.abort_transaction(60)
        consumer = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "readers"})
        commit_offsets(consumer, [TopicPartition("orders", 0, 1)])
        consumer.close()
    return directory


@pytest.fixture
def ottla() -> CommandLine:
    return CommandLine("127.0.0.1:1")


def rows(ottla: CommandLine, *arguments: str) -> list[dict[str, object]]:
    return ottla.ok("log", "dump", "--json", *arguments).json_lines


def test_batches_and_records_of_a_segment(ottla: CommandLine, data: Path) -> None:
    found = rows(ottla, "--records", str(data / "orders-0" / "00000000000000000000.log"))
    batches = [row for row in found if row["kind"] == "batch"]
    assert [(b["baseOffset"], b["isTransactional"], b["isControl"]) for b in batches] == [
        (0, False, False),
        (1, True, False),
        (2, True, True),
    ]
    assert batches[0]["compresscodec"] == "zstd"
    assert all(batch["isvalid"] for batch in batches)
    records = [row for row in found if row["kind"] == "record"]
    assert records[0]["key"] == "key"
    assert records[0]["value"] == "first"
    assert records[0]["headers"] == [{"key": "source", "value": "test"}]
    assert records[2]["control"] == {"type": "ABORT", "coordinatorEpoch": 0}


def test_the_text_has_the_names_of_kafkas_tool(ottla: CommandLine, data: Path) -> None:
    text = ottla.ok("log", "dump", "-r", str(data / "orders-0" / "00000000000000000000.log")).out
    assert "baseOffset: 0 lastOffset: 0 count: 1 " in text
    assert "isvalid: true" in text
    assert "| offset: 0 " in text
    assert "headerKeys: [source] key: key value: first" in text


def test_metadata_records_are_decoded(ottla: CommandLine, data: Path) -> None:
    found = rows(ottla, "-r", str(data / "__cluster_metadata-0"))
    decoded = [row["decoded"]["value"] for row in found if "decoded" in row]  # type: ignore[index]
    topics = [d["data"]["name"] for d in decoded if d["type"] == "TopicRecord"]
    assert "orders" in topics
    assert any(row.get("control", {}).get("type") == "LEADER_CHANGE" for row in found)  # type: ignore[attr-defined]


def test_committed_offsets_and_transactions_are_decoded(ottla: CommandLine, data: Path) -> None:
    offsets = [r for d in sorted(data.glob("__consumer_offsets-*")) for r in rows(ottla, "-r", str(d))]
    commits = [r["decoded"] for r in offsets if "OffsetCommitKey" in json.dumps(r)]
    assert commits[-1]["key"]["data"] == {"group": "readers", "topic": "orders", "partition": 0}  # type: ignore[index]
    assert commits[-1]["value"]["data"]["offset"] == 1  # type: ignore[index]
    states = [r for d in sorted(data.glob("__transaction_state-*")) for r in rows(ottla, "-r", str(d))]
    keys = {r["decoded"]["key"]["data"]["transactionalId"] for r in states if "decoded" in r}  # type: ignore[index]
    assert keys == {"writer"}


def test_checkpoints_and_properties_are_shown(ottla: CommandLine, data: Path) -> None:
    (epoch,) = rows(ottla, str(data / "orders-0" / "leader-epoch-checkpoint"))
    assert (epoch["leaderEpoch"], epoch["startOffset"]) == (0, 0)
    (meta,) = rows(ottla, str(data / "meta.properties"))
    assert meta["node.id"] == "1"


def test_an_aborted_transaction_is_in_its_index(ottla: CommandLine, data: Path) -> None:
    (entry,) = rows(ottla, str(data / "orders-0" / "00000000000000000000.txnindex"))
    assert (entry["firstOffset"], entry["lastOffset"]) == (1, 2)


def test_what_is_damaged_is_reported_and_the_rest_shown(
    ottla: CommandLine, data: Path, tmp_path: Path
) -> None:
    whole = (data / "orders-0" / "00000000000000000000.log").read_bytes()
    broken = tmp_path / "orders-0" / "00000000000000000000.log"
    broken.parent.mkdir()
    broken.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:-3])
    ended = ottla("log", "dump", str(broken))
    assert ended.status == 1
    assert "its checksum does not match" in ended.err
    assert "it is torn" in ended.err
    assert "baseOffset: 1 " in ended.out
    broken.write_bytes(b"\x7f" * 200)
    assert "no batch begins" in ottla("log", "dump", str(broken)).err


def test_an_index_is_compared_with_its_log(ottla: CommandLine, data: Path, tmp_path: Path) -> None:
    partition = tmp_path / "orders-0"
    partition.mkdir()
    log = (data / "orders-0" / "00000000000000000000.log").read_bytes()
    (partition / "00000000000000000000.log").write_bytes(log)
    index = partition / "00000000000000000000.index"
    index.write_bytes((0).to_bytes(4, "big") + (0).to_bytes(4, "big"))
    assert ottla("log", "dump", "--verify", str(index)).status == 0
    index.write_bytes((1).to_bytes(4, "big") + (3).to_bytes(4, "big"))
    ended = ottla("log", "dump", "--verify", str(index))
    assert ended.status == 1
    assert "names position 3, where no batch begins" in ended.err
    times = partition / "00000000000000000000.timeindex"
    times.write_bytes((5).to_bytes(8, "big") + (2).to_bytes(4, "big"))
    assert "up to it a record has" in ottla("log", "dump", "--verify", str(times)).err


def test_a_file_of_no_known_kind_is_refused(ottla: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert ottla("log", "dump", str(tmp_path / "notes.txt")).status == 1
    assert ottla("log", "dump", str(tmp_path)).status == 1
    assert ottla("log", "dump", str(tmp_path / "missing")).status == 2


@pytest.mark.kafka
def test_what_apache_kafka_wrote_is_read(apache_kafka: ApacheKafka, ottla: CommandLine) -> None:
    online = CommandLine(apache_kafka.bootstrap)
    online.ok("topics", "create", "dumped", "-p", "1")
    online.ok("produce", "dumped", "value", "-k", "key")
    found = rows(ottla, "-r", str(apache_kafka.partition_dir("dumped")))
    assert [row["value"] for row in found if row["kind"] == "record"] == ["value"]
    metadata = rows(ottla, "-r", str(apache_kafka.data_dir / "__cluster_metadata-0"))
    assert not [row for row in metadata if row["kind"] == "problem"]
    assert "dumped" in json.dumps(metadata)


def test_storage_says_whose_a_directory_is(ottla: CommandLine, data: Path, tmp_path: Path) -> None:
    (facts,) = ottla.ok("storage", "info", str(data), "--json").json
    assert facts["formatted"] is True
    assert facts["node_id"] == 1
    assert facts["partitions"] >= 2
    assert facts["size_bytes"] > 0
    assert facts["clean_shutdown"] is True
    fresh = ottla("storage", "info", str(tmp_path))
    assert fresh.status == 1
    assert "not formatted" in fresh.out


def test_a_formatted_directory_starts_with_the_chosen_cluster(ottla: CommandLine, tmp_path: Path) -> None:
    chosen = "c29tZS1jbHVzdGVyLWlkLQ"
    directory = str(tmp_path / "data")
    ottla.ok("storage", "format", directory, "--cluster-id", chosen, "--release-version", "4.1")
    twice = ottla("storage", "format", directory)
    assert twice.status == 1
    assert "already formatted" in twice.err
    ottla.ok("storage", "format", directory, "--ignore-formatted")
    with LocalNode(data_dir=directory) as node:
        online = CommandLine(node.bootstrap_servers)
        assert online.ok("cluster", "describe", "--json").json["cluster_id"] == chosen
        features = {f["feature"]: f["level"] for f in online.ok("cluster", "features", "--json").json}
        assert features["metadata.version"] == 27


@pytest.mark.parametrize(
    "option", [["--cluster-id", "short"], ["--release-version", "0.9"], ["--node-id", "-1"]]
)
def test_a_bad_format_writes_nothing(ottla: CommandLine, tmp_path: Path, option: list[str]) -> None:
    assert ottla("storage", "format", str(tmp_path / "data"), *option).status == 2
    assert not (tmp_path / "data").exists()


def test_a_directory_with_something_else_is_not_formatted(ottla: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    ended = ottla("storage", "format", str(tmp_path))
    assert ended.status == 1
    assert "photo.jpg" in ended.err
