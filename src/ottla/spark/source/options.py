"""The options of the source: names, defaults and meanings of Spark's own Kafka source, and a few more.

All are checked here, before any request to a broker, and become one `SourceOptions` that is pickled to the
processes that need it. An unknown option is refused: Spark's own source ignores it, and a misspelt
`startingOffsets` then silently reads the wrong data.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING

from ottla.spark.source.columns import COLUMNS
from ottla.spark.source.offsets import (
    EARLIEST,
    LATEST,
    OffsetLimit,
    OffsetLimitKind,
    parse_assign,
    parse_by_partition,
    parse_offsets_limit,
)
from ottla.spark.typed.options import TYPED_OPTIONS, FormatOptions, format_options

if TYPE_CHECKING:
    from ottla.client.settings import ConnectionConfig
    from ottla.protocol.names import TopicPartition
    from ottla.spark.typed.schemas import ReaderSchema


log = logging.getLogger(__name__)

_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown")
_CATALOG = "table.catalog."
_STORE = "rsm.config."
# Options are in Spark's plans and its user interface.
_STORE_SECRETS = (
    *(f"{_STORE}storage.aws.{name}" for name in ("access.key.id", "secret.access.key", "session.token")),
    *(f"{_STORE}storage.azure.{name}" for name in ("account.key", "sas.token", "connection.string")),
    f"{_STORE}storage.gcs.credentials.json",
)
_WHY_BATCH_ONLY = {"pushdown": "Spark offers filters to batches only"}
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_KNOWN = (
    *_STRATEGIES,
    *_BATCH_ONLY,
    *_STREAM_ONLY,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "readFrom",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "columns",
    "commitToGroup",
    "maxBytesPerPartition",
    *TYPED_OPTIONS,
    "includeBytes",
    "mode",
    # Options of Spark's own source without effect here: there are no consumer groups, and calls have
    # deadlines.
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
# Options that Spark itself may pass to a data source.
_ADDED_BY_SPARK = frozenset({"path", "checkpointlocation", "queryname"})

# Settings of Kafka's consumer that Spark's source refuses too, and why.
_REFUSED = {
    "auto.offset.reset": "set the option startingOffsets to where a new query begins; later runs continue "
    "from their checkpoint",
    "key.deserializer": "keys are bytes; convert the column `key` with Spark's functions",
    "value.deserializer": "values are bytes; convert the column `value` with Spark's functions",
    "enable.auto.commit": "offsets live in Spark's checkpoint; set the option commitToGroup to commit "
    "them to a group",
    "interceptor.classes": "they would run per record and could change what is read",
}
# Settings of Kafka's consumer without effect here: there is no group and no poll, and the transport has its
# own buffers.
_IGNORED = frozenset(
    {
        "group.id",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "connections.max.idle.ms",
        "client.dns.lookup",
        "enable.metrics.push",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
    }
)
DEFAULT_POLL_TIMEOUT_MS = 120_000
DEFAULT_TRIGGER_DELAY_MS = 15 * 60_000
DEFAULT_MAX_BYTES_PER_PARTITION = 128 * 1024 * 1024
DEFAULT_FETCH_BYTES = 8 * 1024 * 1024
_DURATION = re.compile(r"\s*(\d+)\s*(us|ms|s|m|min|h|d)?\s*", re.IGNORECASE)
_DURATION_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = re.compile(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)


class ReadFrom(Enum):
    """Where records come from: a topic's table has what was committed to it, the store of tiered storage has
    its old segments, brokers have the rest.
    """

    BROKERS = "brokers"
    TABLE = "table"
    TIER = "tier"
    AUTO = "auto"

    @property
    def takes_tables(self) -> bool:
        return self in (ReadFrom.TABLE, ReadFrom.AUTO)

    @property
    def takes_segments(self) -> bool:
        return self in (ReadFrom.TIER, ReadFrom.AUTO)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The topics to read, and how. Exactly one of `topics`, `pattern` and `assigned` is set."""

    connection: ConnectionConfig
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    start: OffsetLimit
    end: OffsetLimit
    no_match_is_latest: bool
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    read_committed: bool
    check_crcs: bool
    client_rack: str
    fetch_bytes: int
    """The largest size that one request asks for."""
    fetch_max_wait_ms: int
    api_timeout_ms: int
    """How long the driver tries to read offsets before it fails."""
    poll_timeout_ms: int
    """How long a task waits for records that should be there."""
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    pushdown: bool
    commit_to_group: str | None
    read_from: ReadFrom = ReadFrom.BROKERS
    catalog: tuple[tuple[str, str], ...] = ()
    """The settings of the catalog that has the tables, if they were given."""
    store: tuple[tuple[str, str], ...] = ()
    """The settings of the store that has the remote segments, if they were given: no secrets."""
    formats: tuple[FormatOptions, ...] = ()
    """Of keys and values that are typed."""
    schemas: tuple[ReaderSchema, ...] = ()
    """The schemas of `formats`, when Spark's plan has them."""
    fail_fast: bool = False
    """Whether a record that does not parse fails the query."""

    @property
    def subject(self) -> str:
        """The option that says what is read, for messages."""
        if self.topics:
            return f"subscribe={','.join(self.topics)}"
        if self.pattern is not None:
            return f"subscribePattern={self.pattern}"
        return f"assign={', '.join(map(str, self.assigned))}"


def is_typed(options: Mapping[str, str]) -> bool:
    """Whether these options are of keys or values that are not bytes."""
    return bool(format_options({name.lower(): value for name, value in options.items()}))


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that these options ask for, in the order in which they are named."""
    given = {name.lower(): value for name, value in options.items()}
    text = given.get("columns")
    typed = tuple(each.column for each in format_options(given))
    own = tuple(f"{column}Bytes" for column in typed)
    if not typed and _flag(given, "includeBytes", default=False):
        raise ValueError("includeBytes is for typed records: set keyFormat or valueFormat")
    if text is None:
        headers = _flag(given, "includeHeaders", default=False)
        bytes_too = own if _flag(given, "includeBytes", default=False) else ()
        return (*(COLUMNS if headers else COLUMNS[:-1]), *bytes_too, *(("_error",) if typed else ()))
    known = (*COLUMNS, *own, *(("_error",) if typed else ()))
    by_lower = {name.lower(): name for name in known}
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name.lower() not in by_lower]
    if unknown or not names:
        what = f"{', '.join(unknown)} is none of them" if unknown else "none is named"
        raise ValueError(f"columns={text!r}: there are {', '.join(known)}; {what}")
    found = [by_lower[name.lower()] for name in names]
    if len(set(found)) < len(found):
        raise ValueError(f"columns={text!r} names a column twice")
    return tuple(found)


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options. A ValueError names the option, its value, and what to write instead."""
    given = {name.lower(): str(value) for name, value in options.items()}
    _check_names(given, streaming=streaming)
    topics, pattern, assigned = _strategy(given)
    start, end = _limits(given, streaming=streaming)
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ValueError(f"startingOffsetsByTimestampStrategy={strategy!r}: allowed are error and latest")
    kafka = _kafka_settings(given)
    read_from = _read_from(given, streaming=streaming)
    at_least = _number(given, "minOffsetsPerTrigger")
    at_most = _number(given, "maxOffsetsPerTrigger")
    if at_least is not None and at_most is not None and at_least > at_most:
        raise ValueError(f"minOffsetsPerTrigger={at_least} is higher than maxOffsetsPerTrigger={at_most}")
    group = given.get("committogroup")
    if group is not None and not (group := group.strip()):
        raise ValueError("commitToGroup is empty; name a consumer group, or leave it out")
    if group is not None and not streaming:
        raise ValueError("commitToGroup commits the progress of a stream; a batch read has none")
    delay = given.get("maxtriggerdelay")
    return SourceOptions(
        connection=kafka.connection,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        start=start,
        end=end,
        no_match_is_latest=strategy == "latest",
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        columns=columns_of(given),
        # A table has nothing of aborted transactions, so brokers must not add any.
        read_committed=kafka.read_committed or read_from.takes_tables,
        check_crcs=kafka.check_crcs,
        client_rack=kafka.client_rack,
        fetch_bytes=kafka.fetch_bytes,
        fetch_max_wait_ms=kafka.fetch_max_wait_ms,
        api_timeout_ms=kafka.api_timeout_ms,
        poll_timeout_ms=_number(given, "kafkaConsumer.pollTimeoutMs") or DEFAULT_POLL_TIMEOUT_MS,
        min_partitions=_number(given, "minPartitions"),
        max_records_per_partition=_number(given, "maxRecordsPerPartition"),
        max_bytes_per_partition=parse_bytes("maxBytesPerPartition", given["maxbytesperpartition"])
        if "maxbytesperpartition" in given
        else DEFAULT_MAX_BYTES_PER_PARTITION,
        max_offsets_per_trigger=at_most,
        min_offsets_per_trigger=at_least,
        max_trigger_delay_ms=parse_duration_ms("maxTriggerDelay", delay)
        if delay is not None
        else DEFAULT_TRIGGER_DELAY_MS,
        pushdown=_flag(given, "pushdown", default=False),
        commit_to_group=group,
        read_from=read_from,
        catalog=tuple(sorted((name, text) for name, text in given.items() if name.startswith(_CATALOG))),
        store=_store(given),
        formats=format_options(given),
        fail_fast=_is_fail_fast(given),
    )


def _is_fail_fast(given: Mapping[str, str]) -> bool:
    mode = given.get("mode", "PERMISSIVE").strip().upper()
    if mode not in ("PERMISSIVE", "FAILFAST"):
        raise ValueError(f"mode={mode!r}: allowed are PERMISSIVE and FAILFAST")
    if "mode" in given and not format_options(given):
        raise ValueError("mode is for typed records: set keyFormat or valueFormat")
    return mode == "FAILFAST"


def _read_from(given: Mapping[str, str], *, streaming: bool) -> ReadFrom:
    text = given.get("readfrom", ReadFrom.BROKERS.value).strip().lower()
    try:
        found = ReadFrom(text)
    except ValueError:
        raise ValueError(f"readFrom={text!r}: allowed are brokers, table, tier and auto") from None
    if not found.takes_tables:
        return found
    if streaming and found is ReadFrom.TABLE:
        raise ValueError("readFrom=table is not valid in streaming queries, which go on behind it: use auto")
    if given.get("kafka.isolation.level", "").strip().lower() == "read_uncommitted":
        raise ValueError(f"readFrom={text}: a table has committed records; leave out kafka.isolation.level")
    if _flag(given, "pushdown", default=False):
        raise ValueError(f"readFrom={text} and pushdown cannot be combined")
    return found


def _store(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    for name in _STORE_SECRETS:
        if name in given:
            raise ValueError(
                f"{name} is refused, as options are in Spark's plans: give credentials to the driver and the "
                "executors as the tools of the store take them, by the environment, a file or a role"
            )
    return tuple(sorted((name, text) for name, text in given.items() if name.startswith(_STORE)))


def parse_duration_ms(option: str, text: str) -> int:
    """Parse a duration as Spark writes it: 15m, 10s, 500ms; milliseconds without a unit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{option}={text!r} is not a time such as 500ms, 10s, 15m, 1h")
    return int(int(match[1]) * _DURATION_MS[(match[2] or "ms").lower()])


def parse_bytes(option: str, text: str) -> int:
    """Parse a size as Spark writes it: 64m, 1g; bytes without a unit."""
    match = _BYTES.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{option}={text!r} is not a size such as 1048576, 64m, 1g")
    return int(int(match[1]) << 10 * " kmgt".index(match[2].lower() or " "))


def _check_names(given: Mapping[str, str], *, streaming: bool) -> None:
    known = {name.lower(): name for name in _KNOWN}
    for name in given:
        if name in known or name in _ADDED_BY_SPARK or name.startswith(("kafka.", _CATALOG, _STORE)):
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {known[near[0]]}?" if near else "docs/spark/source.md lists them"
        raise ValueError(f'format("ottla") has no option {name!r}; {hint}')
    if streaming:
        for option in _BATCH_ONLY:
            if option.lower() in given:
                why = _WHY_BATCH_ONLY.get(option, "a stream has no end")
                raise ValueError(f"{option} is not valid in streaming queries: {why}")
    else:
        for option in _STREAM_ONLY:
            if option.lower() in given:
                log.warning("%s is ignored in batch queries", option)


def _strategy(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    chosen = [option for option in _STRATEGIES if option.lower() in given]
    if len(chosen) != 1:
        which = f"not {' and '.join(chosen)}" if chosen else "none is given"
        raise ValueError(f"set one of the options {', '.join(_STRATEGIES)} to say what to read; {which}")
    option = chosen[0]
    text = given[option.lower()].strip()
    if option == "assign":
        return (), None, tuple(parse_assign(text))
    if option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"subscribePattern={text!r} is not a regular expression: {error}") from None
        if not text:
            raise ValueError("subscribePattern is empty; .* stands for all topics")
        return (), text, ()
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise ValueError(f"subscribe={text!r} names no topic")
    return topics, None, ()


def _limits(given: Mapping[str, str], *, streaming: bool) -> tuple[OffsetLimit, OffsetLimit]:
    start = _limit(given, "starting", OffsetLimitKind.LATEST if streaming else OffsetLimitKind.EARLIEST)
    end = _limit(given, "ending", OffsetLimitKind.LATEST)
    if streaming:
        return start, end
    if start.kind is OffsetLimitKind.LATEST:
        raise ValueError("startingOffsets=latest reads nothing in a batch query; give a beginning")
    if end.kind is OffsetLimitKind.EARLIEST:
        raise ValueError("endingOffsets=earliest reads nothing in a batch query; give an end")
    if start.kind is OffsetLimitKind.OFFSETS:
        for partition, offset in start.by_partition.items():
            if offset == LATEST:
                raise ValueError(f"startingOffsets: {partition} cannot be latest (-1) in a batch query")
    if end.kind is OffsetLimitKind.OFFSETS:
        for partition, offset in end.by_partition.items():
            if offset == EARLIEST:
                raise ValueError(f"endingOffsets: {partition} cannot be earliest (-2) in a batch query")
    if start.kind is end.kind and start.kind in (OffsetLimitKind.OFFSETS, OffsetLimitKind.TIMES):
        _check_order(start, end)
    return start, end


def _check_order(start: OffsetLimit, end: OffsetLimit) -> None:
    what = "Offsets" if start.kind is OffsetLimitKind.OFFSETS else "OffsetsByTimestamp"
    if start.by_partition.keys() != end.by_partition.keys():
        one_sided = ", ".join(map(str, sorted(start.by_partition.keys() ^ end.by_partition.keys())))
        raise ValueError(
            f"starting{what} and ending{what} must name the same partitions; not in both: {one_sided}"
        )
    for partition, begin in start.by_partition.items():
        if 0 <= end.by_partition[partition] < begin:
            raise ValueError(
                f"starting{what} of {partition} is {begin}, after its ending{what}, "
                f"{end.by_partition[partition]}"
            )


def _limit(given: Mapping[str, str], side: str, default: OffsetLimitKind) -> OffsetLimit:
    """One limit. The most general option wins, as in Spark: one timestamp, timestamps, offsets."""
    if (text := given.get(f"{side}timestamp")) is not None:
        if not re.fullmatch(r"\s*-?\d{1,18}\s*", text):
            raise ValueError(f"{side}Timestamp={text!r} is not a number of milliseconds since 1970")
        return OffsetLimit(OffsetLimitKind.TIME, time_ms=int(text))
    if (text := given.get(f"{side}offsetsbytimestamp")) is not None:
        example = '{"orders": {"0": 1735689600000}}'
        return OffsetLimit(
            OffsetLimitKind.TIMES, parse_by_partition(f"{side}OffsetsByTimestamp", text, example)
        )
    if (text := given.get(f"{side}offsets")) is not None:
        return parse_offsets_limit(f"{side}Offsets", text)
    return OffsetLimit(default)


@dataclass(frozen=True, slots=True)
class _KafkaSettings:
    connection: ConnectionConfig
    read_committed: bool
    check_crcs: bool
    client_rack: str
    fetch_bytes: int
    fetch_max_wait_ms: int
    api_timeout_ms: int


def _kafka_settings(given: Mapping[str, str]) -> _KafkaSettings:
    # Imported here: tasks use checked options and do not need these.
    from ottla.client.consumer.config import ConsumerConfig
    from ottla.client.settings import connection_config, is_about_security, settings_of
    from ottla.spark.worker.client_config import with_client_config

    kafka = with_client_config(
        {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
    )
    if not kafka.get("bootstrap.servers", "").strip():
        raise ValueError("set kafka.bootstrap.servers to where the cluster is, as host:port")
    for name, why in _REFUSED.items():
        if name in kafka:
            raise ValueError(f"kafka.{name} is not supported: {why}")
    known = {field.name.replace("_", ".") for field in fields(ConsumerConfig)}
    for name in [name for name in kafka if name in _IGNORED]:
        log.info("kafka.%s has no effect in this source", name)
        del kafka[name]
    for name in kafka:
        if name not in known and not is_about_security(name):
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean kafka.{near[0]}?" if near else ""
            raise ValueError(f"kafka.{name} is not a setting that this client knows{hint}")
    try:
        config = settings_of(
            ConsumerConfig, {"client.id": "ottla-spark", **kafka}, {"allow_auto_create_topics": False}
        )
    except ValueError as error:
        raise ValueError(f"kafka.{error}") from None
    return _KafkaSettings(
        connection=connection_config(config),
        read_committed=config.read_committed,
        check_crcs=config.check_crcs,
        client_rack=config.client_rack,
        fetch_bytes=config.max_partition_fetch_bytes
        if "max.partition.fetch.bytes" in kafka
        else min(DEFAULT_FETCH_BYTES, config.fetch_max_bytes),
        fetch_max_wait_ms=config.fetch_max_wait_ms,
        api_timeout_ms=config.default_api_timeout_ms,
    )


def _flag(given: Mapping[str, str], option: str, *, default: bool) -> bool:
    text = given.get(option.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"{option}={text!r} is not true or false")
    return text.strip().lower() == "true"


def _number(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{option}={text!r} is not a number above zero")
    return int(text)
