"""Expectations on the rows of a flow: count rows that break a rule, drop them, fail, or set them aside.

    from ottla.spark.expectations import expect, expect_or_drop

    @dp.table
    @expect("has a customer", "customer is not null")
    @expect_or_drop("costs something", "cents > 0")
    def orders() -> DataFrame: ...

An expectation decorates a function that returns a data frame, or takes a data frame itself, as in
`df.transform(expect_or_drop("costs something", "cents > 0"))`; so it works in pipelines and in plain
Structured Streaming. A rule is a condition of SQL, or a column; a row for which it is null breaks it.

Rows are counted for each micro-batch, by Spark's observed metrics: `observedMetrics` of a query's progress
has `rows` and `failed` for each expectation. A schema is never asked for, as in the definition of a pipeline
a table that is read may not exist yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, overload

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


METRIC: Final = "ottla.expectation"
SOURCE: Final = "source"
MAX_ROW_SHOWN: Final = 500


class ExpectationAction(StrEnum):
    """What happens to a row that breaks the rule."""

    KEEP = "kept"
    DROP = "dropped"
    FAIL = "failed"
    DEAD_LETTER = "dead letters"


class Expectation:
    """A rule for rows. Call it with a data frame, or with a function that returns one."""

    def __init__(
        self, name: str, rule: str | Column, action: ExpectationAction, topic: str | None = None
    ) -> None:
        if not name or ":" in name:
            raise ValueError(f"{name!r} is not a name for an expectation: text without a colon")
        self.name = name
        self._rule = rule
        self._action = action
        self._topic = topic

    @overload
    def __call__(self, target: DataFrame) -> DataFrame: ...
    @overload
    def __call__(self, target: Callable[..., DataFrame]) -> Callable[..., DataFrame]: ...

    def __call__(self, target: Any) -> Any:
        if not callable(target):
            return self._apply(target)

        @wraps(target)
        def checked(*args: Any, **keywords: Any) -> DataFrame:
            return self._apply(target(*args, **keywords))

        return checked

    def _apply(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        rule = F.expr(self._rule) if isinstance(self._rule, str) else self._rule
        holds = F.coalesce(rule, F.lit(False))
        counted = rows.observe(
            metric_name(self.name, self._action),
            F.count(F.lit(1)).alias("rows"),
            F.count_if(~holds).alias("failed"),
        )
        match self._action:
            case ExpectationAction.KEEP:
                return counted
            case ExpectationAction.DROP:
                return counted.where(holds)
            case ExpectationAction.FAIL:
                row = F.substring(F.to_json(F.struct("*")), 1, MAX_ROW_SHOWN)
                failure = F.raise_error(F.concat(F.lit(f"{self._text} is not met by "), row))
                return counted.where(F.when(holds, F.lit(True)).otherwise(failure.cast("boolean")))
            case ExpectationAction.DEAD_LETTER:
                letter = F.when(~holds, self._dead_letter())
                # Not `withColumn`: Spark resolves that at once, and the flow would not wait for its tables.
                return counted.select("*", letter.alias(dead_letter_column(self.name)))

    @property
    def _text(self) -> str:
        return f"expectation {self.name!r}" + (f" ({self._rule})" if isinstance(self._rule, str) else "")

    def _dead_letter(self) -> Column:
        from pyspark.sql import functions as F

        source = {name: F.col(f"{SOURCE}.{name}") for name in ("topic", "partition", "offset", "timestamp")}
        facts: dict[str, Column] = {
            "ottla.expectation": F.lit(self.name),
            **({"ottla.rule": F.lit(self._rule)} if isinstance(self._rule, str) else {}),
            **{f"ottla.source.{name}": column.cast("string") for name, column in source.items()},
        }
        headers = [
            F.struct(F.lit(name).alias("key"), F.encode(value, "utf-8").alias("value"))
            for name, value in facts.items()
        ]
        return F.struct(
            F.lit(self._topic).alias("topic"),
            F.col(f"{SOURCE}.key").alias("key"),
            F.col(f"{SOURCE}.value").alias("value"),
            F.array(*headers).alias("headers"),
        )


def expect(name: str, rule: str | Column) -> Expectation:
    """Keep rows that break the rule, and count them."""
    return Expectation(name, rule, ExpectationAction.KEEP)


def expect_or_drop(name: str, rule: str | Column) -> Expectation:
    """Drop rows that break the rule, and count them."""
    return Expectation(name, rule, ExpectationAction.DROP)


def expect_or_fail(name: str, rule: str | Column) -> Expectation:
    """Fail the flow at the first row that breaks the rule, before its batch is committed."""
    return Expectation(name, rule, ExpectationAction.FAIL)


def expect_or_dead_letter(name: str, rule: str | Column, *, topic: str) -> Expectation:
    """Write rows that break the rule to another topic, as the records that they were made of.

    For flows into a sink with `format("ottla")`. The rows must have a column `source` with the record
    (`source_record`). The dead letter has its key and value, and headers with the name of the expectation
    and the record's topic, partition, offset and timestamp. It is written in the transaction of the batch:
    exactly once, as the other rows.
    """
    if not topic:
        raise ValueError("expect_or_dead_letter needs a topic")
    return Expectation(name, rule, ExpectationAction.DEAD_LETTER, topic)


def source_record(*, typed: bool = False) -> Column:
    """The column for `expect_or_dead_letter`: the record that a row was made of, of a stream that reads
    topics.

        records.select(source_record(), F.from_json(F.col("value").cast("string"), ORDER).alias("order"))

    With `typed` it is for a stream with `valueFormat` and `includeBytes`.
    """
    from pyspark.sql import functions as F

    value = F.col("valueBytes").alias("value") if typed else F.col("value")
    return F.struct("topic", "partition", "offset", "timestamp", "key", value).alias(SOURCE)


def metric_name(name: str, action: ExpectationAction) -> str:
    """The name of the observed metric.

    >>> metric_name("costs something", ExpectationAction.DROP)
    'ottla.expectation:dropped:costs something'
    """
    return f"{METRIC}:{action}:{name}"


def expectation_counts(metrics: Mapping[str, Any]) -> dict[tuple[str, ExpectationAction], tuple[int, int]]:
    """The rows, and those that break the rule, by expectation, of the observed metrics of a batch.

    >>> expectation_counts({"ottla.expectation:dropped:a": {"rows": 5, "failed": 2}, "other": {"n": 1}})
    {('a', <ExpectationAction.DROP: 'dropped'>): (5, 2)}
    """
    found = {}
    for metric, values in metrics.items():
        prefix, _, rest = metric.partition(":")
        action, _, name = rest.partition(":")
        if prefix == METRIC and action in set(ExpectationAction):
            counts = int(values.get("rows") or 0), int(values.get("failed") or 0)
            found[name, ExpectationAction(action)] = counts
    return found


def dead_letter_column(name: str) -> str:
    """The column of an expectation's dead letters: several may be on one flow."""
    from ottla.spark.sink.written_columns import DEAD_LETTER

    return f"{DEAD_LETTER}_{sha256(name.encode()).hexdigest()[:8]}"
