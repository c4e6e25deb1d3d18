"""Where rows come from: the inputs of a batch in its decision, and how a record is traced back to them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from ottla.cli.app import run as run_command
from ottla.client.blocking import Admin, Producer
from ottla.protocol.names import TopicPartition
from ottla.spark.pipelines.code_version import code_version
from ottla.spark.pipelines.project import load_project
from ottla.spark.pipelines.template import write_project
from ottla.spark.sink import decision_state, lineage
from ottla.spark.sink.commit_coordinator import CommitCoordinator, UnexpectedBatch
from ottla.spark.sink.decision_state import (
    CommitDecision,
    DecisionRecord,
    DecisionRecordKind,
    TaskTransaction,
)
from ottla.spark.sink.lineage import BatchLineage, InputRange, LineageSource
from ottla.spark.sink.listener import SinkListener
from ottla.spark.sink.task_writer import TaskIdentity, write_transaction
from ottla.spark.sink.trace import NotTraced, trace
from ottla.spark.source.offsets import BEGINS_KEY, IDS_KEY
from ottla.testing.local_node import LocalNode
from tests.support.spark_sink_harness import Query, await_markers, committed_values


def write_offsets(checkpoint: Path, batch: int, *sources: str) -> None:
    file = checkpoint / "offsets" / str(batch)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["v1", '{"batchWatermarkMs":0,"batchTimestampMs":5}', *sources]))


def offsets(**partitions: int) -> str:
    """Offsets of our source: those of topic `t`, with what it keeps beside them."""
    return json.dumps({"t": {name[1:]: value for name, value in partitions.items()}, "@ids": {"t": "abc"}})


class TestInputs:
    def test_a_batch_reads_from_the_end_of_the_last_to_its_own(self, tmp_path: Path) -> None:
        write_offsets(tmp_path, 4, offsets(p0=10, p1=7))
        write_offsets(tmp_path, 5, offsets(p0=15, p1=7, p2=3))
        source = LineageSource("flow", str(tmp_path), "v1")
        found = source.of_batch(5)
        inputs = (InputRange("t", 0, 10, 15), InputRange("t", 2, -1, 3))
        assert found == BatchLineage("flow", "v1", inputs, digest=found.digest)
        assert not found.is_complete  # where partition 2 begins is not known

    def test_the_first_batch_reads_from_where_the_query_began(self, tmp_path: Path) -> None:
        write_offsets(tmp_path, 0, offsets(p0=10, p1=0))
        found = LineageSource("", tmp_path.as_uri()).of_batch(0)
        assert found.inputs == (InputRange("t", 0, -1, 10),)

    def test_our_source_says_where_it_began(self, tmp_path: Path) -> None:
        assert lineage.BEGAN_AT == BEGINS_KEY
        document = {"t": {"0": 10, "1": 4}, IDS_KEY: {"t": "abc"}, BEGINS_KEY: {"t": {"0": 7, "1": 4}}}
        write_offsets(tmp_path, 0, json.dumps(document))
        assert LineageSource("", str(tmp_path)).of_batch(0).inputs == (InputRange("t", 0, 7, 10),)

    def test_a_topic_that_was_created_again_is_read_from_where_the_batch_says(self, tmp_path: Path) -> None:
        write_offsets(tmp_path, 0, json.dumps({"t": {"0": 10}, IDS_KEY: {"t": "abc"}}))
        again = {"t": {"0": 12}, IDS_KEY: {"t": "xyz"}, BEGINS_KEY: {"t": {"0": 2}}}
        write_offsets(tmp_path, 1, json.dumps(again))
        assert LineageSource("", str(tmp_path)).of_batch(1).inputs == (InputRange("t", 0, 2, 12),)

    def test_other_topic_ids_and_positions_in_tables_are_other_inputs(self, tmp_path: Path) -> None:
        source = LineageSource("", str(tmp_path))
        found = []
        for topic_id, position in (("abc", 1), ("xyz", 1), ("abc", 2)):
            write_offsets(tmp_path, 0, '{"logOffset":0}', '{"t":{"0":5},"@ids":{"t":"abc"}}')
            ends = json.dumps({"t": {"0": 7}, lineage.TOPIC_IDS: {"t": topic_id}})
            write_offsets(tmp_path, 1, json.dumps({"logOffset": position}), ends)
            found.append(source.of_batch(1))
        first, other_id, other_position = found
        assert lineage.TOPIC_IDS == IDS_KEY
        assert first.inputs == other_id.inputs == other_position.inputs
        for other in (other_id, other_position):
            assert "other positions" in (first.difference_to(other) or "")

    def test_a_source_that_reads_a_table_is_counted(self, tmp_path: Path) -> None:
        write_offsets(tmp_path, 0, '{"logOffset":0}', offsets(p0=1))
        write_offsets(tmp_path, 1, '{"logOffset":1}', offsets(p0=1))
        found = LineageSource("", str(tmp_path)).of_batch(1)
        assert (found.inputs, found.others) == ((), 1)

    @pytest.mark.parametrize("location", ["s3a://bucket/checkpoint", "", "hdfs://host/checkpoint"])
    def test_a_checkpoint_elsewhere_is_not_known(self, location: str) -> None:
        found = LineageSource("", location).of_batch(1)
        assert found.inputs is None
        assert "not in a directory of the driver" in found.remark

    def test_a_checkpoint_that_is_gone_is_no_error(self, tmp_path: Path) -> None:
        found = LineageSource("", str(tmp_path / "gone")).of_batch(1)
        assert found.inputs is None
        assert "cannot be read" in found.remark

    def test_options_name_the_query_and_the_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTTLA_CODE_VERSION", "git:1")
        given = {"queryname": "f", "checkpointLocation": "/c", "lineageTopic": "lineage", "topic": "out"}
        assert LineageSource.of(given) == LineageSource("f", "/c", "git:1", "lineage", "out")
        assert LineageSource.of({"codeVersion": "2.0"}).code_version == "2.0"


class TestRecords:
    RECORD = DecisionRecord(
        DecisionRecordKind.DECISION,
        "s",
        "r",
        3,
        decision=CommitDecision(
            7,
            (TaskTransaction("id", 1, 2, 3, (("t", 0, 4, 5),)),),
            BatchLineage("flow", "git:1", (InputRange("in", 0, 1, 9),), 1, "", "out", "digest"),
        ),
    )

    def test_lineage_survives_the_log(self) -> None:
        assert DecisionRecord.decode(self.RECORD.encode()) == self.RECORD

    def test_transactions_stay_the_last_field(self) -> None:
        document = json.loads(self.RECORD.encode())
        assert list(document)[-1] == "decision"
        assert list(document["decision"])[-1] == "transactions"

    def test_records_of_earlier_releases_have_none(self) -> None:
        document = json.loads(self.RECORD.encode())
        del document["decision"]["lineage"]
        found = DecisionRecord.decode(json.dumps(document).encode())
        assert found.decision is not None
        assert found.decision.lineage is None


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalNode() as node:
        yield node.bootstrap_servers


class LineageQuery(Query):
    """A query whose batches know their inputs."""

    def __init__(self, bootstrap: str, topic: str, lineage: LineageSource) -> None:
        super().__init__(bootstrap, topic, name=topic)
        self._lineage = lineage

    @property
    def coordinator(self) -> CommitCoordinator:
        return CommitCoordinator(self.client, SinkListener(), self._lineage)


class Dies(SinkListener):
    async def on_batch_decided(self) -> None:
        raise RuntimeError("killed")


def new_query(bootstrap: str, topic: str, checkpoint: Path, *, keep_in: str = "") -> LineageQuery:
    with Admin(bootstrap) as admin:
        admin.topics.create(topic, partitions=1)
    for batch in range(4):
        write_offsets(checkpoint, batch, offsets(p0=10 * (batch + 1)))
    return LineageQuery(bootstrap, topic, LineageSource("flow", str(checkpoint), "v1", keep_in, topic))


class TestTrace:
    def test_each_record_leads_to_its_batch(self, bootstrap: str, tmp_path: Path) -> None:
        query = new_query(bootstrap, "traced", tmp_path)
        for batch in range(3):
            query.batch("r1", batch, [[f"{batch}a"], [f"{batch}b"]])
        committed_values(bootstrap, "traced")
        found = set()
        ends = []  # of the transactions
        for offset in range(12):
            try:
                record = trace(
                    query.client, TopicPartition("traced", 0), offset, [query.options.decision_topic]
                )
            except NotTraced:
                ends.append(offset)
                continue
            assert record.decision.lineage is not None
            found.add((record.decision.batch, record.decision.lineage.inputs))
        assert len(ends) == 6
        starts = [-1, 10, 20]
        assert found == {(n, (InputRange("t", 0, starts[n], 10 * (n + 1)),)) for n in range(3)}

    def test_a_topic_for_lineage_has_all_batches_also_those_of_a_dead_driver(
        self, bootstrap: str, tmp_path: Path
    ) -> None:
        query = new_query(bootstrap, "kept", tmp_path, keep_in="lineage")
        messages = [query.task("r1", 0, 0, ["a"])]
        dying = CommitCoordinator(query.client, Dies(), query._lineage)
        with pytest.raises(RuntimeError, match="killed"):
            query.client.call(dying.commit(messages, 0, streaming=True))
        query.batch("r2", 0, [["a"]])
        committed_values(bootstrap, "kept")  # the end of the transaction is at offset 1
        query.batch("r2", 1, [["b"]])
        committed_values(bootstrap, "kept")
        for offset, batch in ((0, 0), (2, 1)):
            record = trace(query.client, TopicPartition("kept", 0), offset, ["lineage"])
            assert record.decision.batch == batch

    def test_a_record_of_a_batch_with_very_many_ranges_is_traced(
        self, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(decision_state, "MAX_RANGES", 2)
        with Admin(bootstrap) as admin:
            admin.topics.create("wide", partitions=3)
        write_offsets(tmp_path, 0, offsets(p0=10))
        source = LineageSource("flow", str(tmp_path), "v1", "", "wide")
        query = LineageQuery(bootstrap, "wide", source)
        rows = pa.record_batch({"value": ["a", "b", "c"], "partition": pa.array([0, 1, 2], pa.int32())})
        identity = TaskIdentity(query.scope, "r1", 0, 0, 0)
        message = write_transaction(query.options, ("value", "partition"), identity, [rows], SinkListener())
        query.commit([message], 0)
        committed_values(bootstrap, "wide", 3)
        topics = [query.options.decision_topic]
        for partition in range(3):
            found = trace(query.client, TopicPartition("wide", partition), 0, topics)
            assert (found.run, found.decision.batch) == ("r1", 0)
            assert len(found.transaction.written_ranges) == 1

    def test_records_of_others_in_the_decision_topic_are_passed_over(
        self, bootstrap: str, tmp_path: Path
    ) -> None:
        query = new_query(bootstrap, "among-others", tmp_path)
        topic = query.options.decision_topic
        query.client.call(query.client.decision_log.partition(query.scope))
        foreign = TestRecords.RECORD.encode()
        with Producer(bootstrap) as producer:
            for partition in range(16):
                for value in (b"\xff{", b"{}", foreign.replace(b'[["id"', b'[["id",["x"]')):
                    producer.send(topic, value, key=b"s/r", partition=partition)
        query.batch("r1", 0, [["a"]])
        committed_values(bootstrap, "among-others")
        assert trace(query.client, TopicPartition("among-others", 0), 0, [topic]).run == "r1"
        # Nor do they hide the batch writes that their drivers have left.
        message = [query.write_task("w", index, ["b"]) for index in range(2)]
        with pytest.raises(RuntimeError, match="killed"):
            query.client.call(CommitCoordinator(query.client, Dies()).commit(message, 0, streaming=False))
        found = query.client.call(query.client.decision_log.find_abandoned_writes(2**62))
        assert [(scope, run) for scope, run, _ in found] == [(f"{query.scope}-w", "w")]

    def test_what_only_a_claim_repeats_has_no_run_and_no_time(
        self, bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        query = new_query(bootstrap, "claimed", tmp_path)
        query.batch("r1", 0, [["a"]])
        committed_values(bootstrap, "claimed")
        state = query.client.call(query.client.decision_log.read(query.scope))
        claim = state.new_claim("r2", "token")
        query.client.call(query.client.decision_log.append_copy("only-claims", "key", claim))
        found = trace(query.client, TopicPartition("claimed", 0), 0, ["only-claims"])
        assert (found.run, found.decided_ms, found.decision.batch) == ("", None, 0)
        arguments = ["--decision-topic", "only-claims", "-b", bootstrap]
        assert run_command(["trace", "claimed", "0", "0", *arguments]) == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert lines["run"].startswith("not known: the record of the decision is compacted away")
        assert lines["decided"] == "not known"
        # The record of the decision itself is preferred.
        found = trace(
            query.client, TopicPartition("claimed", 0), 0, ["only-claims", query.options.decision_topic]
        )
        assert (found.run, found.decided_ms is None) == ("r1", False)

    def test_a_record_of_an_aborted_transaction_is_not_traced(self, bootstrap: str, tmp_path: Path) -> None:
        query = new_query(bootstrap, "undone", tmp_path)
        message = query.task("r1", 0, 0, ["a"])
        query.batch("r2", 0, [["a"]])
        committed_values(bootstrap, "undone")
        with pytest.raises(NotTraced, match="is of an aborted transaction"):
            trace(query.client, TopicPartition("undone", 0), 0, [query.options.decision_topic])
        found = trace(query.client, TopicPartition("undone", 0), 2, [query.options.decision_topic])
        assert found.run == "r2"
        assert message.rows == 1

    def test_a_record_of_another_writer_is_not_traced(self, bootstrap: str, tmp_path: Path) -> None:
        query = new_query(bootstrap, "plain", tmp_path)
        with Producer(bootstrap) as producer:
            producer.send("plain", b"x")
        with Producer(bootstrap, transactional_id="other") as producer, producer.transaction():
            producer.send("plain", b"y")
        await_markers(bootstrap, "plain")
        for offset, reason in (
            (0, "without a transaction"),
            (1, "no decision names"),
            (9, "no offset 9; it has 0 to 2"),
        ):
            with pytest.raises(NotTraced, match=reason):
                trace(query.client, TopicPartition("plain", 0), offset, [query.options.decision_topic])

    def test_the_command_prints_the_batch(
        self, bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        query = new_query(bootstrap, "shown", tmp_path)
        query.batch("r1", 0, [["a"]])
        committed_values(bootstrap, "shown")  # the end of the transaction is at offset 1
        query.batch("r1", 1, [["b"]])
        committed_values(bootstrap, "shown")
        assert run_command(["trace", "shown", "0", "2", "-b", bootstrap]) == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert (lines["batch"], lines["code"], lines["inputs"]) == ("1", "v1", "t-0  10 to 19")
        assert run_command(["trace", "shown", "0", "2", "--json", "-b", bootstrap]) == 0
        assert json.loads(capsys.readouterr().out)["inputs"] == [
            {"topic": "t", "partition": 0, "start": 10, "end": 20}
        ]
        assert run_command(["trace", "shown", "0", "3", "-b", bootstrap]) == 1
        assert run_command(["trace", "shown", "7", "0", "-b", bootstrap]) == 1
        assert "topic shown has no partition 7" in capsys.readouterr().err

    def test_a_topic_that_is_not_there_is_not_created(
        self, bootstrap: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for arguments in (["not-there", "0", "0"], ["not-there", "0", "0", "--lineage-topic", "no-lineage"]):
            assert run_command(["trace", *arguments, "-b", bootstrap]) == 1
            assert "does not exist" in capsys.readouterr().err
        with Admin(bootstrap) as admin:
            assert not {"not-there", "no-lineage"} & {topic.name for topic in admin.topics.list()}


class TestRepeatedBatches:
    def test_other_inputs_with_as_many_rows_fail(self, bootstrap: str, tmp_path: Path) -> None:
        query = new_query(bootstrap, "restored", tmp_path)
        query.batch("r1", 0, [["a"]])
        query.batch("r2", 0, [["a"]])
        write_offsets(tmp_path, 0, offsets(p0=11))
        with pytest.raises(UnexpectedBatch, match=r"made of t-0 -1\.\.10 then and is of t-0 -1\.\.11 now"):
            query.batch("r3", 0, [["x"]])
        assert committed_values(bootstrap, "restored") == {b"a": 1}

    @pytest.mark.parametrize("rows", [["a"], ["a", "b", "c"], []])
    def test_the_same_inputs_are_the_same_batch_also_if_the_code_gives_other_rows_now(
        self, bootstrap: str, tmp_path: Path, rows: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = f"edited-{len(rows)}"
        query = new_query(bootstrap, topic, tmp_path)
        query.batch("r1", 0, [["first"]])
        query.batch("r1", 1, [["a", "b"]])  # killed before Spark's checkpoint says so
        query.batch("r2", 1, [rows])
        query.batch("r2", 2, [["d"]])
        assert committed_values(bootstrap, topic) == {b"first": 1, b"a": 1, b"b": 1, b"d": 1}
        if rows:
            assert f"with 2 rows, and the same inputs give {len(rows)} now" in caplog.text

    @pytest.mark.parametrize(
        "sources",
        [
            [[offsets(p0=10)], [offsets(p0=20, p1=5)]],  # where partition 1 begins is not known
            [["7", offsets(p0=10)], ["8", offsets(p0=20)]],  # a source that is no topic
            [[offsets(p0=10)], [offsets(p0=10)]],  # no new records, as when a window ends
        ],
    )
    def test_inputs_that_do_not_tell_all_let_the_number_of_rows_count(
        self, bootstrap: str, tmp_path: Path, sources: list[list[str]]
    ) -> None:
        topic = f"incomplete-{abs(hash(str(sources)))}"
        query = new_query(bootstrap, topic, tmp_path)
        for batch, lines in enumerate(sources):
            write_offsets(tmp_path, batch, *lines)
        query.batch("r1", 1, [["a", "b"]])
        query.batch("r2", 1, [["a", "b"]])
        with pytest.raises(UnexpectedBatch, match="it had 2 rows then and has 1 now"):
            query.batch("r3", 1, [["a"]])

    def test_a_table_at_another_position_fails_also_with_as_many_rows(
        self, bootstrap: str, tmp_path: Path
    ) -> None:
        query = new_query(bootstrap, "from-a-table", tmp_path)
        write_offsets(tmp_path, 1, '{"logOffset":1}')
        query.batch("r1", 1, [["a"]])
        write_offsets(tmp_path, 1, '{"logOffset":2}')
        with pytest.raises(UnexpectedBatch, match="its tables were at other positions then"):
            query.batch("r2", 1, [["x"]])

    def test_another_topic_fails(self, bootstrap: str, tmp_path: Path) -> None:
        query = new_query(bootstrap, "first-topic", tmp_path)
        query.batch("r1", 0, [["a"]])
        query._lineage = replace(query._lineage, target="second-topic")
        with pytest.raises(UnexpectedBatch, match="it went to first-topic, not to second-topic"):
            query.batch("r2", 0, [["a"]])

    def test_a_batch_of_dead_letters_only_is_recognised(self, bootstrap: str, tmp_path: Path) -> None:
        query = new_query(bootstrap, "all-dead", tmp_path)
        letter = {"topic": "dead", "key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"x"}]}
        rows = pa.RecordBatch.from_pylist([{"value": "a", "_dead_letter_1": letter}])
        for run in ("r1", "r2"):
            identity = TaskIdentity(query.scope, run, 0, 0, 0)
            message = write_transaction(query.options, ("value",), identity, [rows], SinkListener())
            query.commit([message], 0)
        assert committed_values(bootstrap, "dead") == {b"v": 1}


class TestCodeVersion:
    @pytest.mark.slow
    def test_without_git_it_is_a_digest_of_the_definitions(self, tmp_path: Path) -> None:
        write_project(tmp_path / "shop")
        project = load_project(tmp_path / "shop" / "spark-pipeline.yml")
        before = code_version(project)
        assert before.startswith("files:")
        assert code_version(project) == before
        (tmp_path / "shop" / "transformations" / "turnover.sql").write_text("-- other\n")
        assert code_version(project) != before

    @pytest.mark.slow
    def test_with_git_it_is_the_commit_and_changes_show(self, tmp_path: Path) -> None:
        write_project(tmp_path / "shop")
        project = load_project(tmp_path / "shop" / "spark-pipeline.yml")

        def git(*arguments: str) -> None:
            identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
            subprocess.run(
                ["git", "-C", str(tmp_path / "shop"), *identity, *arguments], check=True, capture_output=True
            )

        git("init")
        git("add", ".")
        git("commit", "-m", "first")
        committed = code_version(project)
        assert committed.startswith("git:")
        assert "+" not in committed
        (tmp_path / "shop" / "transformations" / "turnover.sql").write_text("-- other\n")
        assert code_version(project).startswith(f"{committed}+files:")
