"""The options of the sink: those of Spark's own Kafka sink and a few more, checked before anything starts.

An unknown option is refused: a misspelt `topic` or `delivery` would otherwise silently change what a job
does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import Enum
from typing import Final
from urllib.parse import quote

from ottla.spark.typed.options import TYPED_OPTIONS, FormatOptions, format_options

log = logging.getLogger(__name__)

DEFAULT_PREFIX = "ottla-spark"
OWN_TOPICS = "__ottla_"
"""How names of topics begin that no pattern of the source reads: those of the sink's own records."""
DEFAULT_DECISION_TOPIC = f"{OWN_TOPICS}spark_decisions"
MAX_APP_ID: Final = 100
MAX_VERSION: Final = 2**63 - 1
_KNOWN = (
    "topic",
    "delivery",
    "transactionalIdPrefix",
    "decisionTopic",
    "twoPhaseCommit",
    "onLostTransactions",
    "onUnsafeRestart",
    # Read by `lineage`: a topic for the lineage of all batches, and the version of the code.
    "lineageTopic",
    "codeVersion",
    # Of Spark's own sink: a column `headers` is written with or without it.
    "includeHeaders",
    # The context of a trace, for the header of that name.
    "traceparent",
    # The identity of a batch write, by which one that is repeated is recognised.
    "txnAppId",
    "txnVersion",
    *TYPED_OPTIONS,
    "autoRegister",
)
# Options that Spark itself may pass to a data source.
_ADDED_BY_SPARK = frozenset({"path", "checkpointlocation", "queryname"})
_REFUSED = {
    "key.serializer": "keys are bytes or text; convert the column `key` with Spark's functions",
    "value.serializer": "values are bytes or text; convert the column `value` with Spark's functions",
    "transactional.id": "each task has one of its own; set the option transactionalIdPrefix",
    "transaction.two.phase.commit.enable": "set the option twoPhaseCommit",
    "interceptor.classes": "they would run per record and could change what is written",
    "partitioner.class": "set the column `partition`, or leave it to Kafka's default",
}
_IGNORED = frozenset(
    {
        "auto.include.jmx.reporter",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.availability.timeout.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
    }
)


class DeliveryGuarantee(Enum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class TwoPhaseCommitMode(Enum):
    AUTO = "auto"
    REQUIRED = "true"
    OFF = "false"


@dataclass(frozen=True, slots=True)
class WriteId:
    """What tells a batch write from others, and from itself when it is repeated: the application that makes
    it, and a number that grows with each of its writes.
    """

    app: str
    version: int

    @property
    def query(self) -> str:
        """The application in the place of a query's id, in scopes and transactional ids. It has no dash, so
        that it is not found at the end of another one.
        """
        return f"app.{quote(self.app, safe='').replace('-', '%2D')}"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows go and how. `producer` are checked settings of Kafka's producer, by their names, of which
    some are secrets.
    """

    producer: tuple[tuple[str, str], ...] = field(repr=False)
    topic: str | None
    delivery: DeliveryGuarantee
    prefix: str
    decision_topic: str
    two_phase: TwoPhaseCommitMode
    fail_on_lost: bool
    fail_on_unsafe_restart: bool
    # The header `traceparent` of rows that have none.
    traceparent: str | None = None
    # What a batch write is, for all of its repetitions; None if it is not to be recognised. The client of a
    # process, which is known by the options, serves all writes.
    write_id: WriteId | None = field(default=None, compare=False)
    # Of keys and values that are typed; whether their schemas are registered.
    formats: tuple[FormatOptions, ...] = field(default=(), compare=False)
    register: bool = field(default=False, compare=False)

    @property
    def settings(self) -> dict[str, str]:
        return dict(self.producer)

    @property
    def transaction_timeout_ms(self) -> int | None:
        """The user's setting, if any: transactions then time out after this time, decided or not."""
        text = self.settings.get("transaction.timeout.ms")
        return None if text is None else int(text)


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options. A ValueError names the option, its value, and what to write instead."""
    given = {name.lower(): str(value) for name, value in options.items()}
    _check_names(given)
    topic = given.get("topic", "").strip() or None
    if "topic" in given and topic is None:
        raise ValueError(
            "the option topic is empty; name a topic, or give each row its own in a column `topic`"
        )
    timeout_is_set = "kafka.transaction.timeout.ms" in given
    two_phase = TwoPhaseCommitMode(
        _one_of(given, "twoPhaseCommit", [each.value for each in TwoPhaseCommitMode], "auto")
    )
    if two_phase is TwoPhaseCommitMode.REQUIRED and timeout_is_set:
        raise ValueError(
            "twoPhaseCommit=true and kafka.transaction.timeout.ms exclude each other: a transaction in "
            "two-phase commit has no timeout"
        )
    prefix = given.get("transactionalidprefix", DEFAULT_PREFIX).strip()
    if not prefix or len(prefix) > 200:
        raise ValueError(f"transactionalIdPrefix={prefix!r} must have 1 to 200 characters")
    delivery = DeliveryGuarantee(
        _one_of(
            given,
            "delivery",
            [each.value for each in DeliveryGuarantee],
            DeliveryGuarantee.EXACTLY_ONCE.value,
        )
    )
    found = SinkOptions(
        producer=_producer_settings(given, delivery),
        topic=topic,
        delivery=delivery,
        prefix=prefix,
        decision_topic=given.get("decisiontopic", DEFAULT_DECISION_TOPIC).strip() or DEFAULT_DECISION_TOPIC,
        two_phase=TwoPhaseCommitMode.OFF if timeout_is_set else two_phase,
        fail_on_lost=_one_of(given, "onLostTransactions", ["fail", "report"], "fail") == "fail",
        fail_on_unsafe_restart=_one_of(given, "onUnsafeRestart", ["fail", "continue"], "fail") == "fail",
        traceparent=_traceparent(given),
        write_id=_write_id(given, delivery),
        formats=format_options(given, writing=True),
        register=_one_of(given, "autoRegister", ["true", "false"], "false") == "true",
    )
    if found.register and not any(each.registry for each in found.formats):
        raise ValueError("autoRegister registers the schemas of valueFormat or keyFormat at a schemaRegistry")
    if found.transaction_timeout_ms is not None and found.transaction_timeout_ms < 1:
        raise ValueError(
            f"kafka.transaction.timeout.ms={found.transaction_timeout_ms} must be at least 1; leave it out "
            "for as long as the brokers allow"
        )
    return found


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _KNOWN}
    for name in given:
        if name in known or name in _ADDED_BY_SPARK or name.startswith("kafka."):
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {known[near[0]]}?" if near else "docs/spark/sink.md lists them"
        raise ValueError(f'format("ottla") has no option {name!r} for writing; {hint}')


def _traceparent(given: Mapping[str, str]) -> str | None:
    # Imported here: tasks use checked options and do not need it.
    from ottla.client.tracing.traceparent import is_traceparent

    text = given.get("traceparent", "").strip()
    if text and not is_traceparent(text):
        raise ValueError(
            f"traceparent={text!r} is not the context of a trace, as "
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        )
    return text or None


def _write_id(given: Mapping[str, str], delivery: DeliveryGuarantee) -> WriteId | None:
    app, version = given.get("txnappid", "").strip(), given.get("txnversion", "").strip()
    if not app and not version:
        return None
    if not app or not version:
        raise ValueError("txnAppId and txnVersion go together: together they say which write this is")
    if len(app) > MAX_APP_ID:
        raise ValueError(f"txnAppId={app!r} must have at most {MAX_APP_ID} characters")
    if not version.isdecimal() or int(version) > MAX_VERSION:
        raise ValueError(f"txnVersion={version!r} must be a whole number from 0 to {MAX_VERSION}")
    if delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        raise ValueError("txnAppId is for delivery=exactly-once; with at-least-once, nothing is recognised")
    return WriteId(app, int(version))


def _one_of(given: Mapping[str, str], option: str, allowed: list[str], default: str) -> str:
    value = given.get(option.lower(), default).strip().lower()
    if value not in allowed:
        raise ValueError(f"{option}={value!r}: allowed are {' and '.join(allowed)}")
    return value


def _producer_settings(given: Mapping[str, str], delivery: DeliveryGuarantee) -> tuple[tuple[str, str], ...]:
    # Imported here: tasks use checked options and do not need these.
    from ottla.client.producer.config import ProducerConfig
    from ottla.client.settings import is_about_security, settings_of
    from ottla.spark.worker.client_config import with_client_config

    kafka = with_client_config(
        {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
    )
    if not kafka.get("bootstrap.servers", "").strip():
        raise ValueError("set kafka.bootstrap.servers to where the cluster is, as host:port")
    for name, why in _REFUSED.items():
        if name in kafka:
            raise ValueError(f"kafka.{name} is not supported: {why}")
    for name in [name for name in kafka if name in _IGNORED]:
        log.info("kafka.%s has no effect in this sink", name)
        del kafka[name]
    known = {field.name.replace("_", ".") for field in fields(ProducerConfig)}
    for name in kafka:
        if name not in known and not is_about_security(name):
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean kafka.{near[0]}?" if near else ""
            raise ValueError(f"kafka.{name} is not a setting that this client knows{hint}")
    kafka.setdefault("client.id", "ottla-spark")
    keywords = {"transactional_id": "checked"} if delivery is DeliveryGuarantee.EXACTLY_ONCE else {}
    try:
        settings_of(ProducerConfig, kafka, keywords)
    except ValueError as error:
        hint = "; or write with delivery=at-least-once" if "transactional.id" in str(error) else ""
        text = str(error).replace("transactional.id", "delivery=exactly-once")
        raise ValueError(f"kafka.{text}{hint}" if not hint else f"{text}{hint}") from None
    return tuple(sorted(kafka.items()))
