"""The source's options, offsets and splits, without Spark or a broker."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import to_arrow_schema

from ottla.protocol.names import TopicPartition
from ottla.spark.source.columns import COLUMNS, arrow_schema, spark_schema
from ottla.spark.source.filter_pushdown import FilterBounds, push_filters
from ottla.spark.source.micro_batch_stream import rate_limited
from ottla.spark.source.offset_ranges import OffsetRange, split
from ottla.spark.source.offsets import OffsetLimitKind, StreamOffset
from ottla.spark.source.options import (
    SourceOptions,
    columns_of,
    parse_bytes,
    parse_duration_ms,
    source_options,
)
from ottla.spark.source.stream_reader import stream_reader
from tests.support.rows import for_each

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def parsed(*, streaming: bool = False, **options: str) -> SourceOptions:
    return source_options({**BASE, **options}, streaming=streaming)


# Discovery.


def test_spark_finds_the_format_by_itself() -> None:
    import pyspark_ottla

    assert pyspark_ottla.DefaultSource.name() == "ottla"


def test_a_broken_installation_leaves_other_formats_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark imports all such modules together, and discards all of them if one fails."""
    monkeypatch.delitem(sys.modules, "pyspark_ottla", raising=False)
    monkeypatch.setitem(sys.modules, "ottla.spark.datasource", None)
    module = importlib.import_module("pyspark_ottla")
    assert not hasattr(module, "DefaultSource")
    assert 'format("ottla") is not available' in caplog.text
    monkeypatch.delitem(sys.modules, "pyspark_ottla")


# Options.


def test_defaults_are_those_of_sparks_own_source() -> None:
    batch, stream = parsed(), parsed(streaming=True)
    assert (batch.start.kind, batch.end.kind) == (OffsetLimitKind.EARLIEST, OffsetLimitKind.LATEST)
    assert stream.start.kind is OffsetLimitKind.LATEST
    assert batch.fail_on_data_loss
    assert not batch.read_committed
    assert batch.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert stream.max_trigger_delay_ms == 15 * 60_000
    assert batch.poll_timeout_ms == 120_000
    assert not batch.connection.allow_auto_create_topics


def test_names_of_options_are_read_without_case() -> None:
    options = source_options(
        {"KAFKA.Bootstrap.Servers": "h:1", "SubscribePattern": "a.*", "startingoffsets": "EARLIEST"},
        streaming=True,
    )
    assert options.pattern == "a.*"
    assert options.start.kind is OffsetLimitKind.EARLIEST


def test_options_survive_the_way_to_a_task() -> None:
    options = parsed(startingOffsets='{"orders": {"0": 5, "1": -2}}')
    assert pickle.loads(pickle.dumps(options)) == options


WRONG = [
    ({"startingOffset": "latest"}, "did you mean startingOffsets"),
    ({"frobnicate": "1"}, "has no option 'frobnicate'"),
    ({"subscribe": " , "}, "names no topic"),
    ({"subscribePattern": "a"}, "not subscribe and subscribePattern"),
    ({"kafka.bootstrap.servers": " "}, "set kafka.bootstrap.servers"),
    ({"kafka.bootstrap.servers": "here:port"}, "'here:port' is not host:port"),
    ({"kafka.auto.offset.reset": "latest"}, "startingOffsets"),
    ({"kafka.enable.auto.commit": "true"}, "commitToGroup"),
    ({"kafka.key.deserializer": "x"}, "bytes"),
    ({"kafka.interceptor.classes": "x"}, "interceptor.classes is not supported"),
    ({"kafka.fetch.max.wait": "1"}, "did you mean kafka.fetch.max.wait.ms"),
    ({"kafka.isolation.level": "none"}, "read_committed"),
    ({"kafka.request.timeout.ms": "soon"}, "'soon' is not a number"),
    ({"startingOffsets": "soon"}, "is not JSON"),
    ({"startingOffsets": '{"orders": {"0": 1, "0": 2}}'}, "'0' is given twice"),
    ({"startingOffsets": '{"orders": [1]}'}, "where partitions should be"),
    ({"startingOffsets": '{"orders": {"0": "1"}}'}, "is not a partition and a number"),
    ({"startingOffsets": '{"orders": {"0": -3}}'}, "-2 stands for earliest"),
    ({"startingOffsets": '{"orders": {"0": -1}}'}, "cannot be latest"),
    ({"endingOffsets": '{"orders": {"0": -2}}'}, "cannot be earliest"),
    ({"startingOffsets": "[1]"}, "is not an object by topic"),
    ({"startingOffsets": "[" * 100_000}, "is not JSON"),
    ({"startingOffsets": '{"orders": {"0": 9223372036854775808}}'}, "is not a partition and a number"),
    ({"startingOffsets": '{"orders": {"2147483648": 1}}'}, "is not a partition and a number"),
    ({"startingTimestamp": "9" * 30}, "milliseconds since 1970"),
    ({"commitToGroup": " "}, "commitToGroup is empty"),
    ({"startingTimestamp": "today"}, "milliseconds since 1970"),
    ({"startingOffsetsByTimestampStrategy": "earliest"}, "allowed are error and latest"),
    (
        {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 4}}'},
        "after its endingOffsets",
    ),
    (
        {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"1": 6}}'},
        "not in both: orders-0, orders-1",
    ),
    ({"minPartitions": "-1"}, "above zero"),
    ({"maxRecordsPerPartition": "many"}, "above zero"),
    ({"maxBytesPerPartition": "0"}, "is not a size"),
    ({"failOnDataLoss": "yes"}, "true or false"),
    ({"columns": "value,vlaue"}, "vlaue is none of them"),
    ({"columns": ""}, "none is named"),
    ({"columns": "value,VALUE"}, "twice"),
    ({"commitToGroup": "g"}, "a batch read has none"),
]


@for_each(("options", "message"), WRONG, ids=[json.dumps(options) for options, _ in WRONG])
def test_a_mistake_is_named(options: dict[str, str], message: str) -> None:
    from ottla.client.settings import parse_addresses

    with pytest.raises(ValueError) as caught:
        parse_addresses(parsed(**options).connection.bootstrap_servers)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "assign", ["orders", "[]", "{}", '{"orders": 0}', '{"orders": [-1]}', '{"orders": []}']
)
def test_assign_wants_lists_of_partitions(assign: str) -> None:
    with pytest.raises(ValueError, match="assign"):
        source_options({"kafka.bootstrap.servers": "h:1", "assign": assign}, streaming=False)


def test_a_stream_has_no_end() -> None:
    for option in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ValueError, match=f"{option} is not valid in streaming"):
            parsed(streaming=True, **{option: "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.security.protocol", "TLS"),
        ("kafka.ssl.protocols", "secret"),
    ],
)
def test_a_security_setting_that_is_not_known_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name) as raised:
        parsed(**{name: value})
    assert "secret" not in str(raised.value)


def test_consumer_settings_without_a_meaning_here_are_taken() -> None:
    parsed(**{"kafka.group.id": "g", "groupIdPrefix": "p", "kafka.security.protocol": "PLAINTEXT"})


def test_columns_are_chosen_in_order() -> None:
    assert parsed(columns="offset, Value").columns == ("offset", "value")
    assert parsed(includeHeaders="true").columns == COLUMNS


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[:-1], ("value",), ("headers", "timestamp")])
def test_the_arrow_schema_is_the_one_that_spark_makes(columns: tuple[str, ...]) -> None:
    assert to_arrow_schema(spark_schema(columns), timezone="UTC").equals(arrow_schema(columns))


def test_times_and_sizes_are_written_as_in_spark() -> None:
    found = [parse_duration_ms("x", text) for text in ("15m", "10s", "500ms", "2h", "7")]
    assert found == [900_000, 10_000, 500, 7_200_000, 7]
    assert [parse_bytes("x", text) for text in ("1", "2k", "3MB", "1g")] == [1, 2048, 3 << 20, 1 << 30]


# Offsets.

names = st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True)
offsets = st.dictionaries(
    st.builds(TopicPartition, names, st.integers(0, 40)), st.integers(0, 2**63 - 1), max_size=12
)


@given(offsets, offsets, st.data())
def test_offsets_come_back_from_a_checkpoint(
    positions: dict[TopicPartition, int], begins: dict[TopicPartition, int], data: st.DataObject
) -> None:
    ids = {p.topic: data.draw(st.binary(min_size=16, max_size=16)) for p in positions}
    offset = StreamOffset(positions, ids, begins)
    text = json.dumps(offset.to_json())
    again = StreamOffset.from_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text


def test_an_offset_of_another_kind_of_source_is_refused() -> None:
    with pytest.raises(ValueError, match="has read another kind of source until now"):
        StreamOffset.from_json({"logOffset": 5})


@pytest.mark.parametrize("ask", ["initialOffset", "latestOffset"])
def test_a_stream_with_wrong_options_says_why_when_it_is_asked(ask: str) -> None:
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "startingOffsets": "erliest"}
    reader = stream_reader(options, spark_schema(columns_of(options)))
    with pytest.raises(ValueError, match="startingOffsets='erliest'"):
        getattr(reader, ask)()


def test_offsets_of_sparks_own_source_are_understood() -> None:
    found = StreamOffset.from_json({"orders": {"0": 5, "11": 7}})
    assert found.positions == {TopicPartition("orders", 0): 5, TopicPartition("orders", 11): 7}
    assert not found.ids


def test_offsets_of_a_checkpoint_say_where_to_begin() -> None:
    text = json.dumps(StreamOffset({TopicPartition("orders", 0): 5}, {"orders": b"x" * 16}).to_json())
    assert "@ids" in text
    assert parsed(startingOffsets=text).start.by_partition == {TopicPartition("orders", 0): 5}


@given(offsets, st.integers(1, 10_000))
def test_a_rate_limit_is_shared_and_starves_none(positions: dict[TopicPartition, int], limit: int) -> None:
    ends = {p: at + (at % 1_000) for p, at in positions.items()}
    found = rate_limited(positions, ends, limit)
    taken = {p: found[p] - positions[p] for p in positions}
    for partition, end in ends.items():
        assert positions[partition] <= found[partition] <= end
        assert taken[partition] > 0 or end == positions[partition]
    busy = sum(end > positions[p] for p, end in ends.items())
    assert sum(taken.values()) <= limit + busy


# Splits.

ranges = st.lists(st.tuples(st.integers(0, 1_000_000), st.integers(0, 100_000)), max_size=8).map(
    lambda found: [
        OffsetRange(TopicPartition("t", at), None, start, start + size)
        for at, (start, size) in enumerate(found)
    ]
)


@given(
    ranges,
    st.none() | st.integers(1, 64),
    st.none() | st.integers(1_000, 100_000),
    st.none() | st.integers(100_000, 10_000_000),
    st.floats(0, 1_000),
)
def test_cuts_cover_every_offset_once(
    whole: list[OffsetRange],
    min_partitions: int | None,
    max_records: int | None,
    max_bytes: int | None,
    weight: float,
) -> None:
    parts = split(
        whole,
        min_partitions=min_partitions,
        max_records=max_records,
        max_bytes=max_bytes,
        bytes_per_offset={each.partition: weight for each in whole},
    )
    for each in whole:
        own = [part for part in parts if part.partition == each.partition]
        edges = [each.start, *(part.end for part in own)] if own else [each.end]
        assert [part.start for part in own] == edges[:-1]
        assert edges[-1] == each.end
    assert all(part.size > 0 for part in parts)
    if max_records is not None:
        assert all(part.size <= max_records for part in parts)
    if max_bytes is not None and not max_records and not min_partitions:
        assert all(part.size * weight <= max_bytes + 2 * weight or part.size == 1 for part in parts)


def test_a_skewed_partition_is_cut_by_bytes() -> None:
    small, large = TopicPartition("t", 0), TopicPartition("t", 1)
    parts = split(
        [OffsetRange(small, None, 0, 1_000), OffsetRange(large, None, 0, 1_000)],
        max_bytes=100_000,
        bytes_per_offset={small: 10.0, large: 1_000.0},
    )
    assert [part.partition for part in parts] == [small] + [large] * 10
    assert {part.expected_bytes for part in parts[1:]} == {100_000}


def test_too_many_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="raise maxRecordsPerPartition"):
        split([OffsetRange(TopicPartition("t", 0), None, 0, 10**9)], max_records=1)


# Filters.


def column(kind: type[Filter], name: str, *value: object) -> Filter:
    return kind((name,), *value)  # type: ignore[call-arg]


def test_filters_become_bounds() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    noon_ms = int(noon.timestamp() * 1000)
    filters = [
        column(IsNotNull, "topic"),
        column(In, "topic", ["a", "b"]),
        column(EqualTo, "topic", "a"),
        column(GreaterThanOrEqual, "partition", 2),
        column(LessThan, "partition", 9),
        column(GreaterThan, "offset", 10),
        column(LessThanOrEqual, "offset", 20),
        column(GreaterThanOrEqual, "timestamp", noon),
        column(LessThan, "timestamp", noon.replace(microsecond=1)),
        column(EqualTo, "key", b"k"),
        Not(column(EqualTo, "partition", 3)),
    ]
    bounds, left = push_filters(filters)
    assert bounds == FilterBounds(
        topics=frozenset({"a"}),
        partition_from=2,
        partition_to=9,
        offset_from=11,
        offset_to=21,
        time_from=noon_ms,
        time_to=noon_ms + 1,
    )
    assert left == filters[7:]
    assert bounds.includes("a", 2)
    assert not bounds.includes("b", 2)
    assert not bounds.includes("a", 9)


def test_what_a_bound_only_narrows_stays_with_spark() -> None:
    some = column(In, "offset", [3, 9])
    bounds, left = push_filters([some])
    assert (bounds.offset_from, bounds.offset_to) == (3, 10)
    assert left == [some]
