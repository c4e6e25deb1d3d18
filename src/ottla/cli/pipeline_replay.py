"""`ottla pipeline replay`: run a project again over just the records that made one batch, into a side topic.

The records are copied to a node of its own, with their partitions, keys, headers and times, and the pipeline
runs there as it is now, with empty tables and checkpoints. What it writes to the topic of the record is
copied to the side topic. Neither the project's tables and checkpoints nor the topic itself are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from ottla.cli.commands import Argument, Option
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.options import DEFAULT_BOOTSTRAP_SERVERS, named_values
from ottla.cli.output import note
from ottla.cli.pipeline_options import (
    DEFAULT_MASTER,
    Brokers,
    Master,
    ProjectPath,
    Settings,
    Verbose,
    project_of,
    terminable,
)
from ottla.cli.pipeline_test import new_node, refuse_own_catalog, test_log
from ottla.cli.trace import DecisionTopic, LineageTopic, find_record

if TYPE_CHECKING:
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
    settings: Settings = None,
    verbose: Verbose = False,
) -> None:
    """Run the pipeline again over the records that made the batch of one record, into a side topic.

    It runs the definitions as they are now, on a node of its own and with empty tables, so that a fix can be
    tried on the very records that went wrong.
    """
    from ottla.spark.java import NoJava
    from ottla.spark.pipelines.project import BOOTSTRAP, CREATE_TOPICS, ProjectError, topics_to_create
    from ottla.spark.pipelines.runner import RunFailed
    from ottla.spark.pipelines.testing.pipeline_under_test import PipelineUnderTest, UnexpectedRows
    from ottla.spark.pipelines.testing.warm_run import CaseDirectories, WarmSession
    from ottla.spark.session import NoSpark, connect_session

    if into == topic:
        raise WrongUsage("--into must be another topic than the one of the record")
    found = project_of(project)
    conf = named_values("--conf", settings or ())
    servers = bootstrap or found.bootstrap_servers or DEFAULT_BOOTSTRAP_SERVERS
    traced = find_record(servers, topic, partition, offset, lineage_topic, decision_topic)
    inputs = _inputs(traced)
    try:
        refuse_own_catalog(found, conf)
    except ProjectError as error:
        raise CliError(str(error)) from None
    with terminable(), TemporaryDirectory(prefix="ottla-replay-") as root, new_node() as local:
        wanted = topics_to_create(found.configuration.get(CREATE_TOPICS, ""))
        counts = {**wanted, **_partition_counts(servers, {topic, *(each.topic for each in inputs)})}
        _create(local, counts)
        copied = _copy_inputs(servers, local, inputs)
        note(f"batch {traced.decision.batch}: {copied} records of {_names(inputs)}")
        try:
            with (
                test_log(found, verbose=verbose) as log,
                connect_session(
                    master,
                    name=found.name,
                    conf={"spark.sql.warehouse.dir": str(Path(root) / "spark-warehouse"), **conf},
                    log=log,
                    short=True,
                ) as (spark, context),
            ):
                session = WarmSession(spark, context, log)
                configuration = {**found.configuration, BOOTSTRAP: local}
                session.run(found, CaseDirectories(Path(root)), configuration)
                results = PipelineUnderTest(local, lambda: None, session.rows).read_topic(topic)
        except (ProjectError, NoJava, NoSpark, RunFailed, UnexpectedRows) as error:
            raise CliError(str(error)) from None
    _create(servers, {into: counts[topic]})
    _send(servers, into, results)
    note(f"{len(results)} records into {into}")


def _inputs(traced: TracedRecord) -> Sequence[InputRange]:
    """The inputs of the batch, or the reason why it cannot be run again."""
    lineage = traced.decision.lineage
    where = f"batch {traced.decision.batch}"
    if lineage is None:
        raise CliError(f"the inputs of {where} are not known: an earlier release of the sink has written it")
    if lineage.inputs is None:
        raise CliError(f"the inputs of {where} are not known: {lineage.remark}")
    if lineage.others:
        raise CliError(f"{where} of {lineage.flow or 'this query'} reads a table, which has no offsets")
    if not lineage.inputs:
        raise CliError(f"{where} has read no records")
    return lineage.inputs


def _names(inputs: Iterable[InputRange]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}" for each in inputs)


def _partition_counts(servers: str, topics: set[str]) -> dict[str, int]:
    from ottla.client.blocking import Admin

    with Admin(servers) as admin:
        known = {info.name: len(info.partitions) for info in admin.topics.list()}
    if missing := sorted(topics - known.keys()):
        raise CliError(f"topic {missing[0]} does not exist any more")
    return {name: known[name] for name in topics}


def _create(servers: str, counts: Mapping[str, int]) -> None:
    from ottla.client.blocking import Admin

    with Admin(servers) as admin:
        known = {info.name for info in admin.topics.list()}
        for name, partitions in counts.items():
            if name not in known:
                admin.topics.create(name, partitions=partitions)


def _copy_inputs(source: str, target: str, inputs: Sequence[InputRange]) -> int:
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
        starts = consumer.beginning_offsets(ends)
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


def _send(servers: str, topic: str, records: Iterable[Any]) -> None:
    from ottla.client.blocking import Producer

    with Producer(servers) as producer:
        sent = [producer.send_nowait(topic, record.value, **_fields(record)) for record in records]
        for delivery in sent:
            delivery.result()


def _fields(record: Any) -> dict[str, Any]:
    return {
        "key": record.key,
        "headers": list(record.headers),
        "partition": record.partition,
        "timestamp": record.timestamp,
    }
