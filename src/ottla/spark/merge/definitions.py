"""Turn `create_auto_cdc_flow` into a sink and a flow that Spark can run.

Spark merges changes into tables of a catalog that has row-level operations, and no such catalog loads on the
Spark of this release (decision 0051). The same definitions run here: the table becomes a sink, which merges
each batch, and the flow gets two columns more, its sequence and whether it deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.merge.options import MergeOptions
from ottla.tables.keyed_table import DELETED, END_AT, SEQUENCE, SPECIAL, START_AT, History

if TYPE_CHECKING:
    from pyspark.pipelines.flow import AutoCdcFlow, Flow
    from pyspark.pipelines.output import Sink, StreamingTable

_FORMAT: Final = "ottla"


class InvalidMerge(Exception):
    """A flow of changes that cannot be merged; the text says why."""


def merge_sink(flow: AutoCdcFlow, table: StreamingTable, warehouse: Path, *, is_again: bool = False) -> Sink:
    """The sink in the place of the table. Raises InvalidMerge."""
    from pyspark.pipelines.output import Sink

    if find_spec("pyiceberg") is None:
        raise InvalidMerge("tables that merge need pyiceberg: pip install 'ottla[tables]'")
    if flow.stored_as_scd_type not in (None, 1, "1", 2, "2"):
        raise InvalidMerge(
            f"stored_as_scd_type={flow.stored_as_scd_type}: a table has the latest row (1) or all rows (2)"
        )
    history = None
    if flow.stored_as_scd_type in (2, "2"):
        history = History(
            _names("track_history_column_list", flow.track_history_column_list or ()),
            _names("track_history_except_column_list", flow.track_history_except_column_list or ()),
        )
    elif flow.track_history_column_list or flow.track_history_except_column_list:
        raise InvalidMerge("columns are tracked with stored_as_scd_type=2 only")
    if "." in flow.target:
        raise InvalidMerge("a table that merges has no database in its name")
    if table.schema is not None or table.partition_cols:
        raise InvalidMerge("its columns are those of the changes: omit schema and partition_cols")
    options = MergeOptions(
        flow.target,
        str(warehouse),
        _names("keys", flow.keys),
        _names("column_list", flow.column_list or ()),
        _names("except_column_list", flow.except_column_list or ()),
        is_again,
        history,
    )
    if strange := sorted({*options.keys, *options.columns} & {*SPECIAL, START_AT, END_AT}):
        raise InvalidMerge(f"{', '.join(strange)} is a column of the table itself")
    return Sink(table.name, table.comment, table.source_code_location, _FORMAT, options.to_spark())


def merge_flow(spark: Any, flow: AutoCdcFlow) -> Flow:
    """The flow of changes, with the columns that the sink goes by."""
    from pyspark.pipelines.flow import Flow

    def changes() -> Any:
        from pyspark.sql.connect import functions as F

        deletes = F.lit(False) if flow.apply_as_deletes is None else flow.apply_as_deletes
        deleted = F.coalesce(deletes, F.lit(False)).alias(DELETED)
        changes = spark.readStream.table(flow.source)
        return changes.select("*", flow.sequence_by.alias(SEQUENCE), deleted)

    name = flow.name or flow.target
    return Flow(name, flow.target, dict(flow.spark_conf), flow.source_code_location, changes)


def _names(option: str, columns: Sequence[Any]) -> tuple[str, ...]:
    """The names of columns, which Spark Connect keeps as they were given."""
    found = [getattr(each._expr, "_unparsed_identifier", None) for each in columns]
    if any(name is None or "." in name for name in found):
        raise InvalidMerge(f"{option}: names of columns are expected, and no expressions")
    return tuple(str(name).strip("`") for name in found)
