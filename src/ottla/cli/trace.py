"""`ottla trace`: which batch of which query wrote a record, from which records, by which version of the code.

Spark's sink keeps a decision for each batch, with its transactions and its inputs; how far back that goes is
in `docs/spark/lineage.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from ottla.cli.command_config import connect_to
from ottla.cli.commands import Argument, Option, command
from ottla.cli.errors import CliError
from ottla.cli.options import DEFAULT_BOOTSTRAP_SERVERS, Bootstrap, Common, Json
from ottla.cli.output import print_json, print_pairs, time_text
from ottla.cli.session import cli_error, topic_or_fail, with_admin

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.spark.sink.trace import TracedRecord

LineageTopic = Annotated[
    str | None,
    Option("--lineage-topic", metavar="TOPIC", help="The topic of the sink's option lineageTopic."),
]
DecisionTopic = Annotated[
    str | None,
    Option("--decision-topic", metavar="TOPIC", help="The topic of the sink's option decisionTopic."),
]
_UNKNOWN: Final = "not known"
_EARLIER: Final = f"{_UNKNOWN}: the record of the decision is compacted away, and a later run has kept a copy"


@command(None, "trace")
def app(
    topic: Annotated[str, Argument(metavar="TOPIC", help="The topic of the record.")],
    partition: Annotated[int, Argument(metavar="PARTITION", help="Its partition.")],
    offset: Annotated[int, Argument(metavar="OFFSET", help="Its offset.")],
    lineage_topic: LineageTopic = None,
    decision_topic: DecisionTopic = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP_SERVERS,
    as_json: Json = False,
) -> None:
    """Show which batch of a Spark query wrote a record: its inputs, and the version of its code.

    Without --lineage-topic it knows the last batch of a query, and those of the last hours.
    """
    found = find_record(bootstrap, topic, partition, offset, lineage_topic, decision_topic)
    if as_json:
        print_json(_document(found))
        return
    lineage = found.decision.lineage
    flow = (lineage.flow if lineage is not None else "") or "-"
    pairs: list[tuple[str, Any]] = [
        ("record", f"{topic}-{partition}@{offset}"),
        ("flow", flow),
        ("query", found.scope),
        ("run", found.run or _EARLIER),
        ("batch", found.decision.batch),
        ("decided", _UNKNOWN if found.decided_ms is None else time_text(found.decided_ms)),
        ("rows", sum(each.rows for each in found.decision.transactions)),
        ("transaction", found.transaction.id),
        ("code", (lineage.code_version if lineage is not None else "") or _UNKNOWN),
    ]
    inputs = _inputs_text(found)
    pairs += [("inputs" if number == 0 else "", text) for number, text in enumerate(inputs)]
    print_pairs(pairs)


def find_record(
    bootstrap: str,
    topic: str,
    partition: int,
    offset: int,
    lineage_topic: str | None,
    decision_topic: str | None,
) -> TracedRecord:
    """Find the batch of a record, or end the command with the reason."""
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.names import TopicPartition
    from ottla.spark.sink.client import sink_client
    from ottla.spark.sink.options import sink_options
    from ottla.spark.sink.trace import NotTraced, trace

    _check_topics(bootstrap, topic, partition, lineage_topic)
    options = sink_options(
        {
            **{f"kafka.{name}": value for name, value in connect_to(bootstrap).items()},
            **({"decisionTopic": decision_topic} if decision_topic is not None else {}),
        }
    )
    topics = [*([lineage_topic] if lineage_topic is not None else []), options.decision_topic]
    client = sink_client(options)
    try:
        return trace(client, TopicPartition(topic, partition), offset, topics)
    except NotTraced as error:
        raise CliError(str(error)) from None
    except KafkaError as error:
        raise cli_error(error) from None
    finally:
        client.close()


def _check_topics(bootstrap: str, topic: str, partition: int, lineage_topic: str | None) -> None:
    """Refuse a topic that does not exist: to ask for one by name would create it."""

    async def work(admin: Admin) -> int:
        if lineage_topic is not None:
            await topic_or_fail(admin, lineage_topic)
        return len((await topic_or_fail(admin, topic)).partitions)

    count = with_admin(Common(bootstrap), work)
    if not 0 <= partition < count:
        raise CliError(f"topic {topic} has no partition {partition}; it has {count}, from 0 on")


def _inputs_text(found: TracedRecord) -> list[str]:
    lineage = found.decision.lineage
    if lineage is None:
        return [f"{_UNKNOWN}: an earlier release of the sink has written the record"]
    if lineage.inputs is None:
        return [f"{_UNKNOWN}: {lineage.remark}"]
    lines = [
        f"{each.topic}-{each.partition}  {'the first' if each.start < 0 else each.start} to {each.end - 1}"
        for each in lineage.inputs
    ]
    if lineage.others:
        lines.append(f"{lineage.others} that are no topics, as tables")
    return lines or ["no new records"]


def _document(found: TracedRecord) -> dict[str, Any]:
    lineage = found.decision.lineage
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "offset": found.offset,
        "query": found.scope,
        "run": found.run or None,
        "batch": found.decision.batch,
        "decided": None if found.decided_ms is None else time_text(found.decided_ms),
        "transactional_id": found.transaction.id,
        "producer_id": found.transaction.producer_id,
        "flow": None if lineage is None else lineage.flow,
        "code_version": None if lineage is None else lineage.code_version,
        "inputs": None
        if lineage is None or lineage.inputs is None
        else [
            {"topic": each.topic, "partition": each.partition, "start": each.start, "end": each.end}
            for each in lineage.inputs
        ],
        "other_sources": None if lineage is None else lineage.others,
        "remark": "" if lineage is None else lineage.remark,
    }
