"""`ottla pipeline replay`: run a project again over just the records that made one batch, into a side topic.

The records are copied to a node of its own, with their partitions, keys, headers and times, and the pipeline
runs there as it is now, with empty tables and checkpoints. What it writes to the topic of the record is
copied to the side topic. Neither the project's tables and checkpoints nor the topic itself are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from ottla.cli.command_config import connect_to
from ottla.cli.commands import Argument, Option
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.options import DEFAULT_BOOTSTRAP_SERVERS, named_values
from ottla.cli.output import note
from ottla.cli.pipeline_options import (
    DEFAULT_MASTER,
    Brokers,
    Environment,
    Master,
    ProjectPath,
    Settings,
    Verbose,
    brokers_of,
    naming_full_disks,
    project_of,
)
from ottla.cli.pipeline_test import new_node, refuse_own_catalog, test_log
from ottla.cli.session import cli_error, terminable
from ottla.cli.trace import DecisionTopic, LineageTopic, find_record

if TYPE_CHECKING:
    from ottla.spark.pipelines.project import Project
    from ottla.spark.sink.lineage import InputRange
    from ottla.spark.sink.trace import TracedRecord


def replay(
    topic: Annotated[str, Argument(metavar="TOPIC", help="The topic of a record that a flow has written.")],
    partition: Annotated[int, Argument(metavar="PARTITION", help="Its partition.")],
    offset: Annotated[int, Argument(metavar="OFFSET", help="Its offset.")],
    into: Annotated[str, Option("--into", metavar="TOPIC", help="Where the records go that are made now.")],
    project: ProjectPath = ".",
    bootstrap: Brokers = None,
    lineage_topic: LineageTopic = None,
    decision_topic: DecisionTopic = None,
    master: Master = DEFAULT_MASTER,
    environment: Environment = None,
    settings: Settings = None,
    verbose: Verbose = False,
) -> None:
    """Run the pipeline again over the records that made the batch of one record, into a side topic.

    It runs the definitions as they are now, on a node of its own and with empty tables, so that a fix can be
    tried on the very records that went wrong.
    """
    from ottla.protocol.errors import KafkaError
    from ottla.spark.java import NoJava
    from ottla.spark.pipelines.project import ProjectError
    from ottla.spark.pipelines.runner import RunFailed
    from ottla.spark.pipelines.testing.pipeline_under_test import UnexpectedRows
    from ottla.spark.session import NoSpark

    if into == topic:
        raise WrongUsage("--into must be another topic than the one of the record")
    found = project_of(project, environment)
    conf = named_values("--conf", settings or ())
    servers = brokers_of(found, bootstrap) or found.bootstrap_servers or DEFAULT_BOOTSTRAP_SERVERS
    traced = find_record(servers, topic, partition, offset, lineage_topic, decision_topic)
    try:
        refuse_own_catalog(found, conf)
        with (
            naming_full_disks(Path(gettempdir()), f"nothing was written to {into}"),
            terminable(),
            TemporaryDirectory(prefix="ottla-replay-") as root,
        ):
            made = _Replay(found, servers, traced, Path(root), master, conf).run(verbose=verbose)
            _create(connect_to(servers), {into: made.partitions})
            had_records = _send(connect_to(servers), into, made.records)
    except (ProjectError, NoJava, NoSpark, RunFailed, UnexpectedRows) as error:
        raise CliError(str(error)) from None
    except KafkaError as error:
        raise cli_error(error) from None
    note(f"{len(made.records)} records into {into}{', which had records before' * had_records}")


class _Results(NamedTuple):
    """What a replay has made, and how many partitions its topic has."""

    records: Sequence[Any]
    partitions: int


class _Replay(NamedTuple):
    """The run of a project over the inputs of one batch, in a directory of its own."""

    project: Project
    servers: str
    traced: TracedRecord
    root: Path
    master: str
    conf: dict[str, str]

    def run(self, *, verbose: bool) -> _Results:
        from ottla.spark.pipelines.project import BOOTSTRAP, CREATE_TOPICS, topics_to_create
        from ottla.spark.pipelines.testing.pipeline_under_test import PipelineUnderTest
        from ottla.spark.pipelines.testing.warm_run import CaseDirectories, WarmSession
        from ottla.spark.session import connect_session

        inputs, topic = _inputs(self.traced), self.traced.partition.topic
        settings = {"spark.sql.warehouse.dir": str(self.root / "spark-warehouse"), **self.conf}
        name = self.project.name
        with new_node() as local:
            wanted = topics_to_create(self.project.configuration.get(CREATE_TOPICS, ""))
            source = connect_to(self.servers)
            existing = _partition_counts(source, {topic, *(each.topic for each in inputs)})
            _create({"bootstrap.servers": local}, {**wanted, **existing})
            copied = _copy_inputs(source, local, inputs)
            note(f"batch {self.traced.decision.batch}: {copied} records of {_names(inputs)}")
            with (
                test_log(self.project, verbose=verbose) as log,
                connect_session(self.master, name=name, conf=settings, log=log, short=True) as started,
            ):
                spark, context = started
                session = WarmSession(spark, context, log)
                configuration = {**self.project.configuration, BOOTSTRAP: local}
                session.run(self.project, CaseDirectories(self.root), configuration)
                pipeline = PipelineUnderTest(local, lambda: None, session.rows)
                return _Results(pipeline.read_topic(topic), existing[topic])


def _inputs(traced: TracedRecord) -> Sequence[InputRange]:
    """The inputs of the batch, or the reason why it cannot be run again."""
    lineage = traced.decision.lineage
    where = f"batch {traced.decision.batch}"
    if lineage is None:
        raise CliError(f"the inputs of {where} are not known: an earlier release of the sink has written it")
    if lineage.inputs is None:
        raise CliError(f"the inputs of {where} are not known: {lineage.remark}")
    if lineage.others:
        raise CliError(
            f"{where} of {lineage.flow or 'this query'} reads a table, which has no offsets; "
            "records of flows that read topics can be run again"
        )
    if not lineage.inputs:
        raise CliError(f"{where} has read no records")
    return lineage.inputs


def _names(inputs: Iterable[InputRange]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}" for each in inputs)


def _partition_counts(client: Mapping[str, str], topics: set[str]) -> dict[str, int]:
    from ottla.client.blocking import Admin

    with Admin(client) as admin:
        known = {info.name: len(info.partitions) for info in admin.topics.list()}
    if missing := sorted(topics - known.keys()):
        raise CliError(f"topic {missing[0]} does not exist any more")
    return {name: known[name] for name in topics}


def _create(client: Mapping[str, str], counts: Mapping[str, int]) -> None:
    from ottla.client.blocking import Admin

    with Admin(client) as admin:
        known = {info.name for info in admin.topics.list()}
        for name, partitions in counts.items():
            if name not in known:
                admin.topics.create(name, partitions=partitions)


def _copy_inputs(source: Mapping[str, str], target: str, inputs: Sequence[InputRange]) -> int:
    """Copy the records to the node of the replay; how many they were."""
    from ottla.client.blocking import Consumer, Producer
    from ottla.protocol.names import TopicPartition

    copied = 0
    reader: Consumer[bytes, bytes] = Consumer(
        source, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    with reader as consumer, Producer(target) as producer:
        ends = {TopicPartition(each.topic, each.partition): each.end for each in inputs}
        consumer.assign(ends)
        starts, committed = consumer.beginning_offsets(ends), consumer.end_offsets(ends)
        for place, end in ends.items():
            if committed[place] < end:
                raise CliError(
                    f"{place} can be read up to {committed[place]}, and the batch ends at {end}: a "
                    "transaction is still open there (`ottla transactions list` shows it), or the topic was "
                    "created again"
                )
        for each in inputs:
            place = TopicPartition(each.topic, each.partition)
            if 0 <= each.start < starts[place]:
                raise CliError(f"{place} begins at {starts[place]}: records from {each.start} on are deleted")
            consumer.seek(place, max(each.start, starts[place]))
        while any(consumer.position(place) < end for place, end in ends.items()):
            sent = []
            for record in consumer.poll(timeout_ms=500):
                place = TopicPartition(record.topic, record.partition)
                if record.offset < ends[place]:
                    sent.append(producer.send_nowait(record.topic, record.value, **_fields(record)))
            for delivery in sent:
                delivery.result()
            copied += len(sent)
    return copied


def _send(client: Mapping[str, str], topic: str, records: Iterable[Any]) -> bool:
    """Write the records, all or none; whether the topic had some before. A replay into the same topic at
    the same time ends the transaction of this one, and then only that one writes.
    """
    from ottla.client.blocking import Consumer, Producer

    reader: Consumer[bytes, bytes] = Consumer(client)
    with reader as consumer:
        had_records = any(consumer.end_offsets(consumer.partitions_for(topic)).values())
    with Producer(client, transactional_id=f"ottla-replay-{topic}") as producer, producer.transaction():
        sent = [producer.send_nowait(topic, record.value, **_fields(record)) for record in records]
        for delivery in sent:
            delivery.result()
    return had_records


def _fields(record: Any) -> dict[str, Any]:
    return {
        "key": record.key,
        "headers": list(record.headers),
        "partition": record.partition,
        "timestamp": record.timestamp,
    }
