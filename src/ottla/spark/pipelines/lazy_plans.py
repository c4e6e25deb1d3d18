"""Plans that Spark resolves inside the graph of a pipeline, and not while it is still being defined.

Spark Connect sends plans unresolved, and resolves most operations only when the graph is complete, where the
name of another table of the pipeline means its flow. Some it resolves at once, on receipt: `withWatermark`
and `drop` among them. At that time the tables of a first run are not in the catalog, so it fails with
TABLE_OR_VIEW_NOT_FOUND; in a later run it finds the table behind the graph's back, and the flow does not wait
for the one that fills it. Here the two are written in another form, with the same meaning, that Spark
resolves late. Others, as `withColumn`, it tries to resolve at once, and late if that fails: their input gets
a condition on a variable of the session that exists only when all is defined. For the rest the form that
works is known.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ottla.spark.pipelines.plan import StreamRead
from ottla.spark.pipelines.selection import TimeRange
from ottla.spark.sink.written_columns import DEAD_LETTER

_RELATION: Final = "spark.connect.Relation"
_ALIAS: Final = "spark.connect.Expression.Alias"
_NAME: Final = re.compile(r"\w+(\.\w+)*")
_QUANTITY: Final = re.compile(
    r"\s*(?P<count>\d+)\s+(?P<unit>week|day|hour|minute|second|millisecond|microsecond)s?", re.IGNORECASE
)
_STREAM: Final = re.compile(
    r"\bSTREAM\s*(?:\(\s*|\s)(?P<name>(?:`[^`]+`|\w+)(?:\.(?:`[^`]+`|\w+))*)", re.IGNORECASE
)
_NAMES_TOPICS: Final = ("subscribe", "subscribePattern", "assign", "path")
_FROM: Final = re.compile(
    r"\b(?:FROM|JOIN|STREAM)\s*(?:\(\s*)?(?:STREAM\s*(?:\(\s*)?)?"
    r"(?P<name>(?:`[^`]+`|\w+)(?:\.(?:`[^`]+`|\w+))*)",
    re.IGNORECASE,
)
DEFINED: Final = "__ottla_pipeline_is_defined"
"""The variable of the session without which Spark resolves nothing at once."""
_TRIED_AT_ONCE: Final = ("with_columns", "with_columns_renamed")
_PANDAS: Final = "a pandas_udf in select, or the same call in the flow that fills the table, on its source"
# What Spark resolves at once, by the names in its protocol: how users call it, and what works.
_EAGER: Final = {
    "drop": ("drop", 'drop("a", "b"), with names of columns'),
    "with_watermark": ("withWatermark", 'withWatermark("a", "10 minutes"), with the name of a column'),
    "fill_na": ("fillna", 'selectExpr("* except (a)", "coalesce(a, 0) as a")'),
    "drop_na": ("dropna", 'where("a is not null")'),
    "replace": ("replace", 'selectExpr("* except (a)", "if(a = 1, 2, a) as a")'),
    "to_schema": ("to", 'select(F.col("a").cast("long"))'),
    "describe": ("describe", "select with functions as F.min and F.avg"),
    "summary": ("summary", "select with functions as F.min and F.avg"),
    "map_partitions": ("mapInPandas or mapInArrow", _PANDAS),
    "group_map": ("applyInPandas or a function with state", _PANDAS),
    "co_group_map": ("cogroup", "join"),
    "apply_in_pandas_with_state": ("applyInPandasWithState", _PANDAS),
    "transform_with_state_in_pandas": ("transformWithState", _PANDAS),
    "as_of_join": ("an as-of join", "join with a window over the greater times, or max_by"),
    "nearest_by_join": ("a nearest-by join", "join with a window over the distances, or min_by"),
    "parse": ("a parser of text", "selectExpr(\"from_json(value, 'a long') as row\")"),
    "sample": ("randomSplit", "sample, or where with a hash of the key"),
    "sample_by": ("sampleBy", "where with rand() and the fraction of each key"),
    "cov": ("cov", "select with covar_samp"),
    "corr": ("corr", "select with corr"),
    "crosstab": ("crosstab", 'pivot("item", ["tea", "coffee"])'),
    "approx_quantile": ("approxQuantile", "select with percentile_approx"),
    "freq_items": ("freqItems", "select with approx_top_k"),
    "pivot": ("pivot without values", 'pivot("item", ["tea", "coffee"])'),
}


@dataclass(frozen=True, slots=True)
class EagerRead:
    """An operation that Spark resolves at once, on tables with these names."""

    operation: str
    instead: str
    tables: frozenset[str]


def make_lazy(relation: Any) -> Any:
    """A copy of the plan in which `drop`, `withWatermark` and `withColumn` on tables are resolved with the
    graph.
    """
    copy = type(relation)()
    copy.CopyFrom(relation)
    for each in list(_relations(copy)):  # those inside of others first
        kind = each.WhichOneof("rel_type")
        if kind in _TRIED_AT_ONCE and tables_read(each):
            _wait_until_defined(getattr(each, kind).input)
        if kind not in ("drop", "with_watermark") or not tables_read(each):
            continue
        rewritten = _drop(each) if kind == "drop" else _watermark(each)
        if rewritten is not None:
            each.CopyFrom(rewritten)
    return copy


def read_again(relation: Any, times: TimeRange, format: str) -> Any:
    """A copy of the plan whose streams of topics have the records of a range of time."""
    copy = type(relation)()
    copy.CopyFrom(relation)
    for each in list(_relations(copy)):
        if each.WhichOneof("rel_type") != "read" or not each.read.is_streaming:
            continue
        if not each.read.HasField("data_source") or each.read.data_source.format != format:
            continue
        options = each.read.data_source.options
        for name in [name for name in options if name.lower().startswith("starting")]:
            del options[name]
        options["startingTimestamp"] = str(times.start)
        options["startingOffsetsByTimestampStrategy"] = "latest"
        if times.end is not None:
            read = type(each)()
            read.CopyFrom(each)
            condition = f"timestamp < timestamp_millis({times.end})"
            each.filter.input.CopyFrom(read)
            each.filter.condition.expression_string.expression = condition
    return copy


def eager_reads(relation: Any) -> list[EagerRead]:
    """What in a plan Spark resolves at once although it reads tables by their names."""
    found = []
    for each in _relations(relation):
        kind = each.WhichOneof("rel_type")
        if kind == "aggregate" and each.aggregate.HasField("pivot") and not each.aggregate.pivot.values:
            kind = "pivot"
        if kind == "sample" and not each.sample.deterministic_order:
            continue
        if kind in _EAGER and (tables := frozenset(tables_read(each))):
            found.append(EagerRead(*_EAGER[kind], tables))
    return found


@dataclass(frozen=True, slots=True)
class OutsideRead:
    """A read of something that is no table, by `spark.read` or `spark.readStream`."""

    format: str
    options: dict[str, str]
    paths: tuple[str, ...]
    streaming: bool


def outside_reads(relation: Any) -> list[OutsideRead]:
    return [
        OutsideRead(
            each.read.data_source.format,
            dict(each.read.data_source.options),
            tuple(each.read.data_source.paths),
            each.read.is_streaming,
        )
        for each in _relations(relation)
        if each.WhichOneof("rel_type") == "read" and each.read.HasField("data_source")
    ]


def dead_letter_topics(message: Any) -> set[str]:
    """The topics that the expectations of a plan write dead letters to."""
    found: set[str] = set()
    for alias in _aliases(message):
        if any(name.startswith(DEAD_LETTER) for name in alias.name):
            for inner in _aliases(alias.expr):
                if list(inner.name) == ["topic"] and inner.expr.literal.string:
                    found.add(inner.expr.literal.string)
    return found


def _aliases(message: Any) -> Iterator[Any]:
    if message.DESCRIPTOR.full_name == _ALIAS:
        yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        repeated = hasattr(value, "__len__") and not hasattr(value, "ListFields")
        for each in value if repeated else (value,):
            yield from _aliases(each)


def stream_reads(relation: Any) -> list[StreamRead]:
    """The streams in a plan: of tables by their names, of topics, of files."""
    found = []
    for each in _relations(relation):
        kind = each.WhichOneof("rel_type")
        if kind == "read" and each.read.is_streaming and each.read.HasField("named_table"):
            found.append(StreamRead("table", each.read.named_table.unparsed_identifier.replace("`", "")))
        elif kind == "sql":
            found += streams_in_sql(each.sql.query)
    for read in outside_reads(relation):
        if read.streaming:
            given = {name.lower(): value for name, value in read.options.items()}
            chosen = [f"{name}={given[name.lower()]}" for name in _NAMES_TOPICS if name.lower() in given]
            found.append(StreamRead(read.format, " ".join([*chosen, *read.paths])))
    return found


def streams_in_sql(query: str) -> list[StreamRead]:
    """
    >>> [each.what for each in streams_in_sql("SELECT * FROM STREAM(a) JOIN STREAM `db`.`b`")]
    ['a', 'db.b']
    """
    return [StreamRead("table", match["name"].replace("`", "")) for match in _STREAM.finditer(query)]


def shape_of(relation: Any) -> str:
    """What tells a query from another: all but its places in the code and the options of what it reads."""
    copy = type(relation)()
    copy.CopyFrom(relation)
    _clear(copy)
    return hashlib.sha256(copy.SerializeToString(deterministic=True)).hexdigest()[:16]


def shape_of_sql(query: str) -> str:
    """The same of a query in SQL."""
    return hashlib.sha256(" ".join(query.split()).encode()).hexdigest()[:16]


def _clear(message: Any) -> None:
    for field, _ in message.ListFields():
        # Of a function in Python only its use counts: pickled, the same code may be other bytes.
        if field.name in ("common", "plan_id", "command", "python_ver") or (
            field.name == "options" and message.DESCRIPTOR.name == "DataSource"
        ):
            message.ClearField(field.name)
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        repeated = hasattr(value, "__len__") and not hasattr(value, "ListFields")
        for each in value if repeated else (value,):
            _clear(each)


def _relations(message: Any) -> Iterator[Any]:
    """All relations of a message, those inside of others first."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        repeated = hasattr(value, "__len__") and not hasattr(value, "ListFields")
        for each in value if repeated else (value,):
            yield from _relations(each)
    if message.DESCRIPTOR.full_name == _RELATION:
        yield message


def tables_read(relation: Any) -> set[str]:
    """The names of the tables that a plan reads, without their databases."""
    names = []
    for each in _relations(relation):
        kind = each.WhichOneof("rel_type")
        if kind == "read" and each.read.HasField("named_table"):
            names.append(each.read.named_table.unparsed_identifier)
        elif kind == "sql":
            names += tables_in_query(each.sql.query)
    return {name.replace("`", "").rpartition(".")[2].lower() for name in names}


def tables_in_query(query: str) -> list[str]:
    """The names that a query in SQL reads, those of its own expressions included.

    >>> tables_in_query("SELECT * FROM STREAM(a) JOIN `db`.b ON true WHERE x IN (SELECT y FROM c)")
    ['a', '`db`.b', 'c']
    """
    return [match["name"] for match in _FROM.finditer(query)]


def _wait_until_defined(relation: Any) -> None:
    """Let the analysis of a relation fail until the variable is there; then the condition is always true."""
    inner = type(relation)()
    inner.CopyFrom(relation)
    relation.Clear()
    relation.filter.input.CopyFrom(inner)
    relation.filter.condition.expression_string.expression = f"session.{DEFINED}"


def _drop(relation: Any) -> Any | None:
    """As `select("* EXCEPT (a, b)")`."""
    names = [_quoted(name) for name in relation.drop.column_names]
    has_join = any(each.WhichOneof("rel_type") == "join" for each in _relations(relation))
    for column in relation.drop.columns:
        attribute = column.unresolved_attribute
        if column.WhichOneof("expr_type") != "unresolved_attribute" or (
            attribute.HasField("plan_id") and has_join
        ):
            return None
        if not re.fullmatch(r"\w+|`[^`]+`", attribute.unparsed_identifier):
            return None
        names.append(attribute.unparsed_identifier)
    if not names:
        return None
    lazy = type(relation)()
    lazy.common.CopyFrom(relation.common)
    lazy.project.input.CopyFrom(relation.drop.input)
    lazy.project.expressions.add().expression_string.expression = f"* EXCEPT ({', '.join(names)})"
    return lazy


def _quoted(name: str) -> str:
    quote = "`"
    return f"{quote}{name.replace(quote, 2 * quote)}{quote}"


def _watermark(relation: Any) -> Any | None:
    """As SQL's WATERMARK clause, which is the only form that is resolved late."""
    given = relation.with_watermark
    delay = sql_interval(given.delay_threshold)
    if delay is None or not _NAME.fullmatch(given.event_time):
        return None
    column = ".".join(f"`{part}`" for part in given.event_time.split("."))
    clause = f"WATERMARK {column} DELAY OF INTERVAL {delay}"
    late = type(relation)()
    # Columns that were taken from the frame before the watermark are found by its id.
    late.common.CopyFrom(given.input.common)
    read = given.input.read
    if given.input.WhichOneof("rel_type") == "read" and not read.named_table.options:
        name = read.named_table.unparsed_identifier
        table = f"STREAM({name})" if read.is_streaming else name
        late.sql.query = f"SELECT * FROM {table} {clause}"
    else:
        name = f"__before_watermark_{relation.common.plan_id}"
        late.with_relations.root.sql.query = f"SELECT * FROM {name} {clause}"
        before = late.with_relations.references.add().subquery_alias
        before.alias = name
        before.input.CopyFrom(given.input)
    lazy = type(relation)()
    lazy.common.CopyFrom(relation.common)
    lazy.project.input.CopyFrom(late)
    lazy.project.expressions.add().unresolved_star.SetInParent()
    return lazy


def sql_interval(text: str) -> str | None:
    """A delay as SQL's INTERVAL takes it; None if it is written in another way.

    >>> sql_interval("10 minutes"), sql_interval("1 hour 30 minutes"), sql_interval("soon")
    ('10 MINUTE', '1 HOUR 30 MINUTE', None)
    """
    parts, at = [], 0
    text = re.sub(r"^\s*interval\s+", "", text, flags=re.IGNORECASE).rstrip()
    while at < len(text):
        match = _QUANTITY.match(text, at)
        if match is None:
            return None
        parts.append(f"{match['count']} {match['unit'].upper()}")
        at = match.end()
    return " ".join(parts) or None
